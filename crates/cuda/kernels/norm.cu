// RMSNorm and LayerNorm, forward and backward. A team of threads (32, or a block of 256) has one group of columns of one
// row; which element is whose depends on the width alone.
#include "math.cuh"

enum { CENTRED = 1, PLUS_ONE = 2, ROUND_FIRST = 4 };

FN float normalised(int flags, int type, float x, float mean, float inverse) {
  const float y = (x - mean) * inverse;
  return flags & ROUND_FIRST ? rounded(type, y) : y;
}
FN float factor(int flags, float weight) { return flags & PLUS_ONE ? 1.f + weight : weight; }
FN i64 item_of(int team) { return (i64)blockIdx.x * (256 / team) + threadIdx.x / team; }
// A division of 64 bits takes as long as a load.
FN i64 row_of(i64 item, i32 groups) { return groups == 1 ? item : item / groups; }

// stats: f32 [rows, groups] reciprocal deviations, or pairs of mean and reciprocal deviation if centred.
ENTRY(256) norm_forward(Mat x, Mat weight, Mat bias, Mat out, Mat stats, i64 rows, i32 groups, i32 width, i32 team, i32 flags, float eps) {
  const i64 item = item_of(team), row = row_of(item, groups);
  const int group = (int)(item - row * groups), first = (int)(threadIdx.x % team) * 8, step = team * 8;
  if (row >= rows) return;
  const i64 at = (i64)group * width;
  const int last = first < width ? first + (width - 1 - first) / step * step : -1;
  float v[8], w[8], b[8], mean = 0.f;
  Raw raw_x, raw_w;
  // One weight serves all rows: it is on its way while the first sums are made.
  if (last >= 0) raw_w = fetch8(weight, 0, last, width - last);
  if (flags & CENTRED) {
    float sum = 0.f;
    for (int c = first; c < width; c += step) {
      load8(v, x, row, at + c, width - c);
      #pragma unroll
      for (int i = 0; i < 8; i++) sum += v[i];
    }
    mean = team_sum(sum, team) / (float)width;
  }
  float squares = 0.f;
  for (int c = first; c < width; c += step) {
    raw_x = fetch8(x, row, at + c, width - c);
    widen8(v, x.type, raw_x);
    #pragma unroll
    for (int i = 0; i < 8; i++) if (c + i < width) squares = fmaf(v[i] - mean, v[i] - mean, squares);
  }
  const float inverse = 1.f / sqrtf(team_sum(squares, team) / (float)width + eps);
  if (first == 0) {
    float* to = (float*)stats.ptr + row * stats.stride;
    if (flags & CENTRED) { to[2 * group] = mean; to[2 * group + 1] = inverse; }
    else to[group] = inverse;
  }
  // Backwards, as the last elements are still here.
  for (int c = last; c >= 0; c -= step) {
    if (c != last) {
      raw_x = fetch8(x, row, at + c, width - c);
      raw_w = fetch8(weight, 0, c, width - c);
    }
    if (bias.ptr) load8(b, bias, 0, c, width - c);
    widen8(v, x.type, raw_x);
    widen8(w, weight.type, raw_w);
    #pragma unroll
    for (int i = 0; i < 8; i++) {
      v[i] = normalised(flags, x.type, v[i], mean, inverse) * factor(flags, w[i]);
      if (bias.ptr) v[i] += b[i];
    }
    store8(out, row, at + c, width - c, v);
  }
}

FN void stats_of(Mat stats, i64 row, int group, int flags, float& mean, float& inverse) {
  const float* from = (const float*)stats.ptr + row * stats.stride;
  mean = flags & CENTRED ? from[2 * group] : 0.f;
  inverse = flags & CENTRED ? from[2 * group + 1] : from[group];
}

