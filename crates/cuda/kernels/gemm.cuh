// Matrix products without a library: C (+)= A B for shapes that the library refuses, and products grouped by expert. An
// element of C is one chain of additions over ascending k, begun with what C holds; 16-bit operands in steps of 16.
//
// A side of a product is lines: rows of the tile with k along them, or steps of k with the tile's rows along them. A function
// from a line's number to its offset in elements (below zero: a line of zeros) makes plain and grouped products the same.
#pragma once
#include "mma.cuh"

struct Sizes { i64 m, n, k; };

#define PITCH 40  // of a line of 32 in shared memory: no two lanes of a fragment meet in a bank

// The part of a side that a thread brings: vector v of LINES x 32 elements.
template <int LINES, class Line> FN Quad bring(const u16* base, Line line, bool along, i64 first, i64 lines, i64 k0, i64 k, int v) {
  if (along) {
    const i64 at = first + v / 4, col = k0 + v % 4 * 8;
    return eight(base, at < lines ? line(at) : -1, col, k - col);
  }
  const i64 at = k0 + v / (LINES / 8), col = first + v % (LINES / 8) * 8;
  return eight(base, at < k ? line(at) : -1, col, lines - col);
}
template <int LINES> FN void lay(u16* to, Quad q, bool along, int v) {
  if (along) { *(Quad*)(to + v / 4 * PITCH + v % 4 * 8) = q; return; }
  const int at = v / (LINES / 8), col = v % (LINES / 8) * 8;
  #pragma unroll
  for (int i = 0; i < 8; i++) to[(col + i) * PITCH + at] = (u16)(q.w[i >> 1] >> (16 * (i & 1)));
}

// The tile of 32 MF x 128 of C at (m0, n0); 256 threads, 2 x 4 warps of 16 MF x 32.
template <int TYPE, int MF, class ALine, class BLine, class CLine>
FN void tile16(const char* a, ALine a_line, bool a_along, const char* b, BLine b_line, bool b_along, Mat c, CLine c_line, i64 m0, i64 n0, Sizes size, bool accumulate) {
  __shared__ __align__(16) u16 as[32 * MF * PITCH], bs[128 * PITCH];
  const int me = threadIdx.x, lane = me & 31, g = lane >> 2, t = lane & 3, wm = (me >> 5) / 4 * 16 * MF, wn = (me >> 5) % 4 * 32;
  float acc[MF][4][4];
  #pragma unroll
  for (int f = 0; f < MF; f++)
    #pragma unroll
    for (int half = 0; half < 2; half++) {
      const i64 row = m0 + wm + f * 16 + g + 8 * half, line = accumulate && row < size.m ? c_line(row) : -1;
      #pragma unroll
      for (int j = 0; j < 4; j++)
        #pragma unroll
        for (int i = 0; i < 2; i++) {
          const i64 col = n0 + wn + j * 8 + 2 * t + i;
          acc[f][j][2 * half + i] = line >= 0 && col < size.n ? load_wide(c, line + col) : 0.f;
        }
    }
  Quad qa[MF / 2], qb[2];
  for (i64 k0 = 0; k0 < size.k; k0 += 32) {
    #pragma unroll
    for (int i = 0; i < MF / 2; i++) qa[i] = bring<32 * MF>((const u16*)a, a_line, a_along, m0, size.m, k0, size.k, me + 256 * i);
    #pragma unroll
    for (int i = 0; i < 2; i++) qb[i] = bring<128>((const u16*)b, b_line, b_along, n0, size.n, k0, size.k, me + 256 * i);
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < MF / 2; i++) lay<32 * MF>(as, qa[i], a_along, me + 256 * i);
    #pragma unroll
    for (int i = 0; i < 2; i++) lay<128>(bs, qb[i], b_along, me + 256 * i);
    __syncthreads();
    #pragma unroll
    for (int kk = 0; kk < 32; kk += 16) {
      u32 fa[MF][4], fb[4][2];
      #pragma unroll
      for (int f = 0; f < MF; f++) {
        const u16* p = as + (wm + f * 16 + g) * PITCH + kk + 2 * t;
        fa[f][0] = *(const u32*)p;
        fa[f][1] = *(const u32*)(p + 8 * PITCH);
        fa[f][2] = *(const u32*)(p + 8);
        fa[f][3] = *(const u32*)(p + 8 * PITCH + 8);
      }
      #pragma unroll
      for (int j = 0; j < 4; j++) {
        const u16* p = bs + (wn + j * 8 + g) * PITCH + kk + 2 * t;
        fb[j][0] = *(const u32*)p;
        fb[j][1] = *(const u32*)(p + 8);
      }
      #pragma unroll
      for (int f = 0; f < MF; f++)
        #pragma unroll
        for (int j = 0; j < 4; j++) mma<TYPE>(acc[f][j], fa[f], fb[j]);
    }
  }
  #pragma unroll
  for (int f = 0; f < MF; f++)
    #pragma unroll
    for (int half = 0; half < 2; half++) {
      const i64 row = m0 + wm + f * 16 + g + 8 * half, line = row < size.m ? c_line(row) : -1;
      if (line < 0) continue;
      #pragma unroll
      for (int j = 0; j < 4; j++)
        #pragma unroll
        for (int i = 0; i < 2; i++) {
          const i64 col = n0 + wn + j * 8 + 2 * t + i;
          if (col < size.n) store_wide(c, line + col, acc[f][j][2 * half + i]);
        }
    }
}

