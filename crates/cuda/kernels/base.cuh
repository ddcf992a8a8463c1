// The common beginning of all kernels: names of integers, storage types, matrices, sums in a fixed order. No header of CUDA is
// read: what is needed of bf16, f16 and the 8-bit floats is here. The same text compiles for a processor, with emu.h.
#pragma once
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;
typedef int i32; typedef long long i64;

#define FN static __device__ __forceinline__
#define FN_MEMBER __device__ __forceinline__
#ifdef EMU
#define SLOW static
#define ENTRY(threads) extern "C" [[emu::bounds(threads)]] void
#define DYNAMIC_SHARED(name) unsigned char* name = emu::dynamic()
#else
#define SLOW static __device__ __noinline__
#define ENTRY(threads) extern "C" __global__ void __launch_bounds__(threads)
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif

// Storage types, as numbers: the kernels that wait for memory choose at run time, one uniform branch in eight elements.
enum { F32 = 0, BF16 = 1, F16 = 2, E4M3 = 3, E5M2 = 4 };

// Rows `stride` elements apart. A null address stands for an operand that is absent.
struct Mat { char* ptr; i64 stride; i32 type; i32 unused; };

struct __align__(16) Quad { u32 w[4]; };

FN float as_float(u32 bits) { return __uint_as_float(bits); }
FN double as_double(u64 bits) { return __longlong_as_double((long long)bits); }
FN u32 as_bits(float x) { return __float_as_uint(x); }
FN float infinity() { return as_float(0x7f800000u); }
FN float nan() { return as_float(0x7fc00000u); }

// ---- bf16, the upper half of an f32
FN float bf16_wide(u32 x) { return as_float(x << 16); }
FN u32 bf16_narrow(float x) {
  const u32 b = as_bits(x);
  return x != x ? b >> 16 | 0x40u : (b + 0x7fffu + (b >> 16 & 1u)) >> 16;
}

// ---- small floats in general: `mant` bits of mantissa, 2^low the least normal number
// The nearest such number, ties to even. |x| below 2^(low + 32).
FN float small_round(float x, int mant, int low) {
  const int e = max((int)(as_bits(x) >> 23 & 255u) - 127, low);
  const float shift = as_float((u32)(e - mant + 150) << 23) * 1.5f;
  return (x + shift) - shift;
}
// The bits of a number that small_round gave, without the sign.
FN u32 small_bits(float x, int mant, int low) {
  const u32 b = as_bits(x) & 0x7fffffffu;
  const int e = (int)(b >> 23) - 127;
  if (e < low) return (u32)(as_float(b) * as_float((u32)(mant - low + 127) << 23));
  return (u32)(e - low + 1) << mant | (b & 0x7fffffu) >> (23 - mant);
}

// ---- f16
#ifdef EMU
FN float f16_wide(u32 h) {
  const u32 sign = (h & 0x8000u) << 16, e = h >> 10 & 31u, m = h & 1023u;
  if (e == 31) return as_float(sign | 0x7f800000u | m << 13);
  if (e == 0) return as_float(sign | as_bits((float)m * 0x1p-24f));
  return as_float(sign | (e + 112) << 23 | m << 13);
}
FN u32 f16_narrow(float x) {
  const u32 sign = as_bits(x) >> 16 & 0x8000u;
  if (x != x) return 0x7fffu;
  if (fabsf(x) >= 65520.f) return sign | 0x7c00u;
  return sign | small_bits(small_round(x, 10, -14), 10, -14);
}
#else
FN float f16_wide(u32 h) { float x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((u16)h)); return x; }
FN u32 f16_narrow(float x) { u16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h; }
#endif

// ---- 8-bit floats (Micikevicius et al., 2022); what is too large becomes the largest
FN float e4m3_wide(u32 b) {
  const u32 sign = (b & 128u) << 24, e = b >> 3 & 15u, m = b & 7u;
  if (e == 15 && m == 7) return nan();
  if (e == 0) return as_float(sign | as_bits((float)m * 0.001953125f));
  return as_float(sign | (e + 120) << 23 | m << 20);
}
FN u32 e4m3_narrow(float x) {
  const u32 sign = as_bits(x) >> 24 & 128u;
  if (x != x) return sign | 127u;
  return sign | small_bits(small_round(fminf(fmaxf(x, -448.f), 448.f), 3, -6), 3, -6);
}
FN float e5m2_wide(u32 b) { return f16_wide(b << 8); }
FN u32 e5m2_narrow(float x) {
  const u32 sign = as_bits(x) >> 24 & 128u;
  if (x != x) return sign | 127u;
  return sign | small_bits(small_round(fminf(fmaxf(x, -57344.f), 57344.f), 2, -14), 2, -14);
}