// dx (+)= (g - mean(g x') x' - mean(g)) / deviation with g = dy w, x' the normalised input; the last mean only if centred.
ENTRY(256) norm_backward_input(Mat x, Mat weight, Mat stats, Mat dy, Mat dx, i64 rows, i32 groups, i32 width, i32 team, i32 flags, i32 accumulate) {
  const i64 item = item_of(team), row = row_of(item, groups);
  const int group = (int)(item - row * groups), first = (int)(threadIdx.x % team) * 8, step = team * 8;
  if (row >= rows) return;
  const i64 at = (i64)group * width;
  const int last = first < width ? first + (width - 1 - first) / step * step : -1;
  float mean, inverse, v[8], w[8], d[8], along = 0.f, offset = 0.f;
  Raw raw_x, raw_w, raw_d, raw_old;
  stats_of(stats, row, group, flags, mean, inverse);
  if (accumulate && last >= 0) raw_old = fetch8(dx, row, at + last, width - last);
  for (int c = first; c < width; c += step) {
    raw_x = fetch8(x, row, at + c, width - c);
    raw_d = fetch8(dy, row, at + c, width - c);
    raw_w = fetch8(weight, 0, c, width - c);
    widen8(v, x.type, raw_x);
    widen8(d, dy.type, raw_d);
    widen8(w, weight.type, raw_w);
    #pragma unroll
    for (int i = 0; i < 8; i++) {
      const float g = d[i] * factor(flags, w[i]);
      along = fmaf(g, (v[i] - mean) * inverse, along);
      offset += g;
    }
  }
  along = team_sum(along, team) / (float)width;
  offset = flags & CENTRED ? team_sum(offset, team) / (float)width : 0.f;
  // Backwards, as the last elements are still here.
  for (int c = last; c >= 0; c -= step) {
    float old[8];
    if (c != last) {
      raw_x = fetch8(x, row, at + c, width - c);
      raw_d = fetch8(dy, row, at + c, width - c);
      raw_w = fetch8(weight, 0, c, width - c);
      if (accumulate) raw_old = fetch8(dx, row, at + c, width - c);
    }
    widen8(v, x.type, raw_x);
    widen8(d, dy.type, raw_d);
    widen8(w, weight.type, raw_w);
    if (accumulate) widen8(old, dx.type, raw_old);
    #pragma unroll
    for (int i = 0; i < 8; i++) {
      const float g = d[i] * factor(flags, w[i]);
      const float gradient = inverse * (fmaf(-along, (v[i] - mean) * inverse, g) - offset);
      v[i] = accumulate ? old[i] + gradient : gradient;
    }
    store8(dx, row, at + c, width - c, v);
  }
}

// Sums of `dy x'`, and of `dy` for the bias, over each chunk of 128 rows from `first_row` on: f32 [chunks, 2 width]. A block
// of 256 has 128 columns of a chunk, four a thread; its eight lines of rows are added in a fixed order. Columns of blocks lie on
// x, chunks on y.
ENTRY(256) norm_weight_chunks(Mat x, Mat stats, Mat dy, float* sums, i64 first_row, i64 rows, i32 groups, i32 width, i32 flags) {
  __shared__ float part[2][8][128];
  const int lane = threadIdx.x & 31, line = threadIdx.x >> 5, first = blockIdx.x * 128 + lane * 4;
  const i64 start = first_row + (i64)blockIdx.y * 128, end = min(start + 128, rows);
  float weight[4] = {}, bias[4] = {};
  i64 row = first < width ? start + line : end;
  // Four elements of a row and group at a time, four of them on their way together.
  for (int group = 0; row < end;) {
    Quad d[4], v[4];
    float mean[4], inverse[4];
    int count = 0;
    #pragma unroll
    for (int j = 0; j < 4; j++) {
      if (row >= end) continue;
      const i64 col = (i64)group * width + first;
      stats_of(stats, row, group, flags, mean[j], inverse[j]);
      d[j] = fetch4(dy, row, col, width - first);
      v[j] = fetch4(x, row, col, width - first);
      count++;
      if (++group == groups) { group = 0; row += 8; }
    }
    #pragma unroll
    for (int j = 0; j < 4; j++) {
      if (j >= count) break;
      #pragma unroll
      for (int i = 0; i < 4; i++) {
        const float g = wide4(dy.type, d[j], i);
        weight[i] = fmaf(g, normalised(flags, x.type, wide4(x.type, v[j], i), mean[j], inverse[j]), weight[i]);
        bias[i] += g;
      }
    }
  }
  #pragma unroll
  for (int i = 0; i < 4; i++) {
    part[0][line][lane * 4 + i] = weight[i];
    part[1][line][lane * 4 + i] = bias[i];
  }
  __syncthreads();
  const int which = threadIdx.x >> 7, at = threadIdx.x & 127, col = blockIdx.x * 128 + at;
  if (col < width) {
    float sum = part[which][0][at];
    for (int i = 1; i < 8; i++) sum += part[which][i][at];
    sums[((i64)blockIdx.y * 2 + which) * width + col] = sum;
  }
}
