// One product of the tensor cores: D += A B, A 16 x 16 by rows, B 16 x 8 by columns, both bf16 or f16, D f32. Lane 4 g + t has
// of A: {row g, g + 8} x {columns 2t and 2t + 1, 2t + 8 and 2t + 9} as a[0] (g, low), a[1] (g + 8, low), a[2] (g, high),
// a[3] (g + 8, high); of B: column g, rows as A's columns; of D: rows g (d[0], d[1]) and g + 8, columns 2t and 2t + 1
// (PTX ISA, fragments of mma.m16n8k16).
#pragma once
#include "base.cuh"

#ifdef EMU
template <int TYPE> static void mma(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  const u32 mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const u32* all = emu::share(mine, 6);
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  for (int i = 0; i < 4; i++) {
    const int row = g + 8 * (i >> 1), col = 2 * t + (i & 1);
    for (int k = 0; k < 16; k++) {
      const u32 x = all[((row & 7) * 4 + (k & 7) / 2) * emu::SHARE + (row >> 3) + 2 * (k >> 3)];
      const u32 y = all[(col * 4 + (k & 7) / 2) * emu::SHARE + 4 + (k >> 3)];
      d[i] += wide16(TYPE, k & 1 ? x >> 16 : x & 0xffffu) * wide16(TYPE, k & 1 ? y >> 16 : y & 0xffffu);
    }
  }
}
#else
template <int TYPE> FN void mma(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  if (TYPE == BF16)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

// Two numbers in storage, the first in the low half.
#ifdef EMU
template <int TYPE> FN u32 pair(float low, float high) { return narrow16(TYPE, low) | narrow16(TYPE, high) << 16; }
#else
template <int TYPE> FN u32 pair(float low, float high) {
  u32 both;
  if (TYPE == BF16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
#endif

// Eight elements of 16 bits of which `left` exist; zeros where there is no line (an offset below zero). A call where they
// cannot be reached at once.
SLOW Quad some_of_eight(const u16* p, i64 left) {
  Quad q;
  q.w[0] = q.w[1] = q.w[2] = q.w[3] = 0;
  for (int i = 0; i < 8; i++) if (i < left) q.w[i >> 1] |= (u32)p[i] << (16 * (i & 1));
  return q;
}
FN Quad eight(const u16* base, i64 offset, i64 at, i64 left) {
  Quad q;
  q.w[0] = q.w[1] = q.w[2] = q.w[3] = 0;
  if (offset < 0 || left <= 0) return q;
  const u16* p = base + offset + at;
  if (left >= 8 && ((u64)p & 15u) == 0) return *(const Quad*)p;
  return some_of_eight(p, left);
}
