// Random numbers, the largest logit, and the choice of a token: crates/engine/src/sampler.rs on the device.
#include "base.cuh"

// out [r, c] = a number in [0, 1) of (seed, first + r cols + c), the double rounded to the storage.
ENTRY(256) random_uniform(Mat out, i64 rows, i64 cols, i32 shift, i32 pieces, u64 seed, u64 first) {
  const Cell c = cell(shift, pieces);
  if (c.row >= rows || c.col >= cols) return;
  float v[8];
  #pragma unroll
  for (int i = 0; i < 8; i++) v[i] = (float)uniform(seed, first + (u64)(c.row * cols + c.col + i));
  store8(out, c.row, c.col, cols - c.col, v);
}

// Twenty bits that depend on a key and a column.
FN u32 twenty_bits(u32 key, i64 col) {
  u32 hash = key ^ (u32)col * 0x9e3779b1u;
  hash = (hash ^ (hash >> 16)) * 0x85ebca6bu;
  hash = (hash ^ (hash >> 13)) * 0xc2b2ae35u;
  return (hash ^ (hash >> 16)) >> 12;
}

// x [r, c] += scales[r] (2 u - 1), u of twenty bits that depend on the row's key and the column (crate tensor, `moments::noise`).
ENTRY(256) jitter(Mat x, const i32* keys, const float* scales, i64 rows, i64 cols, i32 shift, i32 pieces) {
  each8(x, x, rows, cols, shift, pieces, [=](float v, i64 row, i64 col) {
    const float unit = (float)twenty_bits((u32)keys[row], col) * (1.f / 524288.f) - 1.f;
    return fmaf(scales[row], unit, v);
  });
}

// x [r, c] times a factor, or zero where twenty bits of the row's key, the place's and the column are below a threshold (crate tensor,
// `Dropout`).
ENTRY(256) dropout(Mat x, const i32* keys, i64 rows, i64 cols, i32 shift, i32 pieces, i32 salt, i32 threshold, i64 first, float factor) {
  each8(x, x, rows, cols, shift, pieces, [=](float v, i64 row, i64 col) {
    return twenty_bits((u32)(keys[row] ^ salt), first + col) < (u32)threshold ? 0.f : factor * v;
  });
}

// Logits as whole numbers in the same order, and under them the ids, so that the first of equals is the larger. What is not a
// number is above all.
FN u64 place(float x, i64 id) {
  const u32 bits = as_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return ~0ull;
  return (u64)(bits >> 31 ? ~bits : bits | 0x80000000u) << 32 | (0xffffffffu - (u32)id);
}
FN u64 block_most(u64 v) {
  __shared__ u64 part[32];
  for (int o = 16; o; o >>= 1) { const u64 other = __shfl_xor_sync(~0u, v, o); v = other > v ? other : v; }
  __syncthreads();
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
  __syncthreads();
  v = part[0];
  for (u32 i = 1; i < blockDim.x >> 5; i++) v = part[i] > v ? part[i] : v;
  return v;
}
// Whether the largest of a row is a finite number, and so all are numbers.
FN bool numbers(u64 best) { return best >> 32 > 0x007fffffu && best >> 32 < 0xff800000u; }
FN double block_total(double v) {
  __shared__ double part[32];
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
  __syncthreads();
  v = part[0];
  for (u32 i = 1; i < blockDim.x >> 5; i++) v += part[i];
  return v;
}

// ids i32 [rows]: the place of the largest of each row, the first of equals; -1 without numbers. Bits of all columns into kept, u8
// [rows, width], where it is given. A block of 512 for each row.
ENTRY(512) argmax(Mat logits, i32* ids, i64 vocab, u8* kept, i64 width) {
  const i64 row = blockIdx.x;
  u64 best = 0;
  for (i64 at = threadIdx.x; at < vocab; at += 512) {
    const u64 mine = place(load(logits, row, at), at);
    best = mine > best ? mine : best;
  }
  best = block_most(best);
  if (threadIdx.x == 0) ids[row] = numbers(best) ? (i32)(0xffffffffu - (u32)best) : -1;
  if (!kept) return;
  for (i64 at = threadIdx.x; at < width; at += 512) {
    const i64 rest = vocab - 8 * at;
    kept[row * width + at] = !numbers(best) ? 0 : rest >= 8 ? 255 : (u8)((1 << rest) - 1);
  }
}

