// Attention on tensor cores (Dao, "FlashAttention-2"), heads of at most 128 columns in bf16 or f16, any mask of slices. Like
// attention.cu it is deterministic: a block has 64 rows (of queries, or of keys for dK and dV), its four warps 16 each; what a
// row adds up runs over slices in their order and ascending tiles within one, and nothing is added by two blocks.
#pragma once
#include "math.cuh"
#include "mma.cuh"

struct Masking { const i64* table; const i32* count; i64 fixed; const i32* pos_q; const i32* pos_k; };
struct Scoring { float scale, cap; };

#define LOG2E 1.44269504088896340736f
#define LN2 0.693147180559945309417f

#ifdef EMU
FN float exp2_(float x) { return exp2f(x); }
#else
FN float exp2_(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
#endif

FN i64 slices_of(Masking m) { return m.count ? max((i64)0, min((i64)*m.count, m.fixed)) : m.fixed; }

// A raw product as logit in log2 units; its derivative by the scaled product. The cap, which few models have, is a call.
SLOW float capped_tanh(float x, Scoring how) { return tanh_(x * how.scale / how.cap); }
FN float logit2(float x, Scoring how, float& slope) {
  slope = 1.f;
  if (how.cap == 0.f) return x * (how.scale * LOG2E);
  const float t = capped_tanh(x, how);
  slope = 1.f - t * t;
  return how.cap * t * LOG2E;
}

// Rows `first` and `count` - 1 more of m, `dim` columns from `col` on, into lines of D + 8; zeros outside start..end.
template <int D> FN void bring_rows(u16* to, Mat m, i64 first, int count, i64 start, i64 end, i64 col, int dim) {
  for (int v = threadIdx.x; v < count * (D / 8); v += 128) {
    const int line = v / (D / 8), c = v % (D / 8) * 8;
    const i64 row = first + line;
    *(Quad*)(to + line * (D + 8) + c) = eight((const u16*)m.ptr, row >= start && row < end ? row * m.stride : -1, col + c, dim - c);
  }
}
// Fragments of 16 rows of lines, for A by rows: rows g and g + 8, columns k, k + 1 and k + 8, k + 9.
template <int D> FN void rows_of(u32 (&a)[4], const u16* lines, int k) {
  a[0] = *(const u32*)(lines + k);
  a[1] = *(const u32*)(lines + 8 * (D + 8) + k);
  a[2] = *(const u32*)(lines + k + 8);
  a[3] = *(const u32*)(lines + 8 * (D + 8) + k + 8);
}
// For B whose k runs down the lines: lines k, k + 1 and k + 8, k + 9 of one column.
template <int D> FN void down_of(u32 (&b)[2], const u16* at) {
  b[0] = at[0] | (u32)at[D + 8] << 16;
  b[1] = at[8 * (D + 8)] | (u32)at[9 * (D + 8)] << 16;
}
// The same as fragments, of rows in device memory; zeros beyond.
template <int D> FN void fragments(u32 (&f)[D / 16][4], Mat m, i64 row, i64 rows, i64 col, int dim, int t) {
  #pragma unroll
  for (int ks = 0; ks < D / 16; ks++)
    #pragma unroll
    for (int i = 0; i < 4; i++) {
      const i64 r = row + 8 * (i & 1);
      const int c = ks * 16 + 2 * t + 8 * (i >> 1);
      const u16* p = (const u16*)m.ptr + r * m.stride + col + c;
      f[ks][i] = r < rows && c < dim ? p[0] | (u32)p[1] << 16 : 0u;
    }
}

// The least and greatest of up to 64 positions from `first` on; in every lane.
struct Range { i32 least, most; };
FN Range range_of(const i32* pos, i64 first, i64 rows, int lane) {
  Range r; r.least = 0x7fffffff; r.most = -0x7fffffff - 1;
  for (int i = 0; i < 2; i++)
    if (first + 32 * i + lane < rows) {
      const i32 p = pos[first + 32 * i + lane];
      r.least = min(r.least, p);
      r.most = max(r.most, p);
    }
  for (int o = 16; o; o >>= 1) {
    r.least = min(r.least, __shfl_xor_sync(~0u, r.least, o));
    r.most = max(r.most, __shfl_xor_sync(~0u, r.most, o));
  }
  return r;
}

// The part of a tile of keys (or queries) that the slice lets attend, given the range of the other side's positions: bit 0 perhaps some,
// bit 1 all. `sign` 1: the tile's are keys, -1: queries. Every warp finds the same.
FN int cover(const i32* pos, i64 first, int count, i64 start, i64 end, Range other, i64 lo, i64 hi, int sign, int lane) {
  bool some = false, all = true;
  for (int i = lane; i < count; i += 32) {
    const i64 at = first + i;
    const bool in = at >= start && at < end;
    const i64 p = in ? pos[at] : 0;
    const i64 least = sign > 0 ? p - other.most : other.least - p, most = sign > 0 ? p - other.least : other.most - p;
    some |= in && most >= lo && least <= hi;
    all &= in && least >= lo && most <= hi;
  }
  return (__any_sync(~0u, some) ? 1 : 0) | (__any_sync(~0u, !all) ? 0 : 2);
}

template <int TYPE, int D> FN void forward(Mat q, Mat k, Mat v, Mat out, Mat lse, Masking mask, Scoring how, const float* sinks, i64 rows, i32 heads, i32 kv_heads, i32 dim, i32 resume) {
  __shared__ __align__(16) u16 ks_[64 * (D + 8)], vs[64 * (D + 8)];
  __shared__ i32 kp[64];
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, h = blockIdx.x % heads;
  // The last rows have most keys under a causal mask: they begin first.
  const i64 q0 = ((i64)gridDim.x / heads - 1 - blockIdx.x / heads) * 64, row0 = q0 + (threadIdx.x >> 5) * 16 + g;
  const i64 at = (i64)h * dim, kat = (i64)(h / (heads / kv_heads)) * dim;
  u32 fq[D / 16][4];
  fragments<D>(fq, q, row0, rows, at, dim, t);
  const Range range = range_of(mask.pos_q, q0, rows, lane);
  i32 pos[2];
  float top[2], sum[2], o[D / 8][4], slope;
  #pragma unroll
  for (int r = 0; r < 2; r++) {
    const bool real = row0 + 8 * r < rows;
    pos[r] = real ? mask.pos_q[row0 + 8 * r] : 0;
    const float before = resume && real ? load_wide(lse, (row0 + 8 * r) * lse.stride + h) : -infinity();
    top[r] = before * LOG2E;
    sum[r] = before == -infinity() || t ? 0.f : 1.f;
  }
  #pragma unroll
  for (int d = 0; d < D / 8; d++)
    #pragma unroll
    for (int i = 0; i < 4; i++) {
      const i64 row = row0 + 8 * (i >> 1);
      const int c = d * 8 + 2 * t + (i & 1);
      o[d][i] = resume && row < rows && c < dim && top[i >> 1] != -infinity() ? load_wide(out, row * out.stride + at + c) : 0.f;
    }
  const i64 slices = slices_of(mask);
  for (i64 index = 0; index < slices; index++) {
    const i64* s = mask.table + index * 6;
    const i64 q_start = s[0], q_end = s[1], k_start = s[2], k_end = s[3], lo = s[4], hi = s[5];
    if (q_end <= q0 || q_start >= min(q0 + 64, rows)) continue;
    const bool all_rows = q_start <= q0 && q_end >= q0 + 64;
    for (i64 k0 = k_start & ~63ll; k0 < k_end; k0 += 64) {
      const int covered = cover(mask.pos_k, k0, 64, k_start, k_end, range, lo, hi, 1, lane);
      if (!(covered & 1)) continue;
      const bool all = all_rows && covered & 2;
      __syncthreads();
      bring_rows<D>(ks_, k, k0, 64, k_start, k_end, kat, dim);
      bring_rows<D>(vs, v, k0, 64, k_start, k_end, kat, dim);
      if (threadIdx.x < 64) kp[threadIdx.x] = k0 + threadIdx.x >= k_start && k0 + threadIdx.x < k_end ? mask.pos_k[k0 + threadIdx.x] : 0;
      __syncthreads();
      float x[8][4];
      #pragma unroll
      for (int j = 0; j < 8; j++) {
        x[j][0] = x[j][1] = x[j][2] = x[j][3] = 0.f;
        const u16* line = ks_ + (j * 8 + g) * (D + 8) + 2 * t;
        #pragma unroll
        for (int ks = 0; ks < D / 16; ks++) {
          const u32 b[2] = {*(const u32*)(line + ks * 16), *(const u32*)(line + ks * 16 + 8)};
          mma<TYPE>(x[j], fq[ks], b);
        }
      }
      float next[2] = {top[0], top[1]}, fade[2], base[2];
      #pragma unroll
      for (int j = 0; j < 8; j++)
        #pragma unroll
        for (int i = 0; i < 4; i++) {
          const int c = j * 8 + 2 * t + (i & 1), r = i >> 1;
          x[j][i] = logit2(x[j][i], how, slope);
          if (!all) {
            const i64 row = row0 + 8 * r, apart = (i64)kp[c] - pos[r];
            const bool in = row >= q_start && row < q_end && k0 + c >= k_start && k0 + c < k_end && apart >= lo && apart <= hi;
            x[j][i] = in ? x[j][i] : -infinity();
          }
          next[r] = fmaxf(next[r], x[j][i]);
        }
      #pragma unroll
      for (int r = 0; r < 2; r++) {
        next[r] = fmaxf(next[r], __shfl_xor_sync(~0u, next[r], 1));
        next[r] = fmaxf(next[r], __shfl_xor_sync(~0u, next[r], 2));
        base[r] = next[r] == -infinity() ? 0.f : next[r];
        fade[r] = exp2_(top[r] - base[r]);
        top[r] = next[r];
        sum[r] *= fade[r];
      }
      #pragma unroll
      for (int j = 0; j < 8; j++)
        #pragma unroll
        for (int i = 0; i < 4; i++) {
          x[j][i] = exp2_(x[j][i] - base[i >> 1]);
          sum[i >> 1] += x[j][i];
        }
      #pragma unroll
      for (int d = 0; d < D / 8; d++)
        #pragma unroll
        for (int i = 0; i < 4; i++) o[d][i] *= fade[i >> 1];
      #pragma unroll
      for (int kk = 0; kk < 4; kk++) {
        const u32 a[4] = {pair<TYPE>(x[2 * kk][0], x[2 * kk][1]), pair<TYPE>(x[2 * kk][2], x[2 * kk][3]),
                          pair<TYPE>(x[2 * kk + 1][0], x[2 * kk + 1][1]), pair<TYPE>(x[2 * kk + 1][2], x[2 * kk + 1][3])};
        #pragma unroll
        for (int d = 0; d < D / 8; d++) {
          u32 b[2];
          down_of<D>(b, vs + (kk * 16 + 2 * t) * (D + 8) + d * 8 + g);
          mma<TYPE>(o[d], a, b);
        }
      }
    }
  }
  #pragma unroll
  for (int r = 0; r < 2; r++) {
    sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
    sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    float by = 0.f, total = -infinity();
    if (top[r] != -infinity()) {
      float highest = top[r];
      if (sinks) {
        highest = fmaxf(top[r], sinks[h] * LOG2E);
        sum[r] = sum[r] * exp2_(top[r] - highest) + exp2_(sinks[h] * LOG2E - highest);
      }
      by = exp2_(top[r] - highest) / sum[r];
      total = highest * LN2 + logf(sum[r]);
    }
    const i64 row = row0 + 8 * r;
    if (row >= rows) continue;
    if (t == 0) store_wide(lse, row * lse.stride + h, total);
    #pragma unroll
    for (int d = 0; d < D / 8; d++)
      #pragma unroll
      for (int i = 0; i < 2; i++)
        if (d * 8 + 2 * t + i < dim) store_wide(out, row * out.stride + at + d * 8 + 2 * t + i, o[d][2 * r + i] * by);
  }
}

template <int TYPE, int D> FN void backward_q(Mat q, Mat k, Mat v, Mat dout, Mat lse, const float* delta, Mat dq, Masking mask, Scoring how, i64 rows, i32 heads, i32 kv_heads, i32 dim, i32 accumulate) {
  __shared__ __align__(16) u16 ks_[32 * (D + 8)], vs[32 * (D + 8)];
  __shared__ i32 kp[32];
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, h = blockIdx.x % heads;
  const i64 q0 = ((i64)gridDim.x / heads - 1 - blockIdx.x / heads) * 64, row0 = q0 + (threadIdx.x >> 5) * 16 + g;
  const i64 at = (i64)h * dim, kat = (i64)(h / (heads / kv_heads)) * dim;
  u32 fq[D / 16][4], fo[D / 16][4];
  fragments<D>(fq, q, row0, rows, at, dim, t);
  fragments<D>(fo, dout, row0, rows, at, dim, t);
  const Range range = range_of(mask.pos_q, q0, rows, lane);
  i32 pos[2];
  float total[2], del[2], acc[D / 8][4];
  #pragma unroll
  for (int r = 0; r < 2; r++) {
    const i64 row = row0 + 8 * r;
    pos[r] = row < rows ? mask.pos_q[row] : 0;
    // A row that attends to nothing: no share of anything.
    total[r] = row < rows ? load_wide(lse, row * lse.stride + h) * LOG2E : infinity();
    total[r] = total[r] == -infinity() ? infinity() : total[r];
    del[r] = row < rows ? delta[row * heads + h] : 0.f;
  }
  #pragma unroll
  for (int d = 0; d < D / 8; d++)
    #pragma unroll
    for (int i = 0; i < 4; i++) {
      const i64 row = row0 + 8 * (i >> 1);
      const int c = d * 8 + 2 * t + (i & 1);
      acc[d][i] = accumulate && row < rows && c < dim ? load_wide(dq, row * dq.stride + at + c) : 0.f;
    }
  const i64 slices = slices_of(mask);
  for (i64 index = 0; index < slices; index++) {
    const i64* s = mask.table + index * 6;
    const i64 q_start = s[0], q_end = s[1], k_start = s[2], k_end = s[3], lo = s[4], hi = s[5];
    if (q_end <= q0 || q_start >= min(q0 + 64, rows)) continue;
    const bool all_rows = q_start <= q0 && q_end >= q0 + 64;
    for (i64 k0 = k_start & ~31ll; k0 < k_end; k0 += 32) {
      const int covered = cover(mask.pos_k, k0, 32, k_start, k_end, range, lo, hi, 1, lane);
      if (!(covered & 1)) continue;
      const bool all = all_rows && covered & 2;
      __syncthreads();
      bring_rows<D>(ks_, k, k0, 32, k_start, k_end, kat, dim);
      bring_rows<D>(vs, v, k0, 32, k_start, k_end, kat, dim);
      if (threadIdx.x < 32) kp[threadIdx.x] = k0 + threadIdx.x >= k_start && k0 + threadIdx.x < k_end ? mask.pos_k[k0 + threadIdx.x] : 0;
      __syncthreads();
      float x[4][4];
      #pragma unroll
      for (int j = 0; j < 4; j++) {
        float dp[4] = {0.f, 0.f, 0.f, 0.f};
        x[j][0] = x[j][1] = x[j][2] = x[j][3] = 0.f;
        const u16 *key = ks_ + (j * 8 + g) * (D + 8) + 2 * t, *value = vs + (j * 8 + g) * (D + 8) + 2 * t;
        #pragma unroll
        for (int ks = 0; ks < D / 16; ks++) {
          const u32 b[2] = {*(const u32*)(key + ks * 16), *(const u32*)(key + ks * 16 + 8)};
          const u32 c[2] = {*(const u32*)(value + ks * 16), *(const u32*)(value + ks * 16 + 8)};
          mma<TYPE>(x[j], fq[ks], b);
          mma<TYPE>(dp, fo[ks], c);
        }
        #pragma unroll
        for (int i = 0; i < 4; i++) {
          const int c = j * 8 + 2 * t + (i & 1), r = i >> 1;
          const i64 row = row0 + 8 * r, apart = (i64)kp[c] - pos[r];
          float slope;
          const float p = exp2_(logit2(x[j][i], how, slope) - total[r]);
          const bool in = all || (row >= q_start && row < q_end && k0 + c >= k_start && k0 + c < k_end && apart >= lo && apart <= hi);
          x[j][i] = in ? p * (dp[i] - del[r]) * slope * how.scale : 0.f;
        }
      }
      #pragma unroll
      for (int kk = 0; kk < 2; kk++) {
        const u32 a[4] = {pair<TYPE>(x[2 * kk][0], x[2 * kk][1]), pair<TYPE>(x[2 * kk][2], x[2 * kk][3]),
                          pair<TYPE>(x[2 * kk + 1][0], x[2 * kk + 1][1]), pair<TYPE>(x[2 * kk + 1][2], x[2 * kk + 1][3])};
        #pragma unroll
        for (int d = 0; d < D / 8; d++) {
          u32 b[2];
          down_of<D>(b, ks_ + (kk * 16 + 2 * t) * (D + 8) + d * 8 + g);
          mma<TYPE>(acc[d], a, b);
        }
      }
    }
  }
  #pragma unroll
  for (int d = 0; d < D / 8; d++)
    #pragma unroll
    for (int i = 0; i < 4; i++) {
      const i64 row = row0 + 8 * (i >> 1);
      const int c = d * 8 + 2 * t + (i & 1);
      if (row < rows && c < dim) store_wide(dq, row * dq.stride + at + c, acc[d][i]);
    }
}

// Rows are keys. A block has 64 of them of one head, and goes through the heads of its group, ascending.
template <int TYPE, int D> FN void backward_kv(Mat q, Mat k, Mat v, Mat dout, Mat lse, const float* delta, Mat dk, Mat dv, Masking mask, Scoring how, i64 rows, i32 heads, i32 kv_heads, i32 dim) {
  __shared__ __align__(16) u16 ks_[64 * (D + 8)], vs[64 * (D + 8)], qs[16 * (D + 8)], os[16 * (D + 8)];
  __shared__ i32 qp[16];
  __shared__ float totals[16], dels[16];
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, kh = blockIdx.x % kv_heads, group = heads / kv_heads;
  const i64 k0 = (i64)(blockIdx.x / kv_heads) * 64, row0 = k0 + (threadIdx.x >> 5) * 16 + g, kat = (i64)kh * dim;
  bring_rows<D>(ks_, k, k0, 64, 0, rows, kat, dim);
  bring_rows<D>(vs, v, k0, 64, 0, rows, kat, dim);
  const u16 *keys = ks_ + ((threadIdx.x >> 5) * 16 + g) * (D + 8) + 2 * t, *values = vs + ((threadIdx.x >> 5) * 16 + g) * (D + 8) + 2 * t;
  const Range range = range_of(mask.pos_k, k0, rows, lane);
  i32 pos[2];
  float of_k[D / 8][4], of_v[D / 8][4];
  #pragma unroll
  for (int r = 0; r < 2; r++) pos[r] = row0 + 8 * r < rows ? mask.pos_k[row0 + 8 * r] : 0;
  #pragma unroll
  for (int d = 0; d < D / 8; d++)
    #pragma unroll
    for (int i = 0; i < 4; i++) of_k[d][i] = of_v[d][i] = 0.f;
  const i64 slices = slices_of(mask);
  for (int h = kh * group; h < (kh + 1) * group; h++)
    for (i64 index = 0; index < slices; index++) {
      const i64* s = mask.table + index * 6;
      const i64 q_start = s[0], q_end = s[1], k_start = s[2], k_end = s[3], lo = s[4], hi = s[5];
      if (k_end <= k0 || k_start >= min(k0 + 64, rows)) continue;
      const bool all_rows = k_start <= k0 && k_end >= k0 + 64;
      for (i64 q0 = q_start & ~15ll; q0 < q_end; q0 += 16) {
        const int covered = cover(mask.pos_q, q0, 16, q_start, q_end, range, lo, hi, -1, lane);
        if (!(covered & 1)) continue;
        const bool all = all_rows && covered & 2;
        __syncthreads();
        bring_rows<D>(qs, q, q0, 16, q_start, q_end, (i64)h * dim, dim);
        bring_rows<D>(os, dout, q0, 16, q_start, q_end, (i64)h * dim, dim);
        if (threadIdx.x < 16) {
          const i64 row = q0 + threadIdx.x;
          const bool in = row >= q_start && row < q_end;
          const float total = in ? load_wide(lse, row * lse.stride + h) : -infinity();
          qp[threadIdx.x] = in ? mask.pos_q[row] : 0;
          totals[threadIdx.x] = total == -infinity() ? infinity() : total * LOG2E;
          dels[threadIdx.x] = in ? delta[row * heads + h] : 0.f;
        }
        __syncthreads();
        float x[2][4], y[2][4];
        #pragma unroll
        for (int j = 0; j < 2; j++)
          #pragma unroll
          for (int i = 0; i < 4; i++) x[j][i] = y[j][i] = 0.f;
        #pragma unroll
        for (int ks = 0; ks < D / 16; ks++) {
          u32 a[4], b[4];
          rows_of<D>(a, keys, ks * 16);
          rows_of<D>(b, values, ks * 16);
          #pragma unroll
          for (int j = 0; j < 2; j++) {
            const u16 *query = qs + (j * 8 + g) * (D + 8) + ks * 16 + 2 * t, *gradient = os + (j * 8 + g) * (D + 8) + ks * 16 + 2 * t;
            const u32 c[2] = {*(const u32*)query, *(const u32*)(query + 8)}, d[2] = {*(const u32*)gradient, *(const u32*)(gradient + 8)};
            mma<TYPE>(x[j], a, c);
            mma<TYPE>(y[j], b, d);
          }
        }
        #pragma unroll
        for (int j = 0; j < 2; j++)
          #pragma unroll
          for (int i = 0; i < 4; i++) {
            const int c = j * 8 + 2 * t + (i & 1), r = i >> 1;
            const i64 row = row0 + 8 * r, apart = (i64)pos[r] - qp[c];
            float slope;
            float p = exp2_(logit2(x[j][i], how, slope) - totals[c]);
            const bool in = all || (row >= k_start && row < k_end && q0 + c >= q_start && q0 + c < q_end && apart >= lo && apart <= hi);
            p = in ? p : 0.f;
            x[j][i] = p;
            y[j][i] = p * (y[j][i] - dels[c]) * slope * how.scale;
          }
        const u32 p[4] = {pair<TYPE>(x[0][0], x[0][1]), pair<TYPE>(x[0][2], x[0][3]), pair<TYPE>(x[1][0], x[1][1]), pair<TYPE>(x[1][2], x[1][3])};
        const u32 ds[4] = {pair<TYPE>(y[0][0], y[0][1]), pair<TYPE>(y[0][2], y[0][3]), pair<TYPE>(y[1][0], y[1][1]), pair<TYPE>(y[1][2], y[1][3])};
        #pragma unroll
        for (int d = 0; d < D / 8; d++) {
          u32 b[2];
          down_of<D>(b, os + 2 * t * (D + 8) + d * 8 + g);
          mma<TYPE>(of_v[d], p, b);
          down_of<D>(b, qs + 2 * t * (D + 8) + d * 8 + g);
          mma<TYPE>(of_k[d], ds, b);
        }
      }
    }
  #pragma unroll
  for (int d = 0; d < D / 8; d++)
    #pragma unroll
    for (int i = 0; i < 4; i++) {
      const i64 row = row0 + 8 * (i >> 1);
      const int c = d * 8 + 2 * t + (i & 1);
      if (row >= rows || c >= dim) continue;
      store_wide(dk, row * dk.stride + kat + c, of_k[d][i]);
      store_wide(dv, row * dv.stride + kat + c, of_v[d][i]);
    }
}

#define ENTRIES(name, TYPE, D) \
ENTRY(128) flash_##name(Mat q, Mat k, Mat v, Mat out, Mat lse, Masking mask, Scoring how, const float* sinks, i64 rows, i32 heads, i32 kv_heads, i32 dim, i32 resume) { forward<TYPE, D>(q, k, v, out, lse, mask, how, sinks, rows, heads, kv_heads, dim, resume); } \
ENTRY(128) flash_dq_##name(Mat q, Mat k, Mat v, Mat dout, Mat lse, const float* delta, Mat dq, Masking mask, Scoring how, i64 rows, i32 heads, i32 kv_heads, i32 dim, i32 accumulate) { backward_q<TYPE, D>(q, k, v, dout, lse, delta, dq, mask, how, rows, heads, kv_heads, dim, accumulate); } \
ENTRY(128) flash_dkv_##name(Mat q, Mat k, Mat v, Mat dout, Mat lse, const float* delta, Mat dk, Mat dv, Masking mask, Scoring how, i64 rows, i32 heads, i32 kv_heads, i32 dim) { backward_kv<TYPE, D>(q, k, v, dout, lse, delta, dk, dv, mask, how, rows, heads, kv_heads, dim); }
