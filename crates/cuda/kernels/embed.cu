// Look-up in a table of rows, and its gradient in a fixed order.
#include "base.cuh"

// The row of an id in a table whose first row is `first`'s; below zero if it has none.
FN i64 row_of(i32 id, i64 first, i64 vocab) {
  const i64 row = (i64)id - first;
  return id < 0 || row < 0 || row >= vocab ? -1 : row;
}

// out[t] (+)= scale table[ids[t]]. An id without a row gives zeros in a part of a table, else NaN, so that it is noticed.
ENTRY(256) embed(const i32* ids, Mat table, Mat out, i64 rows, i64 cols, i64 vocab, i64 first, i32 part, i32 accumulate, float scale, i32 shift, i32 pieces) {
  const Cell c = cell(shift, pieces);
  if (c.row >= rows || c.col >= cols) return;
  const i64 left = cols - c.col, from = row_of(ids[c.row], first, vocab);
  float v[8], old[8];
  if (from < 0) {
    if (part && accumulate) return;
    #pragma unroll
    for (int i = 0; i < 8; i++) v[i] = part ? 0.f : nan();
  } else {
    load8(v, table, from, c.col, left);
    if (accumulate) load8(old, out, c.row, c.col, left);
    #pragma unroll
    for (int i = 0; i < 8; i++) v[i] = accumulate ? fmaf(scale, v[i], old[i]) : scale * v[i];
  }
  store8(out, c.row, c.col, left, v);
}

// dtable[ids[t]] += scale dy[t] for the rows of a window, at most 4096, from `start` on, t ascending: a block for each row,
// which does all rows of its id if it is the first of them. Windows follow each other.
ENTRY(256) embed_backward(const i32* ids, Mat dy, Mat dtable, i64 start, i32 count, i64 cols, i64 vocab, i64 first, float scale) {
  __shared__ u32 same[128];
  const i32* window = ids + start;
  const int me = blockIdx.x, id = window[me];
  const i64 to = row_of(id, first, vocab);
  if (to < 0) return;
  bool earlier = false;
  for (int at = threadIdx.x; at < me; at += 256) earlier |= window[at] == id;
  if (__syncthreads_or(earlier)) return;
  for (int at = threadIdx.x; at < 4096; at += 256) {
    const u32 bits = __ballot_sync(~0u, at >= me && at < count && window[at] == id);
    if ((threadIdx.x & 31) == 0) same[at >> 5] = bits;
  }
  __syncthreads();
  for (i64 col = (i64)threadIdx.x * 8; col < cols; col += 2048) {
    float sum[8], v[8];
    load8(sum, dtable, to, col, cols - col);
    for (int word = me >> 5; word < 128; word++)
      for (u32 bits = same[word]; bits; bits &= bits - 1) {
        load8(v, dy, start + word * 32 + __ffs((int)bits) - 1, col, cols - col);
        #pragma unroll
        for (int i = 0; i < 8; i++) sum[i] = fmaf(scale, v[i], sum[i]);
      }
    store8(dtable, to, col, cols - col, sum);
  }
}
