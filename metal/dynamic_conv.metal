// The grouped two-tap dynamic convolution of a draft layer (DFlash 2).
//
//   y[t,c] = (base[0,c] + dyn[t,0,g]) * x[t,c] + (base[1,c] + dyn[t,1,g]) * x[t-1,c]      g = c / (H / G)
//
// in float, rounded once to T; x[-1] is zero at the start of every block. SIDE picks the coefficients: 0 before the
// sublayer, 1 behind it. x [B, L, H], base_kernel [2 sides, 2 taps, H], coefficients [B, L, 2 sides, 2 taps, G].

template <int SIDE, typename X, typename K, typename C>
METAL_FUNC float convolve(X x, K base_kernel, C coefficients, uint row, uint length, uint width, uint groups, uint c) {
  uint group = c / (width / groups);
  auto base = base_kernel + SIDE * 2 * width + c;
  auto dynamic = coefficients + (row * 2 + SIDE) * 2 * groups + group;
  float now = (float(base[0]) + float(dynamic[0])) * float(x[row * width + c]);
  float before = row % length == 0 ? 0.0f : float(x[(row - 1) * width + c]);
  return now + (float(base[width]) + float(dynamic[groups])) * before;
}

// ---- dynamic_conv: one thread per channel and row ----
uint c = thread_position_in_grid.x;
uint row = thread_position_in_grid.y;
uint width = x_shape[2];
uint at = row * width + c;
y[at] = T(convolve<SIDE>(x, base_kernel, coefficients, row, x_shape[1], width, coefficients_shape[4], c));

// ---- dynamic_conv_add: and the residual, added as its own operation would add it ----
uint c = thread_position_in_grid.x;
uint row = thread_position_in_grid.y;
uint width = x_shape[2];
uint at = row * width + c;
T conv = T(convolve<SIDE>(x, base_kernel, coefficients, row, x_shape[1], width, coefficients_shape[4], c));
y[at] = T(float(residual[at]) + float(conv));

// ---- dynamic_conv_add_norm: and the next sublayer's RMSNorm; one threadgroup per row ----
// normed = weight * T(x_new / sqrt(mean(x_new^2) + eps)), from x_new as it was rounded to T.
threadgroup float partial[32];
uint row = threadgroup_position_in_grid.y;
uint threads = threads_per_threadgroup.x;
uint width = x_shape[2];
float squares = 0.0f;
for (uint c = thread_position_in_threadgroup.x; c < width; c += threads) {
  uint at = row * width + c;
  T conv = T(convolve<SIDE>(x, base_kernel, coefficients, row, x_shape[1], width, coefficients_shape[4], c));
  T sum = T(float(residual[at]) + float(conv));
  x_new[at] = sum;
  squares += float(sum) * float(sum);
}
squares = simd_sum(squares);
if (thread_index_in_simdgroup == 0) {
  partial[simdgroup_index_in_threadgroup] = squares;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
float total = 0.0f;
for (uint i = 0; i < simdgroups_per_threadgroup; ++i) {
  total += partial[i];
}
float scale = metal::precise::rsqrt(total / width + eps);
for (uint c = thread_position_in_threadgroup.x; c < width; c += threads) {
  uint at = row * width + c;
  T unit = T(float(x_new[at]) * scale);
  normed[at] = T(float(norm_weight[c]) * float(unit));
}