struct Drawing { Mat logits; i64 row, vocab; float top; double temperature; };
// What a logit weighs; one if only counted.
FN double weigh(Drawing d, float x, bool count) { return count ? 1.0 : exp(((double)x - (double)d.top) / d.temperature); }
// The sum of what is at `from` or above, and weighs `least` at least.
SLOW double above(Drawing d, u64 from, double least, bool count) {
  double sum = 0.0;
  for (i64 at = threadIdx.x; at < d.vocab; at += 512) {
    const float x = load(d.logits, d.row, at);
    if (place(x, at) < from) continue;
    const double weight = weigh(d, x, count);
    sum += count || weight >= least ? weight : 0.0;
  }
  return block_total(sum);
}
// The highest place, not below `floor`, such that what is there or above sums to `target`, or to more than it if `beyond`; the
// bits of a place one after the other.
FN u64 reach(Drawing d, u64 floor, double target, double least, bool count, bool beyond) {
  u64 found = 0;
  for (int bit = 63; bit >= 0; bit--) {
    const u64 next = found | 1ull << bit;
    const double sum = next <= floor ? target : above(d, next, least, count);
    if (next <= floor || (beyond ? sum > target : sum >= target)) found = next;
  }
  return found > floor ? found : floor;
}

// A token for each row, -1 without numbers: the bits of three doubles; top_k 0 for all. The number drawn is that of
// (seed, drawn + row). Bits of what is kept into kept, u8 [rows, width], where it is given. A block of 512 for each row.
ENTRY(512) draw(Mat logits, i32* ids, i64 vocab, u64 temperature, u64 top_p, u64 min_p, i32 top_k, u64 seed, u64 drawn, u8* kept, i64 width) {
  const double share = as_double(top_p), least = as_double(min_p);
  Drawing d;
  d.logits = logits; d.row = blockIdx.x; d.vocab = vocab; d.temperature = as_double(temperature);
  u64 best = 0;
  for (i64 at = threadIdx.x; at < vocab; at += 512) {
    const u64 mine = place(load(logits, d.row, at), at);
    best = mine > best ? mine : best;
  }
  best = block_most(best);
  // All threads of the block see the same.
  if (!numbers(best)) {
    if (threadIdx.x == 0) ids[d.row] = -1;
    if (kept)
      for (i64 at = threadIdx.x; at < width; at += 512) kept[d.row * width + at] = 0;
    return;
  }
  d.top = load(logits, d.row, 0xffffffffu - (u32)best);
  u64 floor = top_k > 0 && top_k < vocab ? reach(d, 0, (double)top_k, 0.0, true, false) : 0;
  if (share < 1.0) floor = reach(d, floor, share * above(d, floor, 0.0, false), 0.0, false, false);
  const double total = above(d, floor, least, false);
  u64 chosen = reach(d, floor, uniform(seed, drawn + (u64)d.row) * total, least, false, true);
  // Rounding may leave nothing beyond.
  if (0xffffffffu - (u32)chosen >= vocab) chosen = best;
  if (threadIdx.x == 0) ids[d.row] = (i32)(0xffffffffu - (u32)chosen);
  if (!kept) return;
  for (i64 at = threadIdx.x; at < width; at += 512) {
    u32 bits = 0;
    for (int bit = 0; bit < 8 && 8 * at + bit < vocab; bit++) {
      const float x = load(logits, d.row, 8 * at + bit);
      bits |= (u32)(place(x, 8 * at + bit) >= floor && weigh(d, x, false) >= least) << bit;
    }
    kept[d.row * width + at] = (u8)bits;
  }
}

// logits f32 [r, c] = what stands for one that is left out, where the bit first + column of kept, u8 [r, width], is zero.
ENTRY(256) leave_out(Mat logits, const u8* kept, i64 width, i64 first, i64 rows, i64 cols, i32 shift, i32 pieces) {
  const Cell c = cell(shift, pieces);
  if (c.row >= rows || c.col >= cols) return;
  float v[8];
  load8(v, logits, c.row, c.col, cols - c.col);
  for (int i = 0; i < 8 && c.col + i < cols; i++) {
    const i64 at = first + c.col + i;
    if (!(kept[c.row * width + (at >> 3)] >> (at & 7) & 1)) v[i] = -1e15f;
  }
  store8(logits, c.row, c.col, cols - c.col, v);
}
