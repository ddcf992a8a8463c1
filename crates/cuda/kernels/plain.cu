// Copies, conversions, sums, multiples: `out = f(a, b)` element by element. Types may differ; an output may be an input.
#include "math.cuh"

// out = x, converted.
ENTRY(256) copy(Mat x, Mat out, i64 rows, i64 cols, i32 shift, i32 pieces) {
  each8(x, out, rows, cols, shift, pieces, [](float v, i64, i64) { return v; });
}

// out = x, bytes as they are. Columns and strides count bytes.
ENTRY(256) copy_bytes(const u8* x, i64 x_stride, u8* out, i64 out_stride, i64 rows, i64 cols, i32 shift, i32 pieces) {
  const Cell c = cell(shift, pieces);
  if (c.row >= rows || c.col >= cols) return;
  const u8* from = x + c.row * x_stride + c.col;
  u8* to = out + c.row * out_stride + c.col;
  if (c.col + 8 <= cols && (((u64)from | (u64)to) & 7u) == 0) *(u64*)to = *(const u64*)from;
  else for (i64 i = 0; i < 8 && c.col + i < cols; i++) to[i] = from[i];
}

// All bits zero. Columns and the stride count bytes.
ENTRY(256) zero_bytes(u8* out, i64 stride, i64 rows, i64 cols, i32 shift, i32 pieces) {
  const Cell c = cell(shift, pieces);
  if (c.row >= rows || c.col >= cols) return;
  u8* to = out + c.row * stride + c.col;
  if (c.col + 8 <= cols && ((u64)to & 7u) == 0) *(u64*)to = 0;
  else for (i64 i = 0; i < 8 && c.col + i < cols; i++) to[i] = 0;
}

// out = f(a, b). A stride of zero makes one row serve all.
template <class F> FN void pairs8(Mat a, Mat b, Mat out, i64 rows, i64 cols, i32 shift, i32 pieces, F f) {
  const Cell c = cell(shift, pieces);
  if (c.row >= rows || c.col >= cols) return;
  const Raw raw_a = fetch8(a, c.row, c.col, cols - c.col), raw_b = fetch8(b, c.row, c.col, cols - c.col);
  float v[8], w[8];
  widen8(v, a.type, raw_a);
  widen8(w, b.type, raw_b);
  #pragma unroll
  for (int i = 0; i < 8; i++) v[i] = f(v[i], w[i]);
  store8(out, c.row, c.col, cols - c.col, v);
}

// out = a + b.
ENTRY(256) add(Mat a, Mat b, Mat out, i64 rows, i64 cols, i32 shift, i32 pieces) {
  pairs8(a, b, out, rows, cols, shift, pieces, [](float a, float b) { return a + b; });
}

// out = a b.
ENTRY(256) multiply(Mat a, Mat b, Mat out, i64 rows, i64 cols, i32 shift, i32 pieces) {
  pairs8(a, b, out, rows, cols, shift, pieces, [](float a, float b) { return a * b; });
}

// out = 1 / sqrt(x).
ENTRY(256) reciprocal_root(Mat x, Mat out, i64 rows, i64 cols, i32 shift, i32 pieces) {
  each8(x, out, rows, cols, shift, pieces, [](float v, i64, i64) { return 1.0f / sqrtf(v); });
}

// out = factor x.
ENTRY(256) scale(Mat x, Mat out, i64 rows, i64 cols, i32 shift, i32 pieces, float factor) {
  each8(x, out, rows, cols, shift, pieces, [=](float v, i64, i64) { return factor * v; });
}

// x = cap tanh(x / cap).
ENTRY(256) softcap(Mat x, i64 rows, i64 cols, i32 shift, i32 pieces, float cap) {
  each8(x, x, rows, cols, shift, pieces, [=](float v, i64, i64) { return cap * tanh_(v / cap); });
}

// out[c, r] = x[r, c], converted: by tiles of 32 x 32, 256 threads, one block a tile, `across` tiles in a row of tiles.
ENTRY(256) transpose(Mat x, Mat out, i64 rows, i64 cols, i32 across) {
  __shared__ float tile[32][33];
  const i64 r0 = (i64)(blockIdx.x / across) * 32, c0 = (i64)(blockIdx.x % across) * 32;
  const int lane = threadIdx.x & 31, line = threadIdx.x >> 5;
  for (int i = line; i < 32; i += 8)
    if (r0 + i < rows && c0 + lane < cols) tile[i][lane] = load(x, r0 + i, c0 + lane);
  __syncthreads();
  for (int i = line; i < 32; i += 8)
    if (c0 + i < cols && r0 + lane < rows) store(out, c0 + i, r0 + lane, tile[lane][i]);
}
