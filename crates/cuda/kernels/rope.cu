// Rotary position embedding (Su et al., 2021): tables of cosines and sines, and the rotation.
#include "base.cuh"

// out[t] = [cos | sin](positions[t] inv_freq) factor; the angle is rounded to f32 first.
ENTRY(256) rope_table(const i32* positions, const float* inv_freq, Mat out, i64 rows, i32 half, float factor) {
  const i64 at = (i64)blockIdx.x * 256 + threadIdx.x, row = at / half;
  const int i = (int)(at % half);
  if (row >= rows) return;
  float s, c;
  sincosf((float)positions[row] * inv_freq[i], &s, &c);
  float* to = (float*)out.ptr + row * out.stride;
  to[i] = c * factor;
  to[half + i] = s * factor;
}

enum { INTERLEAVED = 1, INVERSE = 2, ACCUMULATE = 4 };

// (a, b) -> (a cos - b sin, b cos + a sin) on each pair of a head's first `rot` columns; the rest are copied. A head is cut
// into units of eight pairs (halves) or four (neighbours), then of eight columns; `units` of a head.
ENTRY(256) rope(Mat x, Mat out, Mat table, i64 rows, i32 heads, i32 dim, i32 rot, i32 units, i32 flags, i32 shift, i32 pieces) {
  const Cell c = cell(shift, pieces);
  const i64 unit_at = c.col / 8;
  if (c.row >= rows || unit_at >= (i64)heads * units) return;
  const int head = (int)(unit_at / units), unit = (int)(unit_at % units), half = rot / 2;
  const i64 at = (i64)head * dim;
  const int turned = flags & INTERLEAVED ? (rot + 7) / 8 : (half + 7) / 8;
  const float sign = flags & INVERSE ? -1.f : 1.f;
  float a[8], b[8], p[8], q[8], co[8], si[8];
  if (unit >= turned) {
    const int col = rot + (unit - turned) * 8;
    load8(a, x, c.row, at + col, dim - col);
    if (flags & ACCUMULATE) {
      load8(p, out, c.row, at + col, dim - col);
      #pragma unroll
      for (int i = 0; i < 8; i++) a[i] = p[i] + a[i];
    }
    store8(out, c.row, at + col, dim - col, a);
  } else if (flags & INTERLEAVED) {
    const int col = unit * 8;
    load8(a, x, c.row, at + col, rot - col);
    if (flags & ACCUMULATE) load8(p, out, c.row, at + col, rot - col);
    #pragma unroll
    for (int i = 0; i < 4; i++) {
      if (col / 2 + i >= half) break;
      const float cs = load(table, c.row, col / 2 + i), s = sign * load(table, c.row, half + col / 2 + i);
      const float first = fmaf(a[2 * i], cs, -(a[2 * i + 1] * s)), second = fmaf(a[2 * i + 1], cs, a[2 * i] * s);
      a[2 * i] = flags & ACCUMULATE ? p[2 * i] + first : first;
      a[2 * i + 1] = flags & ACCUMULATE ? p[2 * i + 1] + second : second;
    }
    store8(out, c.row, at + col, rot - col, a);
  } else {
    const int col = unit * 8, left = half - col;
    const Raw raw_a = fetch8(x, c.row, at + col, left), raw_b = fetch8(x, c.row, at + half + col, left);
    const Raw raw_c = fetch8(table, c.row, col, left), raw_s = fetch8(table, c.row, half + col, left);
    widen8(a, x.type, raw_a);
    widen8(b, x.type, raw_b);
    widen8(co, table.type, raw_c);
    widen8(si, table.type, raw_s);
    if (flags & ACCUMULATE) {
      load8(p, out, c.row, at + col, left);
      load8(q, out, c.row, at + half + col, left);
    }
    #pragma unroll
    for (int i = 0; i < 8; i++) {
      const float s = sign * si[i];
      const float first = fmaf(a[i], co[i], -(b[i] * s)), second = fmaf(b[i], co[i], a[i] * s);
      a[i] = flags & ACCUMULATE ? p[i] + first : first;
      b[i] = flags & ACCUMULATE ? q[i] + second : second;
    }
    store8(out, c.row, at + col, left, a);
    store8(out, c.row, at + half + col, left, b);
  }
}
