// Operands of products in fewer bits: 8-bit floats with a scale a tensor or a block, and the micro-scaling formats (OCP MX 1.0: 32
// neighbours with a power of two). An element times its scale is the value.
#include "base.cuh"

// The bits of a size; 0 of what is not finite.
FN u32 finite_bits(float x) {
  const u32 b = as_bits(x) & 0x7fffffffu;
  return b < 0x7f800000u ? b : 0u;
}

// How elements are stored and scales made (tensor's Narrow): bits of mantissa, exponents of the least normal and of the largest
// number, that number; whether a scale keeps a block's largest within the format.
struct Small { i32 mant, low, high, covers; float most; i32 unused; };

// The exponent of the scale of a block whose largest has these bits; 0 without a largest.
FN int scale_exponent(u32 top, Small s) {
  if (!top) return 0;
  const int above = s.covers && (top & 0x7fffffu) > (as_bits(s.most) & 0x7fffffu);
  return min(max((int)(top >> 23) - 127 - s.high + above, -127), 127);
}
// Two to a power from -127 to 127.
FN float power(int e) { return as_float(e < -126 ? 1u << 22 : (u32)(e + 127) << 23); }
// The nearest element to x over its scale, of which `by` is the reciprocal.
FN float element(float x, float by, Small s) {
  const float near = small_round(fminf(fmaxf(x * by, -s.most), s.most), s.mant, s.low);
  return as_float((as_bits(near) & 0x7fffffffu) | (as_bits(x) & 0x80000000u));
}
FN bool is_finite(float x) { return (as_bits(x) & 0x7f800000u) != 0x7f800000u; }

// Narrow elements: blocks of `high` rows by `wide` columns inside of patches of 128 x 128, a block of
// threads each, `across` of them in a row; with `largest` given, one scale made from that for all.
ENTRY(256) narrow(Mat x, Mat out, const float* largest, i64 rows, i64 cols, i32 across, i32 high, i32 wide, Small s) {
  __shared__ u32 tops[512];
  const i64 row0 = (i64)(blockIdx.x / across) * 128, col = (i64)(blockIdx.x % across) * 128 + threadIdx.x % 16 * 8;
  const int c = threadIdx.x % 16 * 8, r0 = threadIdx.x / 16, in_row = 128 / wide;
  for (int i = threadIdx.x; i < 512; i += 256) tops[i] = 0;
  __syncthreads();
  float v[8];
  if (!largest) for (int r = r0; r < 128 && row0 + r < rows; r += 16) {
    if (col >= cols) break;
    load8(v, x, row0 + r, col, cols - col);
    u32* mine = tops + r / high * in_row;
    if (wide == 1) {
      #pragma unroll
      for (int i = 0; i < 8; i++) atomicMax(&mine[c + i], finite_bits(v[i]));
    } else {
      u32 top = 0;
      #pragma unroll
      for (int i = 0; i < 8; i++) top = max(top, finite_bits(v[i]));
      atomicMax(&mine[c / wide], top);
    }
  }
  __syncthreads();
  for (int r = r0; r < 128 && row0 + r < rows; r += 16) {
    if (col >= cols) break;
    load8(v, x, row0 + r, col, cols - col);
    const u32* mine = tops + r / high * in_row;
    #pragma unroll
    for (int i = 0; i < 8; i++) {
      const int e = scale_exponent(largest ? as_bits(*largest) : mine[(c + i) / wide], s);
      v[i] = is_finite(v[i]) ? element(v[i], power(-e), s) * power(e) : v[i];
    }
    store8(out, row0 + r, col, cols - col, v);
  }
}

// The 8 bits of the nearest elements to a and b over their scales; what is not finite becomes no number, so that it is seen.
#if !defined(EMU) && __CUDA_ARCH__ >= 890
FN u32 code2(float a, float b, float by_a, float by_b, Small s) {
  // Infinity times zero is NaN, so that what is not finite becomes NaN.
  a = fmaf(a, 0.f, a * by_a);
  b = fmaf(b, 0.f, b * by_b);
  u16 codes;
  if (s.mant == 3) asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(b), "f"(a));
  else asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(b), "f"(a));
  return codes;
}
#else
FN u32 code(float x, float by, Small s) {
  if (!is_finite(x)) return 0x7fu;
  const float near = element(x, by, s);
  return (as_bits(near) >> 24 & 128u) | small_bits(near, s.mant, s.low);
}
FN u32 code2(float a, float b, float by_a, float by_b, Small s) { return code(a, by_a, s) | code(b, by_b, s) << 8; }
#endif