// ---- elements of any float type
FN float wide16(int type, u32 bits) { return type == BF16 ? bf16_wide(bits) : f16_wide(bits); }
FN u32 narrow16(int type, float x) { return type == BF16 ? bf16_narrow(x) : f16_narrow(x); }
// Two of 16 bits in a word, the first in its lower half: one instruction, where one number alone takes seven.
#ifdef EMU
FN u32 narrow_pair(int type, float a, float b) { return narrow16(type, a) | narrow16(type, b) << 16; }
#else
FN u32 narrow_pair(int type, float a, float b) {
  u32 w;
  if (type == BF16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(b), "f"(a));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(b), "f"(a));
  return w;
}
#endif
FN float wide8(int type, u32 bits) { return type == E4M3 ? e4m3_wide(bits) : e5m2_wide(bits); }
FN u32 narrow8(int type, float x) { return type == E4M3 ? e4m3_narrow(x) : e5m2_narrow(x); }

FN float load(Mat m, i64 row, i64 col) {
  const i64 at = row * m.stride + col;
  if (m.type == F32) return ((const float*)m.ptr)[at];
  return m.type <= F16 ? wide16(m.type, ((const u16*)m.ptr)[at]) : wide8(m.type, ((const u8*)m.ptr)[at]);
}
FN void store(Mat m, i64 row, i64 col, float x) {
  const i64 at = row * m.stride + col;
  if (m.type == F32) ((float*)m.ptr)[at] = x;
  else if (m.type <= F16) ((u16*)m.ptr)[at] = (u16)narrow16(m.type, x);
  else ((u8*)m.ptr)[at] = (u8)narrow8(m.type, x);
}
// x as it reads after it was stored.
FN float rounded(int type, float x) {
  if (type == F32) return x;
  return type <= F16 ? wide16(type, narrow_pair(type, x, 0.f) & 0xffffu) : wide8(type, narrow8(type, x));
}

// As load and store, of f32 and 16 bits alone: what products leave.
FN float load_wide(Mat m, i64 at) {
  return m.type == F32 ? ((const float*)m.ptr)[at] : wide16(m.type, ((const u16*)m.ptr)[at]);
}
FN void store_wide(Mat m, i64 at, float x) {
  if (m.type == F32) ((float*)m.ptr)[at] = x;
  else ((u16*)m.ptr)[at] = (u16)narrow16(m.type, x);
}

FN float load_at(Mat m, i64 row, i64 col) { return load_wide(m, row * m.stride + col); }
FN void store_at(Mat m, i64 row, i64 col, float x) { store_wide(m, row * m.stride + col, x); }

// Four elements from `col` on as they lie in memory, of which `left` exist; zeros for the others. One access where they lie for
// it. 16 bits in the first two words, f32 in all.
struct __align__(8) Two { u32 w[2]; };
FN Quad fetch4(Mat m, i64 row, i64 col, i64 left) {
  const i64 at = row * m.stride + col;
  const char* p = m.ptr + at * (m.type == F32 ? 4 : 2);
  Quad q = {{0, 0, 0, 0}};
  if (left >= 4 && m.type == F32 && ((u64)p & 15u) == 0) {
    q = *(const Quad*)p;
  } else if (left >= 4 && m.type != F32 && ((u64)p & 7u) == 0) {
    const Two a = *(const Two*)p;
    q.w[0] = a.w[0];
    q.w[1] = a.w[1];
  } else {
    #pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i >= left) continue;
      if (m.type == F32) q.w[i] = ((const u32*)p)[i];
      else q.w[i / 2] |= (u32)((const u16*)p)[i] << (i % 2 * 16);
    }
  }
  return q;
}
FN float wide4(int type, Quad q, int i) {
  return type == F32 ? as_float(q.w[i]) : wide16(type, q.w[i / 2] >> (i % 2 * 16) & 0xffffu);
}

