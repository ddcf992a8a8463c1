// AdamW (Loshchilov and Hutter, 2019) in PyTorch's order of operations, eight elements a thread, 2048 a block. Moments are
// f32; or bf16, or e4m3 by blocks of 128 elements with a power of two as scale each, of the second moment its root. The narrow ones,
// and bf16 weights without masters, are rounded up or down at random, so that small changes are not lost (crate tensor, `moments`).
#include "base.cuh"

FN double power(double base, i32 exponent) {
  double result = 1.0;
  for (u32 e = (u32)max(exponent, 0);;) {
    if (e & 1u) result *= base;
    e >>= 1;
    if (e == 0) return result;
    base *= base;
  }
}

// Twenty bits, as the processor's.
FN u32 noise_of(u32 key, u32 element) {
  u32 h = key ^ element * 0x9e3779b1u;
  h = (h ^ h >> 16) * 0x85ebca6bu;
  h = (h ^ h >> 13) * 0xc2b2ae35u;
  return (h ^ h >> 16) >> 12;
}

// The e4m3 value below or above x, whose magnitude is 448 at most.
FN float to_e4m3(float x, u32 noise) {
  const float size = fabsf(x);
  if (!(size < infinity())) return x;
  if (size >= 0.015625f) return as_float((as_bits(x) + noise) & 0xfff00000u);
  return copysignf(floorf(size * 512.f + (float)noise / 1048576.f) / 512.f, x);
}

// Up or down to bf16; what is not finite stays.
FN void jitter8(float (&x)[8], u32 key, u32 first) {
  #pragma unroll
  for (int i = 0; i < 8; i++) {
    const u32 noise = noise_of(key, first + i) >> 4;
    if (fabsf(x[i]) < infinity()) x[i] = as_float((as_bits(x[i]) + noise) & 0xffff0000u);
  }
}

// Eight moments to storage. `key` is a number for the weight, this moment and the update, `first + at` the element.
FN void put_moments(Mat to, float* scales, i64 at, i64 left, float (&x)[8], u32 key, i64 first, bool root) {
  if (to.type == BF16) {
    jitter8(x, key, (u32)(first + at));
  } else if (to.type == E4M3) {
    float most = 0.f;
    #pragma unroll
    for (int i = 0; i < 8; i++) {
      if (root) x[i] = sqrtf(x[i]);
      if (i < left) most = fmaxf(most, fabsf(x[i]));
    }
    // Sixteen neighbours have a block of 128.
    #pragma unroll
    for (int o = 8; o; o >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
    const u32 exponent = max((as_bits(most) + 0x1fffffu) >> 23, 127u - 54u + 8u) - 8u;
    const float scale = as_float(exponent << 23), inverse = as_float((254u - exponent) << 23);
    #pragma unroll
    for (int i = 0; i < 8; i++) {
      const float least = root && x[i] > 0.f ? 0.001953125f : 0.f;
      x[i] = to_e4m3(x[i] * inverse, noise_of(key, (u32)(first + at + i)));
      if (root) x[i] = fmaxf(x[i], least);
    }
    if (left > 0 && (threadIdx.x & 15) == 0) scales[at / 128] = scale;
  }
  store8(to, 0, at, left, x);
}

FN void get_moments(float (&x)[8], Mat from, const Raw& raw, const float* scales, i64 at, i64 left, bool root) {
  widen8(x, from.type, raw);
  if (from.type != E4M3) return;
  const float scale = left > 0 ? scales[at / 128] : 1.f;
  #pragma unroll
  for (int i = 0; i < 8; i++) {
    x[i] *= scale;
    if (root) x[i] *= x[i];
  }
}

// Vectors of n elements, the weight's from first_element on; key is a number for the weight; v is null for SGD with momentum, master is null where param itself is updated (in bf16 by chance), m_scales and v_scales where moments have none.
ENTRY(256) adamw(Mat param, Mat master, Mat m, Mat v, Mat grad, const float* scale, const float* skip, const i32* updates, float* m_scales, float* v_scales, i32 key, i64 first_element, i64 n, float lr, float beta1, float beta2, float eps, float weight_decay) {
  __shared__ float correction[2];
  const i64 at = ((i64)blockIdx.x * 256 + threadIdx.x) * 8, left = n - at;
  const Mat weight = master.ptr ? master : param;
  const float skipped = *skip, by = *scale;
  const i32 count = *updates;
  // All on their way before anything waits.
  const Raw raw_w = fetch8(weight, 0, at, left), raw_g = fetch8(grad, 0, at, left), raw_m = fetch8(m, 0, at, left);
  const Raw raw_v = v.ptr ? fetch8(v, 0, at, left) : raw_m;
  if (skipped != 0.f) return;
  if (threadIdx.x < 2) correction[threadIdx.x] = (float)(1.0 - power((double)(threadIdx.x ? beta2 : beta1), count));
  __syncthreads();
  const float keep = 1.f - lr * weight_decay, step = lr / correction[0], root = sqrtf(correction[1]);
  float w[8], g[8], first[8], second[8];
  widen8(w, weight.type, raw_w);
  widen8(g, grad.type, raw_g);
  get_moments(first, m, raw_m, m_scales, at, left, false);
  if (v.ptr) get_moments(second, v, raw_v, v_scales, at, left, true);
  #pragma unroll
  for (int i = 0; i < 8; i++) {
    const float s = g[i] * by;
    if (!v.ptr) {
      first[i] = fmaf(beta1, first[i], s);
      w[i] = w[i] * keep - lr * first[i];
      continue;
    }
    first[i] = fmaf(1.f - beta1, s - first[i], first[i]);
    second[i] = fmaf(beta2, second[i], (1.f - beta2) * s * s);
    // Rows of a table that nobody looks up have zeros, with which a warp would go the slow way of roots and divisions.
    const bool unseen = second[i] == 0.f;
    const float size = sqrtf(unseen ? 1.f : second[i]) / root, below = (unseen ? 0.f : size) + eps;
    const bool none = first[i] == 0.f && below > 0.f;
    const float along = (none ? 1.f : first[i]) / below;
    w[i] = w[i] * keep - step * (none ? first[i] : along);
  }
  const u32 noisy = 2u * ((u32)key ^ (u32)count * 0x85ebca77u);
  if (weight.type == BF16) jitter8(w, noisy ^ 2u * 0x9e3779b9u, (u32)(first_element + at));
  store8(weight, 0, at, left, w);
  if (master.ptr) store8(param, 0, at, left, w);
  put_moments(m, m_scales, at, left, first, noisy, first_element, false);
  if (v.ptr) put_moments(v, v_scales, at, left, second, noisy + 1u, first_element, true);
}
