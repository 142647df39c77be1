// The candidate selector's walk (DFlash 2): a path through n rows of k candidates, left to right, in one threadgroup.
//
//   score_t(b) = unary_t(b) + sum_r predecessor[a]_r * gate[t]_r * successor[b]_r       a: the token chosen before
//
// in float. A simd-group scores a candidate: lane l adds the terms l, l + 32, ... in order, then the lanes add up as a
// butterfly. No multiply-add is contracted, so the scores equal the reference's bit for bit. The choice by MODE:
//   0  argmax of score
//   1  inverse CDF of softmax(score / temperature) at draws[t]
//   2  argmax of score / temperature + draws[t,b]
// Equal values: the lowest index. NaN counts as +inf. candidates, unary [n, k]; gate [n, r]; codebooks [V, r].
#if __METAL_VERSION__ >= 320
#pragma METAL fp contract(off)
#endif

// ---- selector_walk ----
threadgroup float shared[2][32];
uint steps = candidates_shape[0];
uint count = candidates_shape[1];
uint rank = gate_shape[1];
uint lane = thread_index_in_simdgroup;
uint token = anchor[0];

for (uint step = 0; step < steps; ++step) {
  // Two rows alternate: a row is written again only behind a barrier that all its readers have passed.
  uint row = step & 1;
  for (uint c = simdgroup_index_in_threadgroup; c < count; c += simdgroups_per_threadgroup) {
    size_t departure = size_t(token) * rank;
    size_t arrival = size_t(candidates[step * count + c]) * rank;
    float sum = 0.0f;
    for (uint r = lane; r < rank; r += 32) {
      float gated = float(predecessor[departure + r]) * float(gate[step * rank + r]);
      sum += gated * float(successor[arrival + r]);
    }
    for (ushort mask = 1; mask < 32; mask *= 2) {
      sum += simd_shuffle_xor(sum, mask);
    }
    if (lane == 0) {
      float score = float(unary[step * count + c]) + sum;
      shared[row][c] = score;
      scores[step * count + c] = score;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // Every thread makes the same choice for itself: cheaper than to hand it round.
  uint pick = 0;
  if (MODE == 1) {
    float top = shared[row][0] / temperature[0];
    for (uint c = 1; c < count; ++c) {
      float logit = shared[row][c] / temperature[0];
      top = logit > top || isnan(logit) ? logit : top;
    }
    float total = 0.0f;
    for (uint c = 0; c < count; ++c) {
      total += metal::precise::exp(shared[row][c] / temperature[0] - top);
    }
    float reached = 0.0f;
    for (uint c = 0; c < count; ++c) {
      reached += metal::precise::exp(shared[row][c] / temperature[0] - top);
      pick += reached <= draws[step] * total ? 1 : 0;
    }
    pick = min(pick, count - 1);
  } else {
    float best = -INFINITY;
    for (uint c = 0; c < count; ++c) {
      float value = shared[row][c];
      if (MODE == 2) {
        value = value / temperature[0] + draws[step * count + c];
      }
      value = isnan(value) ? INFINITY : value;
      if (value > best) {
        best = value;
        pick = c;
      }
    }
  }
  token = candidates[step * count + pick];
  if (thread_index_in_threadgroup == 0) {
    path[step] = token;
    picks[step] = pick;
  }
}
