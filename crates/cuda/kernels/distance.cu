// Distances of rows from others and their gradient, a block of 256 for each row. dx may be target.
#include "math.cuh"

ENTRY(256) row_distance(Mat x, Mat target, const i32* labels, const float* weights, float* loss, Mat dx, i64 cols, float factor, i32 cosine) {
  const i64 row = blockIdx.x;
  const bool one = threadIdx.x == 0;
  if (labels[row] < 0) {
    if (one) loss[row] = 0.f;
    for (i64 col = threadIdx.x; col < cols; col += 256) store(dx, row, col, 0.f);
    return;
  }
  // Squared differences; or the product of both rows, and the squares of each.
  float a = 0.f, b = 0.f, c = 0.f;
  for (i64 col = threadIdx.x; col < cols; col += 256) {
    const float s = load(x, row, col), t = load(target, row, col);
    if (cosine) { a = fmaf(s, t, a); b = fmaf(s, s, b); c = fmaf(t, t, c); }
    else a = fmaf(s - t, s - t, a);
  }
  a = team_sum(a, 256);
  float by = factor * weights[row], along = 0.f;
  if (cosine) {
    const float of_x = fmaxf(sqrtf(team_sum(b, 256)), 1e-8f), of_t = fmaxf(sqrtf(team_sum(c, 256)), 1e-8f);
    const float like = a / (of_x * of_t);
    if (one) loss[row] = 1.f - like;
    along = by * like / (of_x * of_x);
    by = by / (of_x * of_t);
  } else {
    if (one) loss[row] = a / (float)cols;
    by = 2.f * by / (float)cols;
  }
  for (i64 col = threadIdx.x; col < cols; col += 256) {
    const float s = load(x, row, col), t = load(target, row, col);
    store(dx, row, col, cosine ? along * s - by * t : by * (s - t));
  }
}
