// Attention without a library: any mask of slices, any head size up to 512, any storage; deterministic, no tensor cores. A
// warp has a row of a head (of a query in the forward pass and for dQ, of a key for dK and dV); its lanes have a score each,
// then columns of the result. Sums run over ascending keys or queries, by 32 at absolute multiples of 32.
#include "math.cuh"

// Fields of a slice: first and last query row, first and last key row (ends excluded), lo, hi.
struct Masking { const i64* table; const i32* count; i64 fixed; const i32* pos_q; const i32* pos_k; };
struct Scoring { float scale, cap; };

// Terms of scores by distance: f32 [buckets, heads] with rows `stride` apart, or null. Of `count` buckets of a side `exact` have one
// distance each; `borders` are the least distances of those after the next. With `slopes` the table is one row of them.
struct Biasing { const float* table; i64 stride; i32 count, exact, two_sided, slopes; i32 borders[32]; };
FN int bucket_of(const Biasing& b, i64 apart) {
  const i64 far = b.two_sided ? (apart < 0 ? -apart : apart) : apart < 0 ? -apart : 0;
  const int base = b.two_sided && apart > 0 ? b.count : 0;
  if (far < b.exact) return base + (int)far;
  int bucket = b.exact;
  while (bucket < b.count - 1 && far >= b.borders[bucket - b.exact]) bucket++;
  return base + bucket;
}

FN i64 slices_of(Masking m) { return m.count ? max((i64)0, min((i64)*m.count, m.fixed)) : m.fixed; }
FN bool attends(const i64* s, i64 q, i64 k, Masking m) {
  const i64 apart = (i64)m.pos_k[k] - m.pos_q[q];
  return apart >= s[4] && apart <= s[5];
}
// The logit of a raw product; its derivative by the scaled product.
FN float logit(float x, Scoring how, float& slope) {
  x *= how.scale;
  slope = 1.f;
  if (how.cap == 0.f) return x;
  const float t = tanh_(x / how.cap);
  slope = 1.f - t * t;
  return how.cap * t;
}
FN float bias_of(const Biasing& b, i64 q, i64 k, int h, Masking m) {
  if (!b.table) return 0.f;
  const i64 apart = (i64)m.pos_k[k] - m.pos_q[q];
  return b.slopes ? b.table[h] * (float)apart : b.table[bucket_of(b, apart) * b.stride + h];
}
FN float dot(const float* a, Mat m, i64 row, i64 col, int dim) {
  float sum = 0.f, v[8];
  for (int c = 0; c < dim; c += 8) {
    load8(v, m, row, col + c, dim - c);
    #pragma unroll
    for (int i = 0; i < 8; i++) if (c + i < dim) sum = fmaf(a[c + i], v[i], sum);
  }
  return sum;
}
// A row into shared memory.
FN void keep(float* to, Mat m, i64 row, i64 col, int dim, int lane) {
  for (int c = lane; c < dim; c += 32) to[c] = load_at(m, row, col + c);
}

#define COLUMNS for (int c = 0; c < 16; c++) if (c * 32 + lane < dim)

// out and lse; sinks may be null. Four warps in a block; shared memory: 4 x dim floats.
ENTRY(128) attention(Mat q, Mat k, Mat v, Mat out, Mat lse, Masking mask, Scoring how, const float* sinks, i64 rows, i32 heads, i32 kv_heads, i32 dim, i32 resume, Biasing bias) {
  DYNAMIC_SHARED(bytes);
  const int lane = threadIdx.x & 31;
  const i64 id = (i64)blockIdx.x * 4 + (threadIdx.x >> 5), row = id / heads;
  const int h = (int)(id % heads), kh = h / (heads / kv_heads);
  if (row >= rows) return;
  const i64 at = (i64)h * dim, kat = (i64)kh * dim;
  float* mine = (float*)bytes + (threadIdx.x >> 5) * dim;
  keep(mine, q, row, at, dim, lane);
  __syncwarp();
  float top = -infinity(), sum = 0.f, acc[16], slope;
  #pragma unroll
  for (int c = 0; c < 16; c++) acc[c] = 0.f;
  if (resume) {
    top = load_at(lse, row, h);
    sum = top == -infinity() ? 0.f : 1.f;
    #pragma unroll
    COLUMNS acc[c] = sum * load_at(out, row, at + c * 32 + lane);
  }
  const i64 slices = slices_of(mask);
  for (i64 index = 0; index < slices; index++) {
    const i64* s = mask.table + index * 6;
    if (row < s[0] || row >= s[1]) continue;
    for (i64 from = s[2] & ~31ll; from < s[3]; from += 32) {
      const i64 key = from + lane;
      const bool in = key >= s[2] && key < s[3] && attends(s, row, key, mask);
      u32 bits = __ballot_sync(~0u, in);
      if (bits == 0) continue;
      const float x = in ? logit(dot(mine, k, key, kat, dim), how, slope) + bias_of(bias, row, key, h, mask) : -infinity();
      const float next = fmaxf(top, warp_max(x)), fade = exp_(top - next), p = in ? exp_(x - next) : 0.f;
      sum = sum * fade + warp_sum(p);
      #pragma unroll
      for (int c = 0; c < 16; c++) acc[c] *= fade;
      for (; bits; bits &= bits - 1) {
        const int from_lane = __ffs((int)bits) - 1;
        const float share = __shfl_sync(~0u, p, from_lane);
        #pragma unroll
        COLUMNS acc[c] = fmaf(share, load_at(v, from + from_lane, kat + c * 32 + lane), acc[c]);
      }
      top = next;
    }
  }
  float by = 0.f, total = -infinity();
  if (top != -infinity()) {
    float highest = top;
    if (sinks) {
      highest = fmaxf(top, sinks[h]);
      sum = sum * exp_(top - highest) + exp_(sinks[h] - highest);
    }
    by = exp_(top - highest) / sum;
    total = highest + logf(sum);
  }
  #pragma unroll
  COLUMNS store_at(out, row, at + c * 32 + lane, acc[c] * by);
  if (lane == 0) store_at(lse, row, h, total);
}

