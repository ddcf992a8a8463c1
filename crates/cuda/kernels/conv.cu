// Causal depthwise convolutions over the rows of each document, with their gradients. `table` has the first row of each run, and
// after the last run the number of rows.
#include "math.cuh"

enum { TAPS = 8 };

// The run of a row.
FN int run_of(const i32* table, i32 runs, i64 row) {
  int low = 0, high = runs;
  while (low + 1 < high) {
    const int middle = (low + high) / 2;
    if (table[middle] <= row) low = middle;
    else high = middle;
  }
  return low;
}

// A row of u, or of the `taps - 1` rows before the run's first in generation; zero before a document.
FN float before(Mat u, const float* state, i64 row, i64 start, i64 col, i64 cols, i32 taps) {
  if (row >= start) return load_at(u, row, col);
  return state ? state[(taps - 1 + row - start) * cols + col] : 0.f;
}

// The sum of a row and column before its activation.
FN float tapped(Mat u, Mat weight, Mat bias, const float* state, i64 row, i64 start, i64 col, i64 cols, i32 taps) {
  float sum = bias.ptr ? load_at(bias, 0, col) : 0.f;
  for (int k = 0; k < taps; k++)
    sum = fmaf(load_at(weight, col, k), before(u, state, row - taps + 1 + k, start, col, cols, taps), sum);
  return sum;
}

// `rows` rows from `first` on; `state` is that of their run, if they are one.
ENTRY(256) conv(Mat u, Mat weight, Mat bias, Mat out, const i32* table, const float* state, i64 first, i64 rows, i64 cols, i32 runs, i32 taps, i32 silu) {
  const i64 at = (i64)blockIdx.x * 256 + threadIdx.x, row = first + at / cols, col = at % cols;
  if (at >= rows * cols) return;
  const i64 start = state ? first : table[run_of(table, runs, row)];
  const float sum = tapped(u, weight, bias, state, row, start, col, cols, taps);
  store_at(out, row, col, silu ? sum * sigmoid(sum) : sum);
}

// The last rows that the next of a run will read; a thread has a column.
ENTRY(256) conv_state(Mat u, float* state, i64 first, i64 rows, i64 cols, i32 taps) {
  const i64 col = (i64)blockIdx.x * 256 + threadIdx.x;
  if (col >= cols) return;
  for (int k = 0; k < taps - 1; k++)
    state[k * cols + col] = before(u, state, first + rows - taps + 1 + k, first, col, cols, taps);
}

// The gradient of a row's sum.
FN float slope_of(Mat u, Mat weight, Mat bias, Mat dy, i64 row, i64 start, i64 col, i64 cols, i32 taps, i32 silu) {
  const float g = load_at(dy, row, col);
  if (!silu) return g;
  const float sum = tapped(u, weight, bias, 0, row, start, col, cols, taps), s = sigmoid(sum);
  return g * s * fmaf(sum, 1.f - s, 1.f);
}

ENTRY(256) conv_backward(Mat u, Mat weight, Mat bias, Mat dy, Mat du, const i32* table, i64 rows, i64 cols, i32 runs, i32 taps, i32 silu) {
  const i64 at = (i64)blockIdx.x * 256 + threadIdx.x, row = at / cols, col = at % cols;
  if (row >= rows) return;
  const int run = run_of(table, runs, row);
  const i64 start = table[run], end = table[run + 1];
  float sum = 0.f;
  for (int k = taps - 1; k >= 0; k--) {
    const i64 later = row + taps - 1 - k;
    if (later >= end) break;
    sum = fmaf(load_at(weight, col, k), slope_of(u, weight, bias, dy, later, start, col, cols, taps, silu), sum);
  }
  store_at(du, row, col, sum);
}

// Sums over each chunk of 128 rows from `first` on, for each column of its taps and then of the bias: f32 [chunks, cols x taps
// and cols]. Columns of blocks lie on x, chunks on y.
ENTRY(256) conv_chunks(Mat u, Mat weight, Mat bias, Mat dy, const i32* table, float* sums, i64 first, i64 rows, i64 cols, i32 runs, i32 taps, i32 silu) {
  const i64 col = (i64)blockIdx.x * 256 + threadIdx.x, begin = first + (i64)blockIdx.y * 128, end = min(begin + 128, rows);
  if (col >= cols) return;
  float of_taps[TAPS] = {}, of_bias = 0.f;
  int run = run_of(table, runs, begin);
  for (i64 row = begin; row < end; row++) {
    while (table[run + 1] <= row) run++;
    const i64 start = table[run];
    const float g = slope_of(u, weight, bias, dy, row, start, col, cols, taps, silu);
    of_bias += g;
    #pragma unroll
    for (int k = 0; k < TAPS; k++)
      if (k < taps) of_taps[k] = fmaf(g, before(u, 0, row - taps + 1 + k, start, col, cols, taps), of_taps[k]);
  }
  float* to = sums + (i64)blockIdx.y * cols * (taps + 1);
  #pragma unroll
  for (int k = 0; k < TAPS; k++)
    if (k < taps) to[col * taps + k] = of_taps[k];
  to[cols * taps + col] = of_bias;
}
