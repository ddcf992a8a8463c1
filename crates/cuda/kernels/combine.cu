// Sums of experts' results over the slots of a token, with their gradients.
#include "base.cuh"

// out = sum over slots of weight y, slots ascending; the plain sum without weights.
ENTRY(256) combine(Mat y, Mat weights, Mat out, i64 rows, i64 cols, i32 slots, i32 shift, i32 pieces) {
  const Cell c = cell(shift, pieces);
  if (c.row >= rows || c.col >= cols) return;
  float sum[8], v[8];
  #pragma unroll
  for (int i = 0; i < 8; i++) sum[i] = 0.f;
  for (int slot = 0; slot < slots; slot++) {
    const float weight = weights.ptr ? load(weights, c.row, slot) : 1.f;
    load8(v, y, c.row, slot * cols + c.col, cols - c.col);
    #pragma unroll
    for (int i = 0; i < 8; i++) sum[i] = fmaf(weight, v[i], sum[i]);
  }
  store8(out, c.row, c.col, cols - c.col, sum);
}

// dy = weight dout.
ENTRY(256) combine_backward(Mat weights, Mat dout, Mat dy, i64 rows, i64 cols, i32 slots, i32 shift, i32 pieces) {
  const Cell c = cell(shift, pieces);
  if (c.row >= rows || c.col >= cols) return;
  float d[8], v[8];
  load8(d, dout, c.row, c.col, cols - c.col);
  for (int slot = 0; slot < slots; slot++) {
    const float weight = load(weights, c.row, slot);
    #pragma unroll
    for (int i = 0; i < 8; i++) v[i] = weight * d[i];
    store8(dy, c.row, slot * cols + c.col, cols - c.col, v);
  }
}

// dweights = dout . y: a team for each slot of each token.
ENTRY(256) combine_weights(Mat y, Mat dout, Mat dweights, i64 rows, i64 cols, i32 slots, i32 team) {
  const i64 item = (i64)blockIdx.x * (256 / team) + threadIdx.x / team, row = item / slots;
  const int slot = (int)(item % slots);
  if (row >= rows) return;
  float d[8], v[8], sum = 0.f;
  for (i64 col = (i64)(threadIdx.x % team) * 8; col < cols; col += team * 8) {
    load8(d, dout, row, col, cols - col);
    load8(v, y, row, slot * cols + col, cols - col);
    #pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(d[i], v[i], sum);
  }
  sum = team_sum(sum, team);
  if (threadIdx.x % team == 0) store(dweights, row, slot, sum);
}

// Zeros for the results of empty slots: cells of [tokens x slots, out].
ENTRY(256) zero_empty(const i32* index, Mat c, i64 rows, i64 out, i32 slots, i32 shift, i32 pieces) {
  const Cell at = cell(shift, pieces);
  if (at.row >= rows || at.col >= out || index[at.row] >= 0) return;
  float v[8];
  #pragma unroll
  for (int i = 0; i < 8; i++) v[i] = 0.f;
  store8(c, at.row / slots, at.row % slots * out + at.col, out - at.col, v);
}
