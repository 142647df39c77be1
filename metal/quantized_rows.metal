// y = x W^T for M = 2 to 16 rows of x and an affine-quantized W, reading every weight once.
//
//   W[n,j] = scales[n, j / GROUP] * packed[n,j] + biases[n, j / GROUP]       packed: BITS bits each, lowest bits first
//
// A simd-group makes OUTPUTS neighbouring columns of y for all M rows: its lanes take 8 neighbouring weights each, turn
// them into floats once and use them M times. Sums are kept in float and added over the lanes at the end.
// Every loop over registers is unrolled: an array with an index that is not known would be kept in memory.
// x [M, K]; weight [N, K * BITS / 32] uint32; scales, biases [N, K / GROUP]; K % 32 == 0.

// Eight neighbouring weights, as floats.
template <int BITS, typename W>
METAL_FUNC void unpack(W packed, float scale, float bias, thread float* weights) {
  MLX_MTL_PRAGMA_UNROLL
  for (int word = 0; word < BITS / 4; ++word) {
    uint bits = packed[word];
    MLX_MTL_PRAGMA_UNROLL
    for (int i = 0; i < 32 / BITS; ++i) {
      weights[word * 32 / BITS + i] = scale * float((bits >> (i * BITS)) & ((1u << BITS) - 1)) + bias;
    }
  }
}

// ---- quantized_rows ----
uint lane = thread_index_in_simdgroup;
uint width = x_shape[1];
uint outputs = weight_shape[0];
uint words = weight_shape[1];
uint first = (threadgroup_position_in_grid.x * SIMDGROUPS + simdgroup_index_in_threadgroup) * OUTPUTS;

float sums[OUTPUTS][M] = {};
for (uint j = lane * 8; j < width; j += 32 * 8) {
  float weights[OUTPUTS][8];
  MLX_MTL_PRAGMA_UNROLL
  for (uint o = 0; o < OUTPUTS; ++o) {
    size_t n = min(first + o, outputs - 1);
    size_t group = n * (width / GROUP) + j / GROUP;
    unpack<BITS>(weight + n * words + j * BITS / 32, float(scales[group]), float(biases[group]), weights[o]);
  }
  MLX_MTL_PRAGMA_UNROLL
  for (uint m = 0; m < M; ++m) {
    float values[8];
    MLX_MTL_PRAGMA_UNROLL
    for (uint i = 0; i < 8; ++i) {
      values[i] = float(x[m * width + j + i]);
    }
    MLX_MTL_PRAGMA_UNROLL
    for (uint o = 0; o < OUTPUTS; ++o) {
      MLX_MTL_PRAGMA_UNROLL
      for (uint i = 0; i < 8; ++i) {
        sums[o][m] += values[i] * weights[o][i];
      }
    }
  }
}

MLX_MTL_PRAGMA_UNROLL
for (uint o = 0; o < OUTPUTS; ++o) {
  MLX_MTL_PRAGMA_UNROLL
  for (uint m = 0; m < M; ++m) {
    float sum = simd_sum(sums[o][m]);
    if (lane == 0 && first + o < outputs) {
      y[m * outputs + first + o] = T(sum);
    }
  }
}
