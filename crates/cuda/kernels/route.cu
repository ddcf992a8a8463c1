// Routers of experts: scores, choice, weights, and their gradients; a warp for each token, four in a block, scores in shared
// memory.
#include "math.cuh"

enum { SOFTMAX = 0, SIGMOID = 1 };
#define TINY 1e-20f

// Scores of a token into shared memory; the logarithm of the sum of exponentials if softmax.
FN float score(int kind, const float* logits, float* out, int experts, int lane) {
  if (kind == SIGMOID) {
    for (int e = lane; e < experts; e += 32) out[e] = sigmoid(logits[e]);
    __syncwarp();
    return 0.f;
  }
  float top = -infinity(), sum = 0.f;
  for (int e = lane; e < experts; e += 32) top = fmaxf(top, logits[e]);
  top = warp_max(top);
  for (int e = lane; e < experts; e += 32) { out[e] = exp_(logits[e] - top); sum += out[e]; }
  sum = warp_sum(sum);
  for (int e = lane; e < experts; e += 32) out[e] /= sum;
  __syncwarp();
  return top + logf(sum);
}

// A value and where it is. Larger ones come first, the first of equals.
struct Best { float value; int at; };
FN bool before(Best a, Best b) { return a.value > b.value || (a.value == b.value && a.at < b.at); }
FN Best warp_best(Best b) {
  #pragma unroll
  for (int o = 16; o; o >>= 1) {
    Best other;
    other.value = __shfl_xor_sync(~0u, b.value, o);
    other.at = __shfl_xor_sync(~0u, b.at, o);
    if (before(other, b)) b = other;
  }
  return b;
}
FN Best none() { Best b; b.value = -infinity(); b.at = 0x7fffffff; return b; }
FN Best start() { Best b; b.value = infinity(); b.at = -1; return b; }

// index i32 [rows, k] without gaps, weights f32 [rows, k]. `group_count` 0: all experts are chosen from.
// Shared memory: (2 experts + group_count) floats for each of four warps.
ENTRY(128) route(Mat logits, const float* bias, i32* index, Mat weights, i64 rows, i32 experts, i32 top_k, i32 kind, i32 group_count, i32 group_top, i32 group_by, i32 normalise, float scale) {
  DYNAMIC_SHARED(bytes);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const i64 row = (i64)blockIdx.x * 4 + warp;
  if (row >= rows) return;
  float* scores = (float*)bytes + warp * (2 * experts + group_count);
  float *choice = scores + experts, *sums = choice + experts;
  score(kind, (const float*)logits.ptr + row * logits.stride, scores, experts, lane);
  for (int e = lane; e < experts; e += 32) choice[e] = bias ? scores[e] + bias[e] : scores[e];
  __syncwarp();
  Best worst = none();
  const int size = group_count ? experts / group_count : experts;
  if (group_count) {
    for (int g = lane; g < group_count; g += 32) {
      float sum = 0.f;
      Best last = start();
      for (int i = 0; i < min(group_by, size); i++) {
        Best found = none();
        for (int e = 0; e < size; e++) {
          Best one; one.value = choice[g * size + e]; one.at = e;
          if (before(last, one) && before(one, found)) found = one;
        }
        sum += found.value;
        last = found;
      }
      sums[g] = sum;
    }
    __syncwarp();
    worst = start();
    for (int i = 0; i < group_top; i++) {
      Best found = none();
      for (int g = lane; g < group_count; g += 32) {
        Best one; one.value = sums[g]; one.at = g;
        if (before(worst, one) && before(one, found)) found = one;
      }
      worst = warp_best(found);
    }
  }
  Best last = start();
  float sum = TINY;
  float* to = (float*)weights.ptr + row * weights.stride;
  for (int slot = 0; slot < top_k; slot++) {
    Best found = none();
    for (int e = lane; e < experts; e += 32) {
      Best one, group; one.value = choice[e]; one.at = e;
      if (group_count) {
        group.value = sums[e / size]; group.at = e / size;
        if (before(worst, group)) continue;
      }
      if (before(last, one) && before(one, found)) found = one;
    }
    found = warp_best(found);
    // Nothing compares with NaN: any expert will do, the weights are NaN then.
    if (found.at >= experts) found.at = slot;
    last = found;
    const float weight = scores[found.at];
    sum += weight;
    if (lane == 0) { index[row * top_k + slot] = found.at; to[slot] = weight; }
  }
  const float by = normalise ? scale / sum : scale;
  if (lane == 0) for (int slot = 0; slot < top_k; slot++) to[slot] *= by;
}

// Overwrites dlogits. Shared memory: `experts` floats for each of four warps.
ENTRY(128) route_backward(Mat logits, const i32* index, Mat dweights, Mat dlogits, i64 rows, i32 experts, i32 top_k, i32 kind, i32 normalise, float scale) {
  DYNAMIC_SHARED(bytes);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const i64 row = (i64)blockIdx.x * 4 + warp;
  if (row >= rows) return;
  float* scores = (float*)bytes + warp * experts;
  score(kind, (const float*)logits.ptr + row * logits.stride, scores, experts, lane);
  const i32* chosen = index + row * top_k;
  const float* dw = (const float*)dweights.ptr + row * dweights.stride;
  float* to = (float*)dlogits.ptr + row * dlogits.stride;
  float sum = TINY, product = 0.f, inner = 0.f;
  for (int slot = 0; slot < top_k; slot++) {
    sum += scores[chosen[slot]];
    product += dw[slot] * scores[chosen[slot]];
  }
  const float by = normalise ? scale / sum : scale, mean = normalise ? product / sum : 0.f;
  for (int slot = 0; slot < top_k; slot++) inner += by * (dw[slot] - mean) * scores[chosen[slot]];
  for (int e = lane; e < experts; e += 32) {
    float d = 0.f;
    for (int slot = 0; slot < top_k; slot++) if (chosen[slot] == e) d = by * (dw[slot] - mean);
    to[e] = kind == SOFTMAX ? scores[e] * (d - inner) : d * (scores[e] * (1.f - scores[e]));
  }
}

// Overwrites dlogits. Shared memory: `experts` floats for each of four warps.
ENTRY(128) router_losses(Mat logits, const float* load_of, Mat dlogits, i64 rows, i32 experts, i32 kind, float aux, float z) {
  DYNAMIC_SHARED(bytes);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const i64 row = (i64)blockIdx.x * 4 + warp;
  if (row >= rows) return;
  float* scores = (float*)bytes + warp * experts;
  const float* from = (const float*)logits.ptr + row * logits.stride;
  float* to = (float*)dlogits.ptr + row * dlogits.stride;
  const float lse = score(SOFTMAX, from, scores, experts, lane);
  for (int e = lane; e < experts; e += 32) to[e] = 2.f * z * lse * scores[e];
  float sum = 1.f, mean = 0.f;
  if (kind == SIGMOID) {
    __syncwarp();
    score(SIGMOID, from, scores, experts, lane);
    sum = 0.f;
    for (int e = lane; e < experts; e += 32) sum += scores[e];
    sum = TINY + warp_sum(sum);
  }
  for (int e = lane; e < experts; e += 32) mean = fmaf(scores[e], load_of[e], mean);
  mean = warp_sum(mean) / sum;
  for (int e = lane; e < experts; e += 32) {
    const float slope = kind == SIGMOID ? (1.f - scores[e]) / sum : 1.f;
    to[e] += aux * scores[e] * slope * (load_of[e] - mean);
  }
}
