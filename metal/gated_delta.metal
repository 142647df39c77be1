// The gated delta rule over one block of one layer, with the lazy commit of the block before it.
//
//   per row:  S = g S;   d = beta (v - S k);   S = S + d k^T;   y = S q
//
// S is advanced over the first `accepted` rows of the old tape and written: that is the committed state. It goes on
// over the new rows, whose y is written, and is then dropped: the new rows are the next launch's tape.
//
// Four lanes share a row of S; a lane keeps Dk / 4 neighbouring elements in registers. Sums over Dk are taken as 32
// chains of Dk / 32 neighbours, then a pairwise tree over the chains: the order of mlx-lm's kernels, so that committing
// leaves the very state that its plain decoding leaves. Loops over registers are unrolled, so that they stay there.
// q, k [1, T, Hk, Dk]; v [1, T, Hv, Dv]; g, beta [1, T, Hv]; state [1, Hv, Dv, Dk]; Dk % 32 == 0, Dv % 8 == 0.

// The tree over 32 chains, 8 of which lie in each of four neighbouring lanes.
METAL_FUNC float tree_sum(const thread float* chain) {
  float sum = ((chain[0] + chain[1]) + (chain[2] + chain[3])) + ((chain[4] + chain[5]) + (chain[6] + chain[7]));
  sum += simd_shuffle_xor(sum, ushort(1));
  sum += simd_shuffle_xor(sum, ushort(2));
  return sum;
}

// S = g S, then S k.
template <int LENGTH, typename K>
METAL_FUNC float decay_and_recall(thread float* state, K k, float decay) {
  float chain[8];
  MLX_MTL_PRAGMA_UNROLL
  for (int part = 0; part < 8; ++part) {
    float sum = 0.0f;
    MLX_MTL_PRAGMA_UNROLL
    for (int i = 0; i < LENGTH; ++i) {
      int e = part * LENGTH + i;
      state[e] = state[e] * decay;
      sum += state[e] * float(k[e]);
    }
    chain[part] = sum;
  }
  return tree_sum(chain);
}

// ---- gated_delta ----
constexpr int LENGTH = DK / 32;
constexpr int KEPT = DK / 4;
uint lane = thread_index_in_simdgroup % 4;
uint head = thread_position_in_grid.z;
uint key_head = head / (HV / HK);
uint row = thread_position_in_grid.y * 8 + thread_index_in_simdgroup / 4;
size_t home = (size_t(head) * DV + row) * DK + lane * KEPT;

float kept[KEPT];
MLX_MTL_PRAGMA_UNROLL
for (int i = 0; i < KEPT; ++i) {
  kept[i] = state[home + i];
}

for (int t = 0; t < accepted; ++t) {
  auto key = tape_k + (t * HK + key_head) * DK + lane * KEPT;
  float recalled = decay_and_recall<LENGTH>(kept, key, float(tape_g[t * HV + head]));
  float delta = (float(tape_v[(t * HV + head) * DV + row]) - recalled) * float(tape_beta[t * HV + head]);
  MLX_MTL_PRAGMA_UNROLL
  for (int i = 0; i < KEPT; ++i) {
    kept[i] = kept[i] + float(key[i]) * delta;
  }
}
MLX_MTL_PRAGMA_UNROLL
for (int i = 0; i < KEPT; ++i) {
  committed[home + i] = kept[i];
}

for (int t = 0; t < q_shape[1]; ++t) {
  auto key = k + (t * HK + key_head) * DK + lane * KEPT;
  auto query = q + (t * HK + key_head) * DK + lane * KEPT;
  float recalled = decay_and_recall<LENGTH>(kept, key, float(g[t * HV + head]));
  float delta = (float(v[(t * HV + head) * DV + row]) - recalled) * float(beta[t * HV + head]);
  float chain[8];
  MLX_MTL_PRAGMA_UNROLL
  for (int part = 0; part < 8; ++part) {
    float sum = 0.0f;
    MLX_MTL_PRAGMA_UNROLL
    for (int i = 0; i < LENGTH; ++i) {
      int e = part * LENGTH + i;
      kept[e] = kept[e] + float(key[e]) * delta;
      sum += kept[e] * float(query[e]);
    }
    chain[part] = sum;
  }
  float out = tree_sum(chain);
  if (lane == 0) {
    y[(t * HV + head) * DV + row] = T(out);
  }
}
