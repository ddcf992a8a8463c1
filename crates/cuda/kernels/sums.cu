// Sums over rows, over a vector, of squares; the factor of an update. Floats are never added atomically: partial sums lie
// in scratch and are added in order.
#include "base.cuh"

// Sums of the columns of dy over each chunk of 128 rows from `first_row` on: f32 [chunks, cols]. As norm_weight_chunks.
ENTRY(256) column_chunks(Mat dy, float* sums, i64 first_row, i64 rows, i64 cols) {
  __shared__ float part[8][128];
  const int lane = threadIdx.x & 31, line = threadIdx.x >> 5;
  const i64 first = (i64)blockIdx.x * 128 + lane * 4, start = first_row + (i64)blockIdx.y * 128, end = min(start + 128, rows);
  float sum[4] = {};
  if (first < cols)
    // Four rows on their way together.
    for (i64 row = start + line; row < end; row += 32) {
      Quad d[4];
      #pragma unroll
      for (int j = 0; j < 4; j++) if (row + 8 * j < end) d[j] = fetch4(dy, row + 8 * j, first, cols - first);
      #pragma unroll
      for (int j = 0; j < 4; j++) {
        if (row + 8 * j >= end) break;
        #pragma unroll
        for (int i = 0; i < 4; i++) sum[i] += wide4(dy.type, d[j], i);
      }
    }
  #pragma unroll
  for (int i = 0; i < 4; i++) part[line][lane * 4 + i] = sum[i];
  __syncthreads();
  const i64 col = (i64)blockIdx.x * 128 + threadIdx.x;
  if (threadIdx.x < 128 && col < cols) {
    float all = part[0][threadIdx.x];
    for (int i = 1; i < 8; i++) all += part[i][threadIdx.x];
    sums[(i64)blockIdx.y * cols + col] = all;
  }
}

// to += the sums of the chunks, ascending: `stride` elements from one chunk to the next.
ENTRY(256) add_chunks(float* to, const float* sums, i64 cols, i32 chunks, i64 stride) {
  const i64 col = (i64)blockIdx.x * 256 + threadIdx.x;
  if (col >= cols) return;
  float sum = to[col];
  for (int i = 0; i < chunks; i++) sum += sums[i * stride + col];
  to[col] = sum;
}

// out += sum(x) in chunks of 128, ascending: one block of 1024. A warp sums a chunk in 64 lanes, folded in halves.
ENTRY(1024) sum(const float* x, float* out, i64 n) {
  __shared__ float chunk[1024];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float total = *out;
  for (i64 from = 0; from < n; from += 131072) {
    for (int at = warp; at < 1024; at += 32) {
      const i64 start = from + (i64)at * 128;
      if (start >= n) break;
      float low = 0.f, high = 0.f;
      for (int i = 0; i < 128; i += 64) {
        if (start + i + lane < n) low += x[start + i + lane];
        if (start + i + 32 + lane < n) high += x[start + i + 32 + lane];
      }
      low = warp_sum(low + high);
      if (lane == 0) chunk[at] = low;
    }
    __syncthreads();
    if (threadIdx.x == 0)
      for (int at = 0; at < 1024 && from + (i64)at * 128 < n; at++) total += chunk[at];
    __syncthreads();
  }
  if (threadIdx.x == 0) *out = total;
}

// out[i] += the sum of the squares of at most `slot` elements from i slot on: a block for each, of 1024 threads, as many blocks
// as a weight has slots do not fill a chip. A thread adds eight in f32 and those in f64; warps and then the block add in order.
ENTRY(1024) squares(const float* x, float* out, i64 n, i64 slot) {
  __shared__ double total[32];
  Mat m; m.ptr = (char*)x; m.stride = 0; m.type = F32;
  const i64 start = (i64)blockIdx.x * slot, end = min(start + slot, n);
  double mine = 0.0;
  // Few slots have to keep their multiprocessors busy: three loads are on their way together.
  for (i64 at = start + threadIdx.x * 8; at < end; at += 3 * 8192) {
    Raw raw[3];
    #pragma unroll
    for (int j = 0; j < 3; j++) if (at + j * 8192 < end) raw[j] = fetch8(m, 0, at + j * 8192, end - at - j * 8192);
    #pragma unroll
    for (int j = 0; j < 3; j++) {
      if (at + j * 8192 >= end) break;
      float v[8], s = 0.f;
      widen8(v, F32, raw[j]);
      #pragma unroll
      for (int i = 0; i < 8; i++) s += v[i] * v[i];
      mine += (double)s;
    }
  }
  for (int o = 16; o; o >>= 1) mine += __shfl_xor_sync(~0u, mine, o);
  if ((threadIdx.x & 31) == 0) total[threadIdx.x >> 5] = mine;
  __syncthreads();
  if (threadIdx.x) return;
  for (int i = 1; i < 32; i++) mine += total[i];
  out[blockIdx.x] = (float)((double)out[blockIdx.x] + mine);
}

// From the gradient's sum of squares to the factor of an update; one thread.
ENTRY(32) step_scale(const float* sum_squares, const float* loss, const float* count, float max_norm, float* scale, float* skip, float* norm, i32* updates) {
  if (threadIdx.x) return;
  const float tokens = *count;
  if (!(tokens > 0.f)) { *scale = 0.f; *skip = 1.f; *norm = 0.f; return; }
  const float size = sqrtf(*sum_squares) / tokens, clip = max_norm > 0.f && size > max_norm ? max_norm / size : 1.f;
  const bool finite = fabsf(size) < infinity() && fabsf(*loss) < infinity();
  *scale = finite ? clip / tokens : 0.f;
  *skip = finite ? 0.f : 1.f;
  *norm = size;
  if (finite) *updates += 1;
}