// The tile of 64 x 64 of C at (m0, n0) in f32; 256 threads of 4 x 4.
template <class ALine, class BLine, class CLine>
FN void tile32(const char* a, ALine a_line, bool a_along, const char* b, BLine b_line, bool b_along, Mat c, CLine c_line, i64 m0, i64 n0, Sizes size, bool accumulate) {
  __shared__ float as[16][68], bs[16][68];
  const int me = threadIdx.x, tx = me & 15, ty = me >> 4;
  float acc[4][4];
  #pragma unroll
  for (int i = 0; i < 4; i++)
    #pragma unroll
    for (int j = 0; j < 4; j++) {
      const i64 row = m0 + ty * 4 + i, col = n0 + tx * 4 + j;
      const i64 line = accumulate && row < size.m && col < size.n ? c_line(row) : -1;
      acc[i][j] = line < 0 ? 0.f : load_wide(c, line + col);
    }
  for (i64 k0 = 0; k0 < size.k; k0 += 16) {
    __syncthreads();
    #pragma unroll
    for (int side = 0; side < 2; side++) {
      const bool along = side ? b_along : a_along;
      const i64 first = side ? n0 : m0, lines = side ? size.n : size.m;
      const float* base = (const float*)(side ? b : a);
      const i64 at = along ? first + me / 4 : k0 + me / 16, col = along ? k0 + me % 4 * 4 : first + me % 16 * 4;
      const i64 offset = at < (along ? lines : size.k) ? side ? b_line(at) : a_line(at) : -1, end = along ? size.k : lines;
      #pragma unroll
      for (int i = 0; i < 4; i++) {
        const float x = offset >= 0 && col + i < end ? base[offset + col + i] : 0.f;
        float* to = side ? &bs[0][0] : &as[0][0];
        if (along) to[(me % 4 * 4 + i) * 68 + me / 4] = x;
        else to[me / 16 * 68 + me % 16 * 4 + i] = x;
      }
    }
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < 16; k++) {
      float x[4], y[4];
      #pragma unroll
      for (int i = 0; i < 4; i++) { x[i] = as[k][ty * 4 + i]; y[i] = bs[k][tx * 4 + i]; }
      #pragma unroll
      for (int i = 0; i < 4; i++)
        #pragma unroll
        for (int j = 0; j < 4; j++) acc[i][j] = fmaf(x[i], y[j], acc[i][j]);
    }
  }
  #pragma unroll
  for (int i = 0; i < 4; i++)
    #pragma unroll
    for (int j = 0; j < 4; j++) {
      const i64 row = m0 + ty * 4 + i, col = n0 + tx * 4 + j;
      if (row >= size.m || col >= size.n) continue;
      const i64 line = c_line(row);
      if (line >= 0) store_wide(c, line + col, acc[i][j]);
    }
}

// Calls the tile's function of a storage type.
template <int TYPE, int MF> struct Tile {
  template <class A, class B, class C>
  static FN_MEMBER void run(const char* a, A al, bool aa, const char* b, B bl, bool ba, Mat c, C cl, i64 m0, i64 n0, Sizes s, bool acc) {
    tile16<TYPE, MF>(a, al, aa, b, bl, ba, c, cl, m0, n0, s, acc);
  }
};
template <int MF> struct Tile<F32, MF> {
  template <class A, class B, class C>
  static FN_MEMBER void run(const char* a, A al, bool aa, const char* b, B bl, bool ba, Mat c, C cl, i64 m0, i64 n0, Sizes s, bool acc) {
    tile32(a, al, aa, b, bl, ba, c, cl, m0, n0, s, acc);
  }
};

// Lines at a stride.
struct Even { i64 stride, first; FN_MEMBER i64 operator()(i64 at) const { return (first + at) * stride; } };
// Lines that a table in shared memory names, `base` its first.
struct Listed { const i64* list; i64 base; FN_MEMBER i64 operator()(i64 at) const { return list[at - base]; } };
// A row for each slot of an expert's list: `width` columns of the token's row, or all of it if the slots share it.
struct Slots {
  const i32* order; i64 stride; i32 slots, width;
  FN_MEMBER i64 operator()(i64 at) const {
    const i32 slot = order[at];
    return slot < 0 ? -1 : (i64)(slot / slots) * stride + (i64)(slot % slots) * width;
  }
};