// Eight elements of a row from `col` on as they lie in memory, of which `left` exist; zeros for the others. 16 bits in `low`; f32
// in both, and what 8-bit floats are. Where all exist, have 16 or 32 bits, and lie where one access may reach them, it is that
// access, in line; anything else is a call, so that kernels stay small. Who fetches all operands before the first is made
// wide has all of them on their way together.
struct Raw { Quad low, high; };
struct Eight { float x[8]; };
SLOW Eight load_any(Mat m, i64 row, i64 col, i64 left) {
  Eight e;
  for (int i = 0; i < 8; i++) e.x[i] = i < left ? load(m, row, col + i) : 0.f;
  return e;
}
SLOW void store_any(Mat m, i64 row, i64 col, i64 left, Eight e) {
  for (int i = 0; i < 8; i++) {
    if (i >= left) break;
    store(m, row, col + i, e.x[i]);
  }
}
FN char* whole8(Mat m, i64 row, i64 col, i64 left) {
  char* p = m.ptr + (row * m.stride + col) * (m.type == F32 ? 4 : 2);
  return left >= 8 && m.type <= F16 && ((u64)p & 15u) == 0 ? p : 0;
}
FN Raw fetch8(Mat m, i64 row, i64 col, i64 left) {
  const Quad* p = (const Quad*)whole8(m, row, col, left);
  Raw raw;
  if (p) {
    raw.low = p[0];
    if (m.type == F32) raw.high = p[1];
    return raw;
  }
  const Eight e = load_any(m, row, col, left);
  #pragma unroll
  for (int i = 0; i < 4; i++) {
    const bool halves = m.type == BF16 || m.type == F16;
    raw.low.w[i] = halves ? narrow_pair(m.type, e.x[2 * i], e.x[2 * i + 1]) : as_bits(e.x[i]);
    raw.high.w[i] = as_bits(e.x[4 + i]);
  }
  return raw;
}
FN void widen_halves(float (&v)[8], int type, const Quad& q) {
  #pragma unroll
  for (int i = 0; i < 8; i++) v[i] = wide16(type, i % 2 ? q.w[i / 2] >> 16 : q.w[i / 2] & 0xffffu);
}
FN void widen8(float (&v)[8], int type, const Raw& raw) {
  if (type == BF16 || type == F16) {
    widen_halves(v, type, raw.low);
  } else {
    #pragma unroll
    for (int i = 0; i < 4; i++) { v[i] = as_float(raw.low.w[i]); v[4 + i] = as_float(raw.high.w[i]); }
  }
}
FN void load8(float (&v)[8], Mat m, i64 row, i64 col, i64 left) { widen8(v, m.type, fetch8(m, row, col, left)); }
FN void store8(Mat m, i64 row, i64 col, i64 left, const float (&v)[8]) {
  Quad* p = (Quad*)whole8(m, row, col, left);
  if (!p) {
    Eight e;
    #pragma unroll
    for (int i = 0; i < 8; i++) e.x[i] = v[i];
    store_any(m, row, col, left, e);
  } else if (m.type == F32) {
    Quad a, b;
    #pragma unroll
    for (int i = 0; i < 4; i++) { a.w[i] = as_bits(v[i]); b.w[i] = as_bits(v[4 + i]); }
    p[0] = a;
    p[1] = b;
  } else {
    Quad a;
    #pragma unroll
    for (int i = 0; i < 4; i++) a.w[i] = narrow_pair(m.type, v[2 * i], v[2 * i + 1]);
    *p = a;
  }
}

// ---- where a thread works
// Rows and columns in cells of eight: a block of 256 threads takes 256 >> shift rows of 1 << shift cells, `pieces` blocks
// beside each other.
struct Cell { i64 row, col; };
FN Cell cell(int shift, int pieces) {
  const u32 band = blockIdx.x / pieces, piece = blockIdx.x % pieces, lane = threadIdx.x & ((1u << shift) - 1);
  Cell c;
  c.row = (i64)band * (256 >> shift) + (threadIdx.x >> shift);
  c.col = (((i64)piece << shift) + lane) * 8;
  return c;
}

// out [r, c] = f(x [r, c], r, c).
template <class F> FN void each8(const Mat& x, const Mat& out, i64 rows, i64 cols, i32 shift, i32 pieces, F f) {
  const Cell c = cell(shift, pieces);
  if (c.row >= rows || c.col >= cols) return;
  float v[8];
  load8(v, x, c.row, c.col, cols - c.col);
  #pragma unroll
  for (int i = 0; i < 8; i++) v[i] = f(v[i], c.row, c.col + i);
  store8(out, c.row, c.col, cols - c.col, v);
}

// ---- sums in a fixed order; every thread gets the result
FN float warp_sum(float s) {
  #pragma unroll
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
  return s;
}
FN float warp_max(float s) {
  #pragma unroll
  for (int o = 16; o; o >>= 1) s = fmaxf(s, __shfl_xor_sync(~0u, s, o));
  return s;
}
// The sum over a team: 32 threads, or the whole block.
FN float team_sum(float s, int team) {
  s = warp_sum(s);
  if (team == 32) return s;
  __shared__ float part[32];
  __syncthreads();
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = s;
  __syncthreads();
  s = part[0];
  for (u32 i = 1; i < blockDim.x >> 5; i++) s += part[i];
  return s;
}
FN float block_max(float s) {
  __shared__ float part[32];
  s = warp_max(s);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = s;
  __syncthreads();
  s = part[0];
  for (u32 i = 1; i < blockDim.x >> 5; i++) s = fmaxf(s, part[i]);
  return s;
}

// ---- random numbers: a function of a key and a counter (SplitMix64's finaliser, Steele et al., 2014)
FN u64 mixed(u64 seed, u64 counter) {
  u64 z = seed + (counter + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
FN double uniform(u64 seed, u64 counter) { return (double)(mixed(seed, counter) >> 11) / 9007199254740992.0; }
