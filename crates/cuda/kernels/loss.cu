// Cross-entropy of a tile of logits with its gradient, a block of 512 for each row. With f = softcap(scale logits) and
// lse = log sum exp f: loss = lse - f[label] + z_loss lse^2.
#include "math.cuh"

// A logit that is left out has no cap (crate tensor, `LEFT_OUT_BELOW`).
FN float capped(float x, float scale, float cap, float& slope) {
  x = scale * x;
  slope = 1.f;
  if (cap == 0.f || x < -1e10f) return x;
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

// The exponential of this is zero: a finite place of minus infinity.
#define LEAST -200.f

// The next number above a finite one; above zero the first that is normal.
FN float above(float x) {
  const u32 bits = as_bits(x);
  return x == 0.f ? as_float(0x00800000u) : as_float(x > 0.f ? bits + 1 : bits - 1);
}

// What is measured of a row: the entropy of its softmax, and what the label's logit has to be at least to be the first of the largest.
struct Measures { float entropy, bound; };

// The logarithm of the sum of exponentials of a row, and with `wanted` what is measured in the same pass; `at` is the label's column,
// below zero or behind the last if it is another rank's. Every thread gets it.
FN float log_sum_exp(Mat logits, i64 row, i64 vocab, float scale, float cap, i64 at, bool wanted, Measures& measures) {
  float top = -infinity(), sum = 0.f, mean = 0.f, before = -infinity(), v[8], slope[8];
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
    if (most > top) {
      const float by = exp_(top - most);
      if (wanted) mean = top == -infinity() ? 0.f : by * (mean + (top - most) * sum);
      sum *= by;
      top = most;
    }
    // Not from minus infinity, so that all that is as low has an exponential of zero.
    const float from = top == -infinity() ? 0.f : top;
    if (wanted) {
      #pragma unroll
      for (int i = 0; i < 8; i++) {
        const float e = exp_to_88(v[i] - from);
        sum += e;
        mean = fmaf(e, fmaxf(v[i] - from, LEAST), mean);
        before = fmaxf(before, col + i < at ? v[i] : -infinity());
      }
    } else {
      #pragma unroll
      for (int i = 0; i < 8; i++) sum += exp_to_88(v[i] - from);
    }
  }
  const float all = block_max(top);
  const float own = sum;
  sum = team_sum(top == -infinity() ? sum : sum * exp_(top - all), 512);
  if (wanted) {
    mean = team_sum(top == -infinity() ? 0.f : exp_(top - all) * (mean + (top - all) * own), 512);
    before = block_max(before);
    measures.entropy = logf(sum) - mean / sum;
    measures.bound = at >= vocab ? above(all) : before >= all ? infinity() : all;
  }
  return all + logf(sum);
}

// stats and all as in the contract's `Spread`, null if absent; `spread`: the columns are a part, the first is the label `first`.
// With `measures` a rank's statistics have four rows.
ENTRY(512) cross_entropy(Mat logits, const i32* labels, const float* weights, float* loss, Mat dlogits, i64 vocab, float scale, float cap, float z_loss, i32 spread, i64 first, Mat stats, Mat all, i32 ranks, Mat found) {
  const i64 row = blockIdx.x;
  const bool wanted = found.ptr != 0;
  const int each = wanted ? 4 : 2;
  const i32 label = labels[row];
  const bool one = threadIdx.x == 0;
  float v[8], slope[8];
  if (label < 0) {
    if (stats.ptr) {
      if (one) for (int i = 0; i < each; i++) store(stats, i, row, 0.f);
      return;
    }
    if (one) loss[row] = 0.f;
    if (one && wanted) { store(found, 0, row, 0.f); store(found, 1, row, 0.f); }
    if (!dlogits.ptr) return;
    #pragma unroll
    for (int i = 0; i < 8; i++) v[i] = 0.f;
    for (i64 col = (i64)threadIdx.x * 8; col < vocab; col += 4096) store8(dlogits, row, col, vocab - col, v);
    return;
  }
  const i64 at = (i64)label - first;
  const bool here = at >= 0 && at < vocab;
  float lse, target;
  Measures measures{0.f, infinity()};
  if (all.ptr) {
    float top = -infinity(), sum = 0.f;
    target = 0.f;
    for (int rank = 0; rank < ranks; rank++) top = fmaxf(top, load(all, each * rank, row));
    for (int rank = 0; rank < ranks; rank++) {
      sum += expf(load(all, each * rank, row) - top);
      target += load(all, each * rank + 1, row);
    }
    lse = top + logf(sum);
    // With the share w of a rank's columns in the sum of exponentials, H = sum w (H_rank - log w).
    for (int rank = 0; wanted && rank < ranks; rank++) {
      const float log = load(all, 4 * rank, row) - lse, bound = load(all, 4 * rank + 3, row);
      measures.entropy += expf(log) * (load(all, 4 * rank + 2, row) - fmaxf(log, LEAST));
      measures.bound = rank == 0 ? bound : fmaxf(measures.bound, bound);
    }
  } else {
    lse = log_sum_exp(logits, row, vocab, scale, cap, at, wanted, measures);
    // A label that is no column is a mistake that should be noticed; in a part of a vocabulary it is another rank's.
    target = here ? capped(load(logits, row, at), scale, cap, slope[0]) : spread ? 0.f : nan();
  }
  if (stats.ptr) {
    if (one) { store(stats, 0, row, lse); store(stats, 1, row, target); }
    if (one && wanted) { store(stats, 2, row, measures.entropy); store(stats, 3, row, measures.bound); }
    return;
  }
  if (one && wanted) { store(found, 0, row, measures.entropy); store(found, 1, row, target >= measures.bound ? 1.f : 0.f); }
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