// Where cuBLAS reads the scale of a block of a line (its manual, "Scaling factors layouts"): one for all of the operand; f32 of
// lines of 128, those of one block of all `pitch` lines after another's; f32 of tiles of 128 x 128, `pitch` for 128 lines; bytes
// of lines of 32, in tiles of 128 lines by 4 blocks, `pitch` blocks for a line.
enum { WHOLE = 0, LINES = 1, TILES = 2, BYTES = 3 };
FN void store_scale(float* scales, i32 layout, i64 pitch, i64 line, i64 block, int e) {
  if (layout == BYTES) {
    const i64 tile = line / 128 * (pitch / 4) + block / 4;
    ((u8*)scales)[tile * 512 + line % 32 * 16 + line % 128 / 32 * 4 + block % 4] = (u8)(e + 127);
  } else {
    scales[layout == WHOLE ? 0 : layout == LINES ? block * pitch + line : line / 128 * pitch + block] = power(e);
  }
}

// A thread has eight columns of eight rows of a patch of 128 x 128: four rows from 4 * (threadIdx.x / 16) on, and four 64 below.
// Elements of 16 bits stay in registers; others, which are rare, are read again by a call.
FN int patch_row(int j) { return threadIdx.x / 16 * 4 + (j & 3) + (j >> 2) * 64; }
SLOW Eight patch_again(Mat x, i64 row, i64 col, i64 rows, i64 cols) {
  Eight e;
  load8(e.x, x, row, col, row < rows ? cols - col : 0);
  return e;
}
SLOW Quad patch_edge(Mat x, i64 row, i64 col, i64 rows, i64 cols) {
  return fetch8(x, row, col, row < rows ? cols - col : 0).low;
}
FN void patch_cell(float (&v)[8], const Quad (&held)[8], Mat x, i64 row0, i64 col, i64 rows, i64 cols, int j) {
  if (x.type == BF16 || x.type == F16) {
    widen_halves(v, x.type, held[j]);
  } else {
    const Eight e = patch_again(x, row0 + patch_row(j), col, rows, cols);
    #pragma unroll
    for (int i = 0; i < 8; i++) v[i] = e.x[i];
  }
}

