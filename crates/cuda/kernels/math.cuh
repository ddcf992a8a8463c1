// exp, sigmoid, tanh and the normal distribution: no branch, no table, errors of a few units in the last place, and the
// bits that crates/cpu/src/elementwise/math.rs has where multiply-add is one instruction.
#pragma once
#include "base.cuh"

// e^x; 0 below -87, NaN stays NaN. At most 88.
FN float exp_to_88(float x) {
  const bool low = x < -87.f;
  const float shifted = fmaf(x, 1.44269504088896340736f, 12582912.f), n = shifted - 12582912.f;
  const float r = fmaf(n, -1.4286068e-6f, fmaf(n, -0.69314575f, x));
  float p = 1.3941411e-3f;
  p = fmaf(p, r, 8.375368e-3f);
  p = fmaf(p, r, 4.166635e-2f);
  p = fmaf(p, r, 1.6666413e-1f);
  p = fmaf(p, r, 0.5f);
  p = fmaf(p, r, 1.f);
  p = fmaf(p, r, 1.f);
  return low ? 0.f : p * as_float((as_bits(shifted) << 23) + 0x3f800000u);
}
// The same of any x; e^88 above 88.
FN float exp_(float x) { return exp_to_88(x > 88.f ? 88.f : x); }

// 1 / x, to the nearest, from 1 to 2^126; 0 above. Without the branch that a division has for other numbers.
#ifdef EMU
FN float reciprocal(float x) { return 1.f / x; }
#else
FN float reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return fmaf(fmaf(-x, r, 1.f), r, r);
}
#endif

FN float sigmoid(float x) { return reciprocal(1.f + exp_(-x)); }

// A polynomial near zero, otherwise by e^-2|x|.
FN float tanh_(float x) {
  const float size = fabsf(x), z = x * x;
  float odd = -5.599785e-3f;
  odd = fmaf(odd, z, 2.0536972e-2f);
  odd = fmaf(odd, z, -5.3704277e-2f);
  odd = fmaf(odd, z, 1.3330917e-1f);
  odd = fmaf(odd, z, -0.3333325f);
  odd = fmaf(odd, z, 1.f);
  const float e = exp_(-2.f * size), far = copysignf((1.f - e) / (1.f + e), x);
  return size < 0.625f ? x * odd : far;
}

// The normal distribution function and its density at x.
FN float normal(float x, float& density) {
  const float t = reciprocal(fmaf(0.4f * 0.707106781186547524400844362104849039f, fabsf(x), 1.f));
  float q = 0.08748474f;
  q = fmaf(q, t, -0.463458f);
  q = fmaf(q, t, 0.83886874f);
  q = fmaf(q, t, -0.56779906f);
  q = fmaf(q, t, 0.5574124f);
  q = fmaf(q, t, 0.06847697f);
  q = fmaf(q, t, 0.2571977f);
  q = fmaf(q, t, 0.2215841f);
  q = fmaf(q, t, 2.32423e-4f);
  const float e = exp_(-0.5f * x * x), tail = 0.5f * q * e;
  density = 0.3989423f * e;
  return x < 0.f ? tail : 1.f - tail;
}
