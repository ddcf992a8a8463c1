// Packed weights (NF4, int8): rows of codes, filled up to four bytes, and scales.
#include "base.cuh"

#define NF4_VALUES \
  -1.f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f, -0.18477343022823334f, \
  -0.09105003625154495f, 0.f, 0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f, \
  0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.f

// The smallest normal number: what is below counts as zero.
FN float least_normal() { return as_float(0x00800000u); }

// Which of the sixteen values is nearest: how many midpoints lie below.
FN u32 nf4_code(float x) {
  const float values[16] = {NF4_VALUES};
  u32 code = 0;
  #pragma unroll
  for (int i = 0; i < 15; i++) code += x > (values[i] + values[i + 1]) / 2.f;
  return code;
}

// A thread packs a block of 64 elements. A whole block is multiplied by the reciprocal of its scale, a short one divided.
ENTRY(256) pack_nf4(const float* x, u8* packed, i64 rows, i64 cols, i64 row_bytes, i64 scales_at) {
  const i64 across = (cols + 63) / 64, at = (i64)blockIdx.x * 256 + threadIdx.x, row = at / across, block = at % across;
  if (row >= rows) return;
  const i64 first = block * 64, left = cols - first;
  const int n = left < 64 ? (int)left : 64;
  const float* from = x + row * cols + first;
  u8* codes = packed + row * row_bytes + first / 2;
  float most = 0.f;
  for (int i = 0; i < n; i++) most = fmaxf(most, fabsf(from[i]));
  if (most < least_normal()) most = 0.f;
  const bool whole = n == 64;
  // 1e-38 by its bits.
  ((u32*)(packed + row * row_bytes + scales_at))[block] = most == 0.f ? (whole ? 0u : 0x006ce3eeu) : as_bits(most);
  const float scale = most == 0.f ? 1.f : most, reciprocal = 1.f / scale;
  for (int i = 0; i < n; i += 2) {
    const float second = i + 1 < n ? from[i + 1] : 0.f;
    const u32 a = nf4_code(whole ? from[i] * reciprocal : from[i] / scale);
    codes[i / 2] = (u8)(a << 4 | nf4_code(whole ? second * reciprocal : second / scale));
  }
  if (block + 1 == across)
    for (i64 i = (cols + 1) / 2; i < scales_at; i++) packed[row * row_bytes + i] = 0;
}

// As bitsandbytes quantises: from f16.
FN float half_of(float x) { return f16_wide(f16_narrow(fminf(fmaxf(x, -65504.f), 65504.f)) & 0xffffu); }

// A block packs a row.
ENTRY(256) pack_int8(const float* x, u8* packed, i64 cols, i64 row_bytes, i64 scales_at) {
  const float* from = x + (i64)blockIdx.x * cols;
  u8* codes = packed + (i64)blockIdx.x * row_bytes;
  float most = 0.f;
  for (i64 i = threadIdx.x; i < cols; i += 256) most = fmaxf(most, fabsf(half_of(from[i])));
  const float scale = block_max(most), step = scale == 0.f ? 0.f : 1.f / scale * 127.f;
  for (i64 i = threadIdx.x; i < cols; i += 256) codes[i] = (u8)(i32)rintf(half_of(from[i]) * step);
  for (i64 i = cols + threadIdx.x; i < scales_at; i += 256) codes[i] = 0;
  if (threadIdx.x == 0) *(float*)(codes + scales_at) = scale;
}

// Eight elements of a row.
ENTRY(256) unpack(const u8* packed, Mat out, i64 rows, i64 cols, i64 row_bytes, i64 scales_at, i32 four, i32 shift, i32 pieces) {
  __shared__ float table[16];
  const float values[16] = {NF4_VALUES};
  if (threadIdx.x < 16) table[threadIdx.x] = values[threadIdx.x];
  __syncthreads();
  const Cell c = cell(shift, pieces);
  if (c.row >= rows || c.col >= cols) return;
  const i64 left = cols - c.col;
  const u8* row = packed + c.row * row_bytes;
  const float scale = ((const float*)(row + scales_at))[four ? c.col / 64 : 0];
  float v[8];
  #pragma unroll
  for (int i = 0; i < 8; i++) {
    if (i >= left) { v[i] = 0.f; continue; }
    const i64 col = c.col + i;
    if (four) v[i] = table[i % 2 ? row[col / 2] & 15 : row[col / 2] >> 4] * scale;
    else v[i] = (float)(signed char)row[col] * scale * 0.007874016f;
  }
  store8(out, c.row, c.col, left, v);
}
