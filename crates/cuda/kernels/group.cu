// Rows of experts' slots side by side, for a library that multiplies groups: gathered by the order of the experts' lists, a
// part of `rows` entries from entry `first` on, and sent back to their slots. Elements of 16 bits, columns in eights.
#include "base.cuh"

// The tables of one part, each of `groups`, `pitch` apart: `pointers` [3] of the matrices, `sizes` [6] of m, n, k and of their
// columns' distances; `factors` for the product and for what is there, 16 bytes apart. A matrix is at base + expert x of_group + row of
// the part x of_row. A size below zero is the expert's rows in the part. An expert without rows has no sizes at all: its
// result is left as it is.
ENTRY(256) group_tables(u64* pointers, i32* sizes, float* factors, const i32* starts, i32 groups, i32 pitch, i64 first, i64 rows, u64 base0, u64 base1, u64 base2, i64 group0, i64 group1, i64 group2, i64 row0, i64 row1, i64 row2, i32 m, i32 n, i32 k, i32 ld0, i32 ld1, i32 ld2, float factor) {
  const int e = blockIdx.x * 256 + threadIdx.x;
  if (e == 0) { factors[0] = 1.f; factors[4] = factor; }
  if (e >= groups) return;
  const i64 last = first + rows, from = min(max((i64)starts[e], first), last), count = min(max((i64)starts[e + 1], first), last) - from;
  const i64 at = count ? from - first : 0;
  pointers[e] = base0 + e * group0 + at * row0;
  pointers[pitch + e] = base1 + e * group1 + at * row1;
  pointers[2 * pitch + e] = base2 + e * group2 + at * row2;
  sizes[e] = count && m >= 0 ? m : (i32)count;
  sizes[pitch + e] = count && n >= 0 ? n : (i32)count;
  sizes[2 * pitch + e] = count && k >= 0 ? k : (i32)count;
  sizes[3 * pitch + e] = ld0;
  sizes[4 * pitch + e] = ld1;
  sizes[5 * pitch + e] = ld2;
}

// out[row] = x[slot], `cols` of the token's row or all of it if its slots share it; zeros for what fills up.
ENTRY(256) gather_slots(const u16* x, i64 stride, u16* out, const i32* order, const i32* starts, i32 groups, i64 first, i64 rows, i64 cols, i32 slots, i32 shared, i32 shift, i32 pieces) {
  const Cell c = cell(shift, pieces);
  if (c.row >= rows || c.col >= cols || first + c.row >= starts[groups]) return;
  const i32 slot = order[first + c.row];
  Quad q = {{0, 0, 0, 0}};
  if (slot >= 0) {
    const u16* from = x + (i64)(slot / slots) * stride + (shared ? 0 : (i64)(slot % slots) * cols) + c.col;
    if (((u64)from & 15u) == 0) q = *(const Quad*)from;
    else {
      #pragma unroll
      for (int i = 0; i < 4; i++) q.w[i] = from[2 * i] | (u32)from[2 * i + 1] << 16;
    }
  }
  *(Quad*)(out + c.row * cols + c.col) = q;
}

// out[slot] = x[row], whose rows have no gaps.
ENTRY(256) scatter_slots(Mat x, Mat out, const i32* order, const i32* starts, i32 groups, i64 first, i64 rows, i64 cols, i32 slots, i32 shift, i32 pieces) {
  const Cell c = cell(shift, pieces);
  if (c.row >= rows || c.col >= cols || first + c.row >= starts[groups]) return;
  const i32 slot = order[first + c.row];
  if (slot < 0) return;
  float v[8];
  load8(v, x, c.row, c.col, cols - c.col);
  store8(out, slot / slots, slot % slots * cols + c.col, cols - c.col, v);
}