// Joins the result over some keys with out and lse of others: lse = log(e^old + e^part), out = the mean of both with the weights
// e^(old - lse) and e^(part - lse) (Dao et al., 2022, section 3.1). With `fresh` there is nothing to join. The part's logarithm of
// a row and head lies at row x row_step + head x head_step. A team of threads has a row of a head, eight columns each; `dim` is
// their multiple.
ENTRY(256) attention_join(Mat part, const float* part_lse, i64 row_step, i64 head_step, Mat out, Mat lse, i64 rows, i32 heads, i32 dim, i32 team, i32 fresh) {
  const i64 id = (i64)blockIdx.x * (256 / team) + threadIdx.x / team, row = id / heads;
  const int h = (int)(id % heads), first = threadIdx.x % team * 8;
  const bool in = row < rows;
  float of_old = 0.f, of_part = 0.f, total = -infinity();
  if (in) {
    const float old = fresh ? -infinity() : load_at(lse, row, h), mine = part_lse[row * row_step + h * head_step];
    const float top = fmaxf(old, mine);
    if (top != -infinity()) {
      of_old = exp_(old - top);
      of_part = exp_(mine - top);
      const float sum = of_old + of_part;
      of_old /= sum;
      of_part /= sum;
      total = top + logf(sum);
    }
  }
  // Everybody has read what the first of the team overwrites.
  __syncwarp();
  if (!in || first >= dim) return;
  const i64 col = (i64)h * dim + first;
  float v[8], w[8];
  load8(v, part, row, col, 8);
  #pragma unroll
  for (int i = 0; i < 8; i++) v[i] = of_part == 0.f ? 0.f : of_part * v[i];
  if (of_old != 0.f) {
    load8(w, out, row, col, 8);
    #pragma unroll
    for (int i = 0; i < 8; i++) v[i] = fmaf(of_old, w[i], v[i]);
  }
  store8(out, row, col, 8, v);
  if (first == 0) store_at(lse, row, h, total);
}

// delta f32 [rows, heads]: dout . out for each head; a warp each, eight in a block.
ENTRY(256) attention_delta(Mat out, Mat dout, float* delta, i64 rows, i32 heads, i32 dim) {
  const int lane = threadIdx.x & 31;
  const i64 id = (i64)blockIdx.x * 8 + (threadIdx.x >> 5), row = id / heads;
  const i64 at = id % heads * dim;
  if (row >= rows) return;
  float sum = 0.f;
  for (int c = lane; c < dim; c += 32) sum = fmaf(load_at(out, row, at + c), load_at(dout, row, at + c), sum);
  sum = warp_sum(sum);
  if (lane == 0) delta[id] = sum;
}

