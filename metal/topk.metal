// The k largest of each row of logits [R, V], in order, equal logits by lowest id; one threadgroup per row.
//
// Thread i owns the ids i, i + THREADS, ... and holds the best of them that is not taken yet. k times: the best of all
// threads is taken, and its simd-group looks up what the owner holds next. Every logit is read once, and k * V / THREADS
// of them once more; nothing is sorted.

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

// The better of two (rank, id) pairs: higher rank, then lower id.
METAL_FUNC bool outranks(uint2 a, uint2 b) {
  return a.x > b.x || (a.x == b.x && a.y < b.y);
}

METAL_FUNC uint2 best_of_lanes(uint2 best) {
  for (ushort mask = 1; mask < 32; mask *= 2) {
    uint2 other = uint2(simd_shuffle_xor(best.x, mask), simd_shuffle_xor(best.y, mask));
    best = outranks(other, best) ? other : best;
  }
  return best;
}

// ---- top_k ----
threadgroup uint2 shared[2][32];
uint row = threadgroup_position_in_grid.x;
uint vocabulary = logits_shape[1];
uint thread_id = thread_index_in_threadgroup;
uint lane = thread_index_in_simdgroup;
uint group = simdgroup_index_in_threadgroup;
size_t start = size_t(row) * vocabulary;
uint2 none = uint2(0, 0xFFFFFFFF);

uint2 mine = none;
for (uint id = thread_id; id < vocabulary; id += THREADS) {
  uint rank = rank_of(float(logits[start + id]));
  mine = rank > mine.x ? uint2(rank, id) : mine;
}
uint2 ours = best_of_lanes(mine);

for (uint place = 0; place < COUNT; ++place) {
  // Two rows alternate: a row is written again only behind a barrier that all its readers have passed.
  if (lane == 0) {
    shared[place & 1][group] = ours;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint2 taken = best_of_lanes(lane < THREADS / 32 ? shared[place & 1][lane] : none);
  if (thread_id == 0) {
    ids[row * COUNT + place] = taken.y;
    values[row * COUNT + place] = logits[start + taken.y];
  }
  uint owner = taken.y % THREADS;
  if (owner / 32 == group && place + 1 < COUNT) {
    uint2 next = none;
    for (uint id = owner + lane * THREADS; id < vocabulary; id += 32 * THREADS) {
      uint2 other = uint2(rank_of(float(logits[start + id])), id);
      next = outranks(taken, other) && outranks(other, next) ? other : next;
    }
    next = best_of_lanes(next);
    mine = lane == owner % 32 ? next : mine;
    ours = best_of_lanes(mine);
  }
}
