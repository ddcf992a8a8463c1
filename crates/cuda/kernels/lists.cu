// The slots of each expert, counted, limited, sorted and sent in a fixed order. `index` has n slots; a block does `part` of
// them, blocks ascending. With `own` experts an owner, lists are of owners; with bounds of weights, of the slots that are as
// heavy as their expert's bound.
#include "base.cuh"

// Whose list a slot is on; below zero: on none.
FN i32 list_of(const i32* index, i64 at, i32 lists, i32 own, const u32* weights, const u32* bounds) {
  const i32 raw = index[at], list = raw < 0 ? -1 : raw / own;
  return list < lists && (list < 0 || !weights || weights[at] == bounds[list]) ? list : -1;
}

// counts[block][list]: how many slots of the block's part are on the list.
ENTRY(256) expert_counts(const i32* index, i32* counts, i64 n, i64 part, i32 lists, i32 own, const u32* weights, const u32* bounds) {
  __shared__ i32 mine[1024];
  for (int e = threadIdx.x; e < lists; e += 256) mine[e] = 0;
  __syncthreads();
  const i64 start = (i64)blockIdx.x * part, end = min(start + part, n);
  for (i64 at = start + threadIdx.x; at < end; at += 256) {
    const i32 e = list_of(index, at, lists, own, weights, bounds);
    if (e >= 0) atomicAdd(&mine[e], 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < lists; e += 256) counts[(i64)blockIdx.x * lists + e] = mine[e];
}

// One block of 1024: counts become what comes before each block, rounded up to `pad` a block and to `whole` a list; `starts`
// [lists + 1] where a list begins, `tiles` [lists + 1] the same in tiles of `tile` entries.
ENTRY(1024) expert_offsets(i32* counts, i32* starts, i32* tiles, i32 blocks, i32 lists, i32 pad, i32 whole, i32 tile) {
  __shared__ i32 totals[1024];
  const int e = threadIdx.x;
  if (e < lists) {
    i32 sum = 0;
    for (int b = 0; b < blocks; b++) {
      const i32 count = counts[(i64)b * lists + e];
      counts[(i64)b * lists + e] = sum;
      sum += (count + pad - 1) / pad * pad;
    }
    totals[e] = (sum + whole - 1) / whole * whole;
  }
  __syncthreads();
  if (e) return;
  i32 from = 0, tiles_from = 0;
  for (int at = 0; at < lists; at++) {
    starts[at] = from;
    tiles[at] = tiles_from;
    from += totals[at];
    tiles_from += (totals[at] + tile - 1) / tile;
  }
  starts[lists] = from;
  tiles[lists] = tiles_from;
}

// The rank of each slot of a round of 256 among those of its list; `next` is what the list has so far, `ids` is scratch. All
// threads of a block call it; `e` below zero for a slot that is on no list.
FN i32 rank_of(i32 e, i32* next, i32* ids) {
  const int me = threadIdx.x;
  ids[me] = e;
  __syncthreads();
  i32 rank = e < 0 ? 0 : next[e];
  if (e >= 0) for (int i = 0; i < me; i++) rank += ids[i] == e;
  __syncthreads();
  if (e >= 0) atomicAdd(&next[e], 1);
  __syncthreads();
  return rank;
}

// order[starts[e] + rank] = slot.
ENTRY(256) expert_order(const i32* index, const i32* counts, const i32* starts, i32* order, i64 n, i64 part, i32 lists) {
  __shared__ i32 next[1024], ids[256];
  for (int e = threadIdx.x; e < lists; e += 256) next[e] = counts[(i64)blockIdx.x * lists + e];
  const i64 first = (i64)blockIdx.x * part, end = min(first + part, n);
  for (i64 start = first; start < end; start += 256) {
    const i64 at = start + threadIdx.x;
    const i32 e = at < end ? list_of(index, at, lists, 1, 0, 0) : -1, rank = rank_of(e, next, ids);
    if (e >= 0) order[starts[e] + rank] = (i32)at;
  }
}

// out[slot] = index[slot], or -1: of an expert, slots heavier than its bound stay, and the first `room` of those that are as
// heavy; without weights, the first `capacity`.
ENTRY(256) expert_limit(const i32* index, const i32* counts, i32* out, i64 n, i64 part, i32 lists, i64 capacity, const u32* weights, const u32* bounds, const i32* room) {
  __shared__ i32 next[1024], ids[256];
  for (int e = threadIdx.x; e < lists; e += 256) next[e] = counts[(i64)blockIdx.x * lists + e];
  const i64 first = (i64)blockIdx.x * part, end = min(first + part, n);
  for (i64 start = first; start < end; start += 256) {
    const i64 at = start + threadIdx.x;
    const i32 e = at < end ? list_of(index, at, lists, 1, weights, bounds) : -1, rank = rank_of(e, next, ids);
    if (at >= end) continue;
    const i32 raw = index[at];
    bool stays = raw < 0 || raw >= lists;
    if (!stays) stays = e >= 0 ? rank < (room ? (i64)room[e] : capacity) : weights[at] > bounds[raw];
    out[at] = stays ? raw : -1;
  }
}

// Of the slots that begin with the bits of their expert's bound, how many have each value of the next eight bits:
// bins i32 [experts, 256], added to. Bits of numbers above zero are ordered as the numbers are. A thread for each slot.
ENTRY(256) weight_bins(const i32* index, const u32* weights, const u32* bounds, i32* bins, i64 n, i32 experts, i32 shift) {
  const i64 at = (i64)blockIdx.x * 256 + threadIdx.x;
  if (at >= n) return;
  const i32 e = index[at];
  if (e < 0 || e >= experts) return;
  const u32 bits = weights[at];
  if (shift < 24 && bits >> (shift + 8) != bounds[e] >> (shift + 8)) return;
  atomicAdd(&bins[(i64)e * 256 + (bits >> shift & 255u)], 1);
}

// The next eight bits of each expert's bound, the largest value that more slots than there is room for reach; what room
// those above leave. Empties the bins. A thread for each expert.
ENTRY(256) weight_bounds(i32* bins, u32* bounds, i32* room, i32 experts, i32 shift, i32 capacity) {
  const int e = blockIdx.x * 256 + threadIdx.x;
  if (e >= experts) return;
  i32 left = shift == 24 ? capacity : room[e], bin = 255;
  for (; bin > 0 && bins[e * 256 + bin] <= left; bin--) left -= bins[e * 256 + bin];
  for (int i = 0; i < 256; i++) bins[e * 256 + i] = 0;
  bounds[e] = (shift == 24 ? 0u : bounds[e]) | (u32)bin << shift;
  room[e] = left;
}

// load[e] += slots of the expert.
ENTRY(256) expert_load(float* load_of, const i32* starts, i32 experts) {
  const int e = blockIdx.x * 256 + threadIdx.x;
  if (e < experts) load_of[e] += (float)(starts[e + 1] - starts[e]);
}

// The slots numbered `first` to `first + cap` of each owner's list: slot, token and expert among the owner's in their places,
// and the place of each slot, -1 if it has none.
ENTRY(256) dispatch(const i32* index, const i32* counts, i32* slots, i32* tokens, i32* experts, i32* places, i64 n, i64 part, i32 owners, i32 own, i32 top_k, i64 first, i64 cap) {
  __shared__ i32 next[1024], ids[256];
  for (int e = threadIdx.x; e < owners; e += 256) next[e] = counts[(i64)blockIdx.x * owners + e];
  const i64 from = (i64)blockIdx.x * part, end = min(from + part, n);
  for (i64 start = from; start < end; start += 256) {
    const i64 at = start + threadIdx.x;
    const i32 owner = at < end ? list_of(index, at, owners, own, 0, 0) : -1, rank = rank_of(owner, next, ids);
    if (at >= end) continue;
    const bool taken = owner >= 0 && rank >= first && rank < first + cap;
    const i64 place = owner * cap + rank - first;
    places[at] = taken ? (i32)place : -1;
    if (!taken) continue;
    slots[place] = (i32)at;
    tokens[place] = (i32)(at / top_k);
    experts[place] = index[at] % own;
  }
}

// list = value.
ENTRY(256) set_slots(i32* list, i64 n, i32 value) {
  const i64 at = (i64)blockIdx.x * 256 + threadIdx.x;
  if (at < n) list[at] = value;
}

// bias += rate sign(mean load - load): one thread for each expert, each adds up all loads in f64.
ENTRY(256) balance_bias(float* bias, const float* load_of, const float* skip, i32 experts, float rate) {
  const int e = blockIdx.x * 256 + threadIdx.x;
  if (e >= experts || *skip != 0.f) return;
  double mean = 0.0;
  for (int i = 0; i < experts; i++) mean += (double)load_of[i];
  const double lack = mean / experts - (double)load_of[e];
  bias[e] += lack == 0.0 ? 0.f : copysignf(rate, (float)lack);
}