// dq (+)=. Shared memory: 8 x dim floats.
ENTRY(128) attention_dq(Mat q, Mat k, Mat v, Mat dout, Mat lse, const float* delta, Mat dq, Masking mask, Scoring how, i64 rows, i32 heads, i32 kv_heads, i32 dim, i32 accumulate, Biasing bias) {
  DYNAMIC_SHARED(bytes);
  const int lane = threadIdx.x & 31;
  const i64 id = (i64)blockIdx.x * 4 + (threadIdx.x >> 5), row = id / heads;
  const int h = (int)(id % heads), kh = h / (heads / kv_heads);
  if (row >= rows) return;
  const i64 at = (i64)h * dim, kat = (i64)kh * dim;
  float *mine = (float*)bytes + (threadIdx.x >> 5) * 2 * dim, *gradient = mine + dim;
  keep(mine, q, row, at, dim, lane);
  keep(gradient, dout, row, at, dim, lane);
  __syncwarp();
  const float total = load_at(lse, row, h), d = delta[id];
  float acc[16], slope;
  #pragma unroll
  for (int c = 0; c < 16; c++) acc[c] = 0.f;
  if (accumulate) {
    #pragma unroll
    COLUMNS acc[c] = load_at(dq, row, at + c * 32 + lane);
  }
  const i64 slices = total == -infinity() ? 0 : slices_of(mask);
  for (i64 index = 0; index < slices; index++) {
    const i64* s = mask.table + index * 6;
    if (row < s[0] || row >= s[1]) continue;
    for (i64 from = s[2] & ~31ll; from < s[3]; from += 32) {
      const i64 key = from + lane;
      const bool in = key >= s[2] && key < s[3] && attends(s, row, key, mask);
      u32 bits = __ballot_sync(~0u, in);
      float ds = 0.f;
      if (in) {
        const float p = exp_(logit(dot(mine, k, key, kat, dim), how, slope) + bias_of(bias, row, key, h, mask) - total);
        ds = p * (dot(gradient, v, key, kat, dim) - d) * slope * how.scale;
      }
      for (; bits; bits &= bits - 1) {
        const int from_lane = __ffs((int)bits) - 1;
        const float share = __shfl_sync(~0u, ds, from_lane);
        #pragma unroll
        COLUMNS acc[c] = fmaf(share, load_at(k, from + from_lane, kat + c * 32 + lane), acc[c]);
      }
    }
  }
  #pragma unroll
  COLUMNS store_at(dq, row, at + c * 32 + lane, acc[c]);
}

// dk and dv; rows here are keys. A lane has a query and a head of the group, heads ascending within a query.
ENTRY(128) attention_dkv(Mat q, Mat k, Mat v, Mat dout, Mat lse, const float* delta, Mat dk, Mat dv, Masking mask, Scoring how, i64 rows, i32 heads, i32 kv_heads, i32 dim, Biasing bias) {
  DYNAMIC_SHARED(bytes);
  const int lane = threadIdx.x & 31, group = heads / kv_heads;
  const i64 id = (i64)blockIdx.x * 4 + (threadIdx.x >> 5), row = id / kv_heads;
  const int kh = (int)(id % kv_heads);
  if (row >= rows) return;
  const i64 kat = (i64)kh * dim;
  float *key = (float*)bytes + (threadIdx.x >> 5) * 2 * dim, *value = key + dim;
  keep(key, k, row, kat, dim, lane);
  keep(value, v, row, kat, dim, lane);
  __syncwarp();
  float of_k[16], of_v[16], slope;
  #pragma unroll
  for (int c = 0; c < 16; c++) of_k[c] = of_v[c] = 0.f;
  const i64 slices = slices_of(mask);
  for (i64 index = 0; index < slices; index++) {
    const i64* s = mask.table + index * 6;
    if (row < s[2] || row >= s[3]) continue;
    for (i64 from = s[0] * group & ~31ll; from < s[1] * group; from += 32) {
      const i64 query = (from + lane) / group;
      const int h = kh * group + (int)((from + lane) % group);
      const bool in = query >= s[0] && query < s[1] && attends(s, query, row, mask) && load_at(lse, query, h) != -infinity();
      u32 bits = __ballot_sync(~0u, in);
      float p = 0.f, ds = 0.f;
      if (in) {
        const float x = logit(dot(key, q, query, (i64)h * dim, dim), how, slope) + bias_of(bias, query, row, h, mask);
        p = exp_(x - load_at(lse, query, h));
        ds = p * (dot(value, dout, query, (i64)h * dim, dim) - delta[query * heads + h]) * slope * how.scale;
      }
      for (; bits; bits &= bits - 1) {
        const int from_lane = __ffs((int)bits) - 1;
        const float share = __shfl_sync(~0u, p, from_lane), slanted = __shfl_sync(~0u, ds, from_lane);
        const i64 other = (from + from_lane) / group, at = (i64)(kh * group + (from + from_lane) % group) * dim;
        #pragma unroll
        COLUMNS {
          of_v[c] = fmaf(share, load_at(dout, other, at + c * 32 + lane), of_v[c]);
          of_k[c] = fmaf(slanted, load_at(q, other, at + c * 32 + lane), of_k[c]);
        }
      }
    }
  }
  #pragma unroll
  COLUMNS {
    store_at(dk, row, kat + c * 32 + lane, of_k[c]);
    store_at(dv, row, kat + c * 32 + lane, of_v[c]);
  }
}