// An operand as units for 8-bit elements take it: lines of `pitch` bytes (a multiple of 16) along the summed index, zeros behind
// its end, and scales. Lines are x's rows, or its columns if it is `turned`. Blocks of 2^high x 2^wide, a line's or 128 x 128, inside
// of patches of 128 x 128, a block of threads each, `across` of them in a row; with `largest` given, one scale made from that for
// all, and then *now = max(*now, |x|) if it is there.
ENTRY(256) encode(Mat x, u8* codes, i64 pitch, float* scales, i64 scales_pitch, const float* largest, u32* now, i64 rows, i64 cols, i32 across, i32 turned, i32 layout, i32 high, i32 wide, Small s) {
  __shared__ u32 tops[512], words[4096];
  const i64 row0 = (i64)(blockIdx.x / across) * 128, col0 = (i64)(blockIdx.x % across) * 128;
  const int c = threadIdx.x % 16 * 8, in_row = 128 >> wide, blocks = 128 >> high << (7 - wide);
  const i64 col = col0 + c;
  const i64 pair = x.stride * 2;
  const char* from = x.ptr + (row0 + patch_row(0)) * pair + col * 2;
  const bool halves = x.type == BF16 || x.type == F16, inside = row0 + 128 <= rows && col + 8 <= cols;
  const bool whole = halves && inside && (((u64)from | (u64)pair) & 15u) == 0;
  Quad held[8];
  #pragma unroll
  for (int j = 0; j < 8; j++) {
    if (whole) held[j] = *(const Quad*)(from + ((j & 3) + (j >> 2) * 64) * pair);
    else if (halves) held[j] = patch_edge(x, row0 + patch_row(j), col, rows, cols);
  }
  for (int i = threadIdx.x; i < 512; i += 256) tops[i] = 0;
  __syncthreads();
  float v[8];
  if (!largest || now) {
    // Rows of a block first in a thread, then in the lanes beside each other that have the same one.
    float top[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
    #pragma unroll
    for (int j = 0; j < 8; j++) {
      patch_cell(v, held, x, row0, col, rows, cols, j);
      #pragma unroll
      for (int i = 0; i < 8; i++) {
        // Infinity times zero is NaN, which fmaxf leaves out.
        const float size = fabsf(fmaf(v[i], 0.f, v[i]));
        if (wide == 0) top[i] = fmaxf(top[i], size);
        else top[0] = fmaxf(top[0], size);
      }
      if (j < 7 && patch_row(j + 1) >> high == patch_row(j) >> high) continue;
      u32* mine = tops + (patch_row(j) >> high) * in_row;
      if (wide == 0) {
        #pragma unroll
        for (int i = 0; i < 8; i++) { atomicMax(&mine[c + i], as_bits(top[i])); top[i] = 0.f; }
      } else {
        for (int o = 1; o < 1 << wide >> 3; o <<= 1) top[0] = fmaxf(top[0], __shfl_xor_sync(~0u, top[0], o));
        if ((c & ((1 << wide) - 1)) == 0) atomicMax(&mine[c >> wide], as_bits(top[0]));
        top[0] = 0.f;
      }
    }
  }
  __syncthreads();
  // The scales' reciprocals in place of the blocks' largest. A maximum does not depend on the order of its parts.
  if (now && threadIdx.x == 0) atomicMax(now, tops[0]);
  const float* by = (const float*)tops;
  for (int i = threadIdx.x; i < blocks; i += 256) {
    const int e = scale_exponent(largest ? as_bits(*largest) : tops[i], s);
    const i64 row = row0 + (i / in_row << high), beside = col0 + (i % in_row << wide);
    tops[i] = as_bits(power(-e));
    if (row >= rows || beside >= cols || (layout == WHOLE && blockIdx.x)) continue;
    store_scale(scales, layout, scales_pitch, turned ? beside : row, turned ? row >> high : beside >> wide, e);
  }
  __syncthreads();
  if (!turned) {
    #pragma unroll
    for (int j = 0; j < 8; j++) {
      const int r = patch_row(j);
      if (row0 + r >= rows || col >= pitch) continue;
      patch_cell(v, held, x, row0, col, rows, cols, j);
      const float b = by[(r >> high) * in_row + (c >> wide)];
      Two two;
      #pragma unroll
      for (int i = 0; i < 2; i++) two.w[i] = code2(v[4 * i], v[4 * i + 1], b, b, s) | code2(v[4 * i + 2], v[4 * i + 3], b, b, s) << 16;
      *(Two*)(codes + (row0 + r) * pitch + col) = two;
    }
    return;
  }
  // Words of four rows, where a warp finds and leaves each in a bank of its own.
  #pragma unroll
  for (int half = 0; half < 2; half++) {
    u32 word[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    const int q = patch_row(4 * half) / 4;
    const float* mine = by + (4 * q >> high) * in_row;
    #pragma unroll
    for (int j = 0; j < 4; j += 2) {
      float w[8];
      patch_cell(v, held, x, row0, col, rows, cols, 4 * half + j);
      patch_cell(w, held, x, row0, col, rows, cols, 4 * half + j + 1);
      #pragma unroll
      for (int i = 0; i < 8; i++) {
        const float b = mine[(c + i) >> wide];
        word[i] |= code2(v[i], w[i], b, b, s) << 8 * j;
      }
    }
    #pragma unroll
    for (int i = 0; i < 8; i++) words[(c + i) * 32 + ((q + c / 4) & 31)] = word[i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 4096; i += 256) {
    const int line = i / 32, w = i % 32;
    if (col0 + line < cols && row0 + 4 * w < pitch)
      *(u32*)(codes + (col0 + line) * pitch + row0 + 4 * w) = words[line * 32 + ((w + line / 8 * 2) & 31)];
  }
}

// *out = max(*out, sizes). One thread.
ENTRY(32) largest_of_sizes(const float* sizes, float* out, i32 count) {
  if (threadIdx.x) return;
  float top = *out;
  for (int i = 0; i < count; i++) top = fmaxf(top, sizes[i]);
  *out = top;
}

// out = max(out, |x|) by column, over finite elements.
ENTRY(256) largest_by_column(Mat x, float* out, i64 rows, i64 cols) {
  const i64 col = (i64)blockIdx.x * 256 + threadIdx.x;
  if (col >= cols) return;
  float top = out[col];
  for (i64 row = 0; row < rows; row++) top = fmaxf(top, as_float(finite_bits(load(x, row, col))));
  out[col] = top;
}

// The largest size of a finite element in each block's part of the rows: f32 [blocks]. Sizes are compared as bits.
ENTRY(256) sizes(Mat x, float* most, i64 rows, i64 cols, i64 part) {
  const i64 end = min((i64)(blockIdx.x + 1) * part, rows);
  u32 top = 0;
  for (i64 row = (i64)blockIdx.x * part; row < end; row++)
    for (i64 col = (i64)threadIdx.x * 8; col < cols; col += 2048) {
      float v[8];
      load8(v, x, row, col, cols - col);
      #pragma unroll
      for (int i = 0; i < 8; i++) top = max(top, finite_bits(v[i]));
    }
  const float all = block_max(as_float(top));
  if (threadIdx.x == 0) most[blockIdx.x] = all;
}
