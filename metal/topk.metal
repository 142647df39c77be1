// The k largest of each row of logits [R, V], in order, equal logits by lowest id; one threadgroup per row.
//
// Thread i owns the ids i, i + threads, ... and holds the best of them that is not taken yet. k times: the best of all
// threads is taken, and its simd-group looks up what the owner holds next. Every logit is read once, and
// k * V / threads of them once more; nothing is sorted.

// Orders floats as unsigned integers: -inf < ... < -0 = +0 < ... < inf < NaN. No float maps to 0, which means "none".
METAL_FUNC uint rank_of(float value) {
  uint bits = as_type<uint>(value);
  uint size = bits & 0x7FFFFFFF;
  if (size > 0x7F800000) {
    return 0xFFFFFFFF;
  }
  if (size == 0) {
    return 0x80000000;
  }
  return bits >> 31 ? ~bits : bits | 0x80000000;
}

struct Entry {
  uint rank;
  uint id;
};

// Higher rank first, then lower id.
METAL_FUNC bool outranks(Entry a, Entry b) {
  return a.rank > b.rank || (a.rank == b.rank && a.id < b.id);
}

METAL_FUNC Entry best_of_lanes(Entry best) {
  for (ushort mask = 1; mask < 32; mask *= 2) {
    Entry other = {simd_shuffle_xor(best.rank, mask), simd_shuffle_xor(best.id, mask)};
    best = outranks(other, best) ? other : best;
  }
  return best;
}

// ---- top_k ----
threadgroup Entry shared[2][32];
uint row = threadgroup_position_in_grid.x;
uint vocabulary = logits_shape[1];
uint thread_id = thread_index_in_threadgroup;
uint threads = threads_per_threadgroup.x;
uint lane = thread_index_in_simdgroup;
uint group = simdgroup_index_in_threadgroup;
size_t start = size_t(row) * vocabulary;
Entry none = {0, 0xFFFFFFFF};

Entry mine = none;
for (uint id = thread_id; id < vocabulary; id += threads) {
  Entry other = {rank_of(float(logits[start + id])), id};
  mine = outranks(other, mine) ? other : mine;
}
Entry ours = best_of_lanes(mine);

for (uint place = 0; place < uint(count); ++place) {
  // Two rows alternate: a row is written again only behind a barrier that all its readers have passed.
  if (lane == 0) {
    shared[place & 1][group] = ours;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  Entry taken = none;
  if (lane < simdgroups_per_threadgroup) {
    taken = shared[place & 1][lane];
  }
  taken = best_of_lanes(taken);
  if (thread_id == 0) {
    ids[row * count + place] = taken.id;
    values[row * count + place] = logits[start + taken.id];
  }
  uint owner = taken.id % threads;
  if (owner / 32 == group && place + 1 < uint(count)) {
    Entry next = none;
    for (uint id = owner + lane * threads; id < vocabulary; id += 32 * threads) {
      Entry other = {rank_of(float(logits[start + id])), id};
      next = outranks(taken, other) && outranks(other, next) ? other : next;
    }
    next = best_of_lanes(next);
    mine = lane == owner % 32 ? next : mine;
    ours = best_of_lanes(mine);
  }
}