// C (+)= op(A) op(B): a block for each tile of C, 128 x 128 (f32: 64 x 64), `across` of them in a row.
template <int TYPE> FN void plain(Mat a, Mat b, Mat c, i64 m, i64 n, i64 k, i32 a_trans, i32 b_trans, i32 accumulate, i32 across) {
  const i64 side = TYPE == F32 ? 64 : 128;
  Even al = {a.stride, 0}, bl = {b.stride, 0}, cl = {c.stride, 0};
  Sizes size = {m, n, k};
  Tile<TYPE, 4>::run(a.ptr, al, !a_trans, b.ptr, bl, b_trans, c, cl, (i64)(blockIdx.x / across) * side, (i64)(blockIdx.x % across) * side, size, accumulate);
}

// C = A op(W_e) by slots sorted by expert: a block for each tile of 64 slots of one expert by 128 columns (f32: 64), `across`
// of them beside each other; blocks beyond the last tile do nothing.
template <int TYPE> FN void grouped(Mat a, Mat w, Mat c, const i32* order, const i32* starts, const i32* tiles, i32 experts, i32 slots, i64 inner, i64 out, i32 trans, i32 shared, i32 across) {
  __shared__ i64 from[64], to[64];
  const int tile = blockIdx.x / across;
  if (tile >= tiles[experts]) return;
  int e = 0;
  for (int step = 512; step; step >>= 1) if (e + step < experts && tiles[e + step] <= tile) e += step;
  // An expert without slots has no tile: the last one that begins here is the one.
  const i64 row0 = starts[e] + (i64)(tile - tiles[e]) * 64;
  const int rows = min((i64)64, starts[e + 1] - row0);
  if (threadIdx.x < 64) {
    const int slot = (int)threadIdx.x < rows ? order[row0 + threadIdx.x] : -1;
    from[threadIdx.x] = slot < 0 ? -1 : slot / slots * a.stride + (shared ? 0 : slot % slots * inner);
    to[threadIdx.x] = slot < 0 ? -1 : slot / slots * c.stride + slot % slots * out;
  }
  __syncthreads();
  Listed al = {from, 0}, cl = {to, 0};
  Even bl = {w.stride, e * (trans ? out : inner)};
  Sizes size = {rows, out, inner};
  Tile<TYPE, 2>::run(a.ptr, al, true, w.ptr, bl, trans, c, cl, 0, (i64)(blockIdx.x % across) * (TYPE == F32 ? 64 : 128), size, false);
}

// C_e += A_e^T B_e over an expert's list, whose entries below zero are rows of zeros: a block for each tile of 64 x 128 (f32:
// 64 x 64) of each expert, `across` of them beside and `down` below each other.
template <int TYPE> FN void weight(Mat a, Mat b, Mat c, const i32* order, const i32* starts, i32 slots, i64 m, i64 n, i32 a_shared, i32 b_shared, i32 down, i32 across) {
  const int e = blockIdx.x / (down * across), tile = blockIdx.x % (down * across);
  const i32* list = order + starts[e];
  Slots al = {list, a.stride, slots, a_shared ? 0 : (i32)m}, bl = {list, b.stride, slots, b_shared ? 0 : (i32)n};
  Even cl = {c.stride, e * m};
  Sizes size = {m, n, starts[e + 1] - starts[e]};
  if (size.k == 0) return;
  Tile<TYPE, 2>::run(a.ptr, al, false, b.ptr, bl, false, c, cl, (i64)(tile / across) * 64, (i64)(tile % across) * (TYPE == F32 ? 64 : 128), size, true);
}

#define ENTRIES(name, TYPE) \
ENTRY(256) gemm_##name(Mat a, Mat b, Mat c, i64 m, i64 n, i64 k, i32 a_trans, i32 b_trans, i32 accumulate, i32 across) { plain<TYPE>(a, b, c, m, n, k, a_trans, b_trans, accumulate, across); } \
ENTRY(256) grouped_##name(Mat a, Mat w, Mat c, const i32* order, const i32* starts, const i32* tiles, i32 experts, i32 slots, i64 inner, i64 out, i32 trans, i32 shared, i32 across) { grouped<TYPE>(a, w, c, order, starts, tiles, experts, slots, inner, out, trans, shared, across); } \
ENTRY(256) grouped_weight_##name(Mat a, Mat b, Mat c, const i32* order, const i32* starts, i32 slots, i64 m, i64 n, i32 a_shared, i32 b_shared, i32 down, i32 across) { weight<TYPE>(a, b, c, order, starts, slots, m, n, a_shared, b_shared, down, across); }