// Of the gradient of sinks, what each chunk of 128 rows from `first_row` on gives: f32 [chunks, heads], a block each. A warp has
// every fourth row.
ENTRY(128) sink_chunks(Mat out, Mat dout, Mat lse, const float* sinks, float* sums, i64 first_row, i64 rows, i32 heads, i32 dim) {
  __shared__ float shares[128];
  const int lane = threadIdx.x & 31, h = (int)(blockIdx.x % heads);
  const i64 start = first_row + (i64)blockIdx.x / heads * 128, count = min((i64)128, rows - start);
  for (int r = threadIdx.x >> 5; r < count; r += 4) {
    float sum = 0.f;
    for (i64 c = (i64)h * dim + lane; c < (i64)(h + 1) * dim; c += 32) sum = fmaf(load_at(out, start + r, c), load_at(dout, start + r, c), sum);
    const float total = load_at(lse, start + r, h);
    sum = warp_sum(sum);
    if (lane == 0) shares[r] = total == -infinity() ? 0.f : exp_(sinks[h] - total) * sum;
  }
  __syncthreads();
  if (threadIdx.x) return;
  float sum = 0.f;
  for (int r = 0; r < count; r++) sum -= shares[r];
  sums[blockIdx.x] = sum;
}

// Of the gradient of biases, what each chunk of 128 query rows from `first_row` on gives: f32 [chunks, buckets, heads], a block for each
// chunk and head. A warp has every fourth row, a lane every 32nd bucket, at most 64 in all. Shared memory: 8 x dim floats.
ENTRY(128) bias_chunks(Mat q, Mat k, Mat v, Mat dout, Mat lse, const float* delta, float* sums, Masking mask, Scoring how, i64 first_row, i64 rows, i32 heads, i32 kv_heads, i32 dim, i32 buckets, Biasing bias) {
  DYNAMIC_SHARED(bytes);
  __shared__ float part[4][64];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, h = (int)(blockIdx.x % heads), kh = h / (heads / kv_heads);
  const i64 start = first_row + (i64)blockIdx.x / heads * 128, end = min(start + 128, rows), at = (i64)h * dim, kat = (i64)kh * dim;
  float *mine = (float*)bytes + warp * 2 * dim, *gradient = mine + dim, low = 0.f, high = 0.f, slope;
  for (i64 row = start + warp; row < end; row += 4) {
    __syncwarp();
    keep(mine, q, row, at, dim, lane);
    keep(gradient, dout, row, at, dim, lane);
    __syncwarp();
    const float total = load_at(lse, row, h), d = delta[row * heads + h];
    const i64 slices = total == -infinity() ? 0 : slices_of(mask);
    for (i64 index = 0; index < slices; index++) {
      const i64* s = mask.table + index * 6;
      if (row < s[0] || row >= s[1]) continue;
      for (i64 from = s[2] & ~31ll; from < s[3]; from += 32) {
        const i64 key = from + lane;
        const bool in = key >= s[2] && key < s[3] && attends(s, row, key, mask);
        u32 bits = __ballot_sync(~0u, in);
        float ds = 0.f;
        int bucket = -1;
        if (in) {
          const float p = exp_(logit(dot(mine, k, key, kat, dim), how, slope) + bias_of(bias, row, key, h, mask) - total);
          ds = p * (dot(gradient, v, key, kat, dim) - d);
          bucket = bucket_of(bias, (i64)mask.pos_k[key] - mask.pos_q[row]);
        }
        for (; bits; bits &= bits - 1) {
          const int from_lane = __ffs((int)bits) - 1, of_lane = __shfl_sync(~0u, bucket, from_lane);
          const float share = __shfl_sync(~0u, ds, from_lane);
          if (of_lane == lane) low += share;
          if (of_lane == lane + 32) high += share;
        }
      }
    }
  }
  part[warp][lane] = low;
  part[warp][lane + 32] = high;
  __syncthreads();
  for (int bucket = threadIdx.x; bucket < buckets; bucket += 128) {
    const float sum = part[0][bucket] + part[1][bucket] + part[2][bucket] + part[3][bucket];
    sums[((i64)blockIdx.x / heads * buckets + bucket) * heads + h] = sum;
  }
}
