// Cross-entropy of a tile of logits with its gradient, a block of 512 for each row. With f = softcap(scale logits) and
// lse = log sum exp f: loss = lse - f[label] + z_loss lse^2.
#include "math.cuh"

FN float capped(float x, float scale, float cap, float& slope) {
  x = scale * x;
  slope = 1.f;
  if (cap == 0.f) return x;
  const float t = tanh_(x / cap);
  slope = fmaf(-t, t, 1.f);
  return cap * t;
}

// Eight logits after f; without a cap all slopes are one.
FN void capped8(float (&v)[8], float (&slope)[8], float scale, float cap) {
  if (cap == 0.f) {
    #pragma unroll
    for (int i = 0; i < 8; i++) { v[i] *= scale; slope[i] = 1.f; }
  } else {
    #pragma unroll
    for (int i = 0; i < 8; i++) v[i] = capped(v[i], scale, cap, slope[i]);
  }
}

// Those from `col` on, which have been asked for; asks for the thread's next of the row, to be on their way meanwhile.
FN void pass8(float (&v)[8], float (&slope)[8], Raw& next, Mat logits, i64 row, i64 col, i64 vocab, float scale, float cap) {
  const Raw raw = next;
  if (col + 4096 < vocab) next = fetch8(logits, row, col + 4096, vocab - col - 4096);
  widen8(v, logits.type, raw);
  capped8(v, slope, scale, cap);
}

// The logarithm of the sum of exponentials of a row; every thread gets it.
FN float log_sum_exp(Mat logits, i64 row, i64 vocab, float scale, float cap) {
  float top = -infinity(), sum = 0.f, v[8], slope[8];
  i64 col = (i64)threadIdx.x * 8;
  Raw next;
  if (col < vocab) next = fetch8(logits, row, col, vocab - col);
  for (; col < vocab; col += 4096) {
    pass8(v, slope, next, logits, row, col, vocab, scale, cap);
    if (col + 8 > vocab)
      #pragma unroll
      for (int i = 0; i < 8; i++) v[i] = col + i < vocab ? v[i] : -infinity();
    float most = v[0];
    #pragma unroll
    for (int i = 1; i < 8; i++) most = fmaxf(most, v[i]);
    if (most > top) { sum *= exp_(top - most); top = most; }
    // Not from minus infinity, so that all that is as low has an exponential of zero.
    const float from = top == -infinity() ? 0.f : top;
    #pragma unroll
    for (int i = 0; i < 8; i++) sum += exp_to_88(v[i] - from);
  }
  const float all = block_max(top);
  sum = team_sum(top == -infinity() ? sum : sum * exp_(top - all), 512);
  return all + logf(sum);
}

// stats and all as in the contract's `Spread`, null if absent; `spread`: the columns are a part, the first is the label `first`.
ENTRY(512) cross_entropy(Mat logits, const i32* labels, const float* weights, float* loss, Mat dlogits, i64 vocab, float scale, float cap, float z_loss, i32 spread, i64 first, Mat stats, Mat all, i32 ranks) {
  const i64 row = blockIdx.x;
  const i32 label = labels[row];
  const bool one = threadIdx.x == 0;
  float v[8], slope[8];
  if (label < 0) {
    if (stats.ptr) {
      if (one) { store(stats, 0, row, 0.f); store(stats, 1, row, 0.f); }
      return;
    }
    if (one) loss[row] = 0.f;
    if (!dlogits.ptr) return;
    #pragma unroll
    for (int i = 0; i < 8; i++) v[i] = 0.f;
    for (i64 col = (i64)threadIdx.x * 8; col < vocab; col += 4096) store8(dlogits, row, col, vocab - col, v);
    return;
  }
  const i64 at = (i64)label - first;
  const bool here = at >= 0 && at < vocab;
  float lse, target;
  if (all.ptr) {
    float top = -infinity(), sum = 0.f;
    target = 0.f;
    for (int rank = 0; rank < ranks; rank++) top = fmaxf(top, load(all, 2 * rank, row));
    for (int rank = 0; rank < ranks; rank++) {
      sum += expf(load(all, 2 * rank, row) - top);
      target += load(all, 2 * rank + 1, row);
    }
    lse = top + logf(sum);
  } else {
    lse = log_sum_exp(logits, row, vocab, scale, cap);
    // A label that is no column is a mistake that should be noticed; in a part of a vocabulary it is another rank's.
    target = here ? capped(load(logits, row, at), scale, cap, slope[0]) : spread ? 0.f : nan();
  }
  if (stats.ptr) {
    if (one) { store(stats, 0, row, lse); store(stats, 1, row, target); }
    return;
  }
  if (one) loss[row] = lse - target + z_loss * lse * lse;
  if (!dlogits.ptr) return;
  // The label's logit is read above by all threads, and may be overwritten below.
  __syncthreads();
  const float weight = (weights ? weights[row] : 1.f) * scale, softmax = weight * fmaf(2.f * z_loss, lse, 1.f);
  i64 col = (i64)threadIdx.x * 8;
  Raw next;
  if (col < vocab) next = fetch8(logits, row, col, vocab - col);
  for (; col < vocab; col += 4096) {
    pass8(v, slope, next, logits, row, col, vocab, scale, cap);
    #pragma unroll
    for (int i = 0; i < 8; i++) v[i] = softmax * exp_(v[i] - lse) * slope[i];
    if (here && at - col < 8 && at >= col)
      #pragma unroll
      for (int i = 0; i < 8; i++) if (col + i == at) v[i] -= weight * slope[i];
    store8(dlogits, row, col, vocab - col, v);
  }
}
