// How far a student's distribution is from a teacher's, over a tile of logits, with its gradient: a block of 512 for each row. With
// the student's probabilities q, the teacher's p and m = beta p + (1 - beta) q it is beta KL(p, m) + (1 - beta) KL(q, m), at the ends
// KL(p, q) and KL(q, p). First the parts of a rank's columns, then with those of all ranks loss and gradient. Logarithms of
// probabilities are l_q and l_p.
#include "math.cuh"

FN float through(float x, float scale, float cap, float& slope) {
  x = scale * x;
  slope = 1.f;
  if (cap == 0.f) return x;
  const float t = tanh_(x / cap);
  slope = fmaf(-t, t, 1.f);
  return cap * t;
}

// The logarithm of the sum of exponentials over all ranks.
FN float of_ranks(Mat stats, i32 ranks, i64 row) {
  float top = -infinity(), sum = 0.f;
  for (int rank = 0; rank < ranks; rank++) top = fmaxf(top, load(stats, 2 * rank, row));
  for (int rank = 0; rank < ranks; rank++) sum += expf(load(stats, 2 * rank, row) - top);
  return top + logf(sum);
}

FN float mixture(float beta, float q, float p) {
  const float top = p < q ? q : p, at_top = p < q ? 1.f - beta : beta;
  return top + logf(at_top + (1.f - at_top) * exp_(-fabsf(p - q)));
}

// The terms of a column in the divergence, and in the mean of its slopes under the student.
FN float column(float beta, float q, float p, float& of_q) {
  if (beta == 0.f) { of_q = 0.f; return exp_(p) * (p - q); }
  if (beta == 1.f) { of_q = exp_(q) * (q - p); return of_q; }
  const float m = mixture(beta, q, p);
  of_q = (1.f - beta) * exp_(q) * (q - m);
  return beta * exp_(p) * (p - m) + of_q;
}

FN float by_logit(float beta, float q, float p, float mean) {
  if (beta == 0.f) return exp_(q) - exp_(p);
  if (beta == 1.f) return exp_(q) * (q - p - mean);
  return exp_(q) * ((1.f - beta) * (q - mixture(beta, q, p)) - mean);
}

FN void row_of_zeros(Mat to, i64 row, i64 vocab) {
  for (i64 col = threadIdx.x; col < vocab; col += 512) store(to, row, col, 0.f);
}

// Without an output the parts are written.
ENTRY(512) divergence(Mat logits, Mat stats, float scale, float cap, Mat teacher, Mat of_teacher, float t_scale, float t_cap, i32 ranks, const i32* labels, float* parts, i64 rows, i64 vocab, float beta, float* loss, Mat dlogits, const float* weights, float factor) {
  const i64 row = blockIdx.x;
  const bool one = threadIdx.x == 0;
  if (labels[row] < 0) {
    if (!dlogits.ptr) {
      if (one) { parts[row] = 0.f; parts[rows + row] = 0.f; }
      return;
    }
    if (one) loss[row] = 0.f;
    row_of_zeros(dlogits, row, vocab);
    return;
  }
  const float lse = of_ranks(stats, ranks, row), lse_t = of_ranks(of_teacher, ranks, row);
  float slope, unused;
  if (!dlogits.ptr) {
    float sum = 0.f, sum_q = 0.f;
    for (i64 col = threadIdx.x; col < vocab; col += 512) {
      const float q = through(load(logits, row, col), scale, cap, slope) - lse;
      const float p = through(load(teacher, row, col), t_scale, t_cap, unused) - lse_t;
      float of_q;
      sum += column(beta, q, p, of_q);
      sum_q += of_q;
    }
    sum = team_sum(sum, 512);
    sum_q = team_sum(sum_q, 512);
    if (one) { parts[row] = sum; parts[rows + row] = sum_q; }
    return;
  }
  const float mean = parts[rows + row], by = factor * weights[row] * scale;
  if (one) loss[row] = parts[row];
  for (i64 col = threadIdx.x; col < vocab; col += 512) {
    const float q = through(load(logits, row, col), scale, cap, slope) - lse;
    const float p = through(load(teacher, row, col), t_scale, t_cap, unused) - lse_t;
    store(dlogits, row, col, by * slope * by_logit(beta, q, p, mean));
  }
}

// The divergence of one of the best tokens, and its derivative by the logarithm of the student's probability.
FN float pair(float beta, float q, float p, float& slope) {
  const float eq = expf(q), ep = expf(p);
  if (beta == 0.f) { slope = -ep; return ep * (p - q); }
  if (beta == 1.f) { slope = eq * (q - p + 1.f); return eq * (q - p); }
  const float m = mixture(beta, q, p);
  slope = (1.f - beta) * eq * (q - m);
  return beta * ep * (p - m) + slope;
}

FN float tail_of(float mass) { return logf(-expm1f(mass)); }

// The same over the teacher's k best tokens: of the parts a row for each, what the student says of it. `rest`: what is left of the
// mass is one more token, and the logarithm of the best tokens' mass is at most `closest`.
ENTRY(512) divergence_of_best(Mat logits, Mat stats, float scale, float cap, const i32* ids, const float* logps, i64 k, i32 rest, float closest, i32 ranks, const i32* labels, float* parts, i64 rows, i64 vocab, i64 first, float beta, float* loss, Mat dlogits, const float* weights, float factor) {
  const i64 row = blockIdx.x;
  const bool one = threadIdx.x == 0, ignored = labels[row] < 0;
  float slope;
  if (!dlogits.ptr) {
    for (i64 i = threadIdx.x; i < k; i += 512) {
      const i64 at = (i64)ids[row * k + i] - first;
      const bool here = !ignored && at >= 0 && at < vocab;
      parts[i * rows + row] = here ? through(load(logits, row, at), scale, cap, slope) : 0.f;
    }
    return;
  }
  if (ignored) {
    if (one) loss[row] = 0.f;
    row_of_zeros(dlogits, row, vocab);
    return;
  }
  const float lse = of_ranks(stats, ranks, row);
  // Every thread has these sums in the same order.
  float top_q = -infinity(), top_p = -infinity(), of_q = 0.f, of_p = 0.f;
  for (i64 i = 0; i < k; i++) {
    top_q = fmaxf(top_q, parts[i * rows + row] - lse);
    top_p = fmaxf(top_p, logps[row * k + i]);
  }
  for (i64 i = 0; i < k; i++) {
    of_q += expf(parts[i * rows + row] - lse - top_q);
    of_p += expf(logps[row * k + i] - top_p);
  }
  of_q = top_q + logf(of_q);
  of_p = top_p + logf(of_p);
  const float norm_q = rest ? 0.f : of_q, norm_p = rest ? 0.f : of_p;
  float sum = 0.f, all = 0.f, by_mass, others = 0.f;
  for (i64 i = 0; i < k; i++) {
    float each;
    sum += pair(beta, parts[i * rows + row] - lse - norm_q, logps[row * k + i] - norm_p, each);
    all += each;
  }
  by_mass = all;
  if (rest) {
    const float rest_q = tail_of(fminf(of_q, closest)), rest_p = tail_of(fminf(of_p, closest));
    float of_rest;
    sum += pair(beta, rest_q, rest_p, of_rest);
    const float each = of_q < closest ? of_rest / expf(rest_q) : 0.f;
    by_mass += each * -expm1f(of_q);
    others = each * expf(of_q) - all;
  }
  if (one) loss[row] = sum;
  const float by = factor * weights[row] * scale;
  for (i64 col = threadIdx.x; col < vocab; col += 512) {
    const float q = through(load(logits, row, col), scale, cap, slope) - lse;
    store(dlogits, row, col, by * others * exp_(q) * slope);
  }
  __syncthreads();
  for (i64 i = threadIdx.x; i < k; i += 512) {
    const i64 at = (i64)ids[row * k + i] - first;
    if (at < 0 || at >= vocab) continue;
    const float q = parts[i * rows + row] - lse - norm_q;
    float each;
    pair(beta, q, logps[row * k + i] - norm_p, each);
    through(load(logits, row, at), scale, cap, slope);
    store(dlogits, row, at, by * slope * (each - expf(q) * by_mass));
  }
}
