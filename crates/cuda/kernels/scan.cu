// Mamba-2's scan and gated DeltaNet, forward and backward, over the documents of a stream. Both take rows of q and k ("n" columns,
// of a group of heads) and of x ("p" columns of a head) into a state per head, S [n, p]:
//
//   S <- decay S + k w^T,  y = S^T q    with w = delta x (Mamba-2: q is C, k is B, and D x is added to y),
//                                       or w = beta (x - S^T k) of the decayed S (DeltaNet: q and k are divided by their lengths).
//
// The state goes row by row, a warp for each of its columns, forward and, with its gradient, backward. Sums over rows that gradients
// need are products of a chunk's rows: with L the sums of log decays, G_ij = e^(L_i - L_j) and E the gradient of the state after it,
//   P_ij = G_ij w_j . dy_i (j <= i),  N_ij = -G_ij beta_i w_j . dw_i (j < i, DeltaNet alone),
//   dq_i = sum P_ij k_j + e^L_i S dy_i,  dk_j = sum P_ij q_i + sum N_ij k_i + e^(L_end - L_j) E w_j
//                                               + sum N_ji k_i - e^L_j beta_j S dw_j,
// and log decays have the sums of what passes over them, never differences of sums, which lose digits.
#include "math.cuh"

enum { CHUNK = 128, SPAN = 2048, TILE = 8, STRIP = 16, MOST = 8 };

struct Scan {
  Mat u, steps, betas;
  const float *a_log, *bias, *d;
  const i32* table;
  // Columns of u where q, k and x begin.
  i64 q, k, x;
  i64 groups, heads, n, p;
  float low, high, eps, beta;
};

// Rows of one document that begin at a multiple of `size` of it.
struct Part { i64 first, last; i32 run; bool begins; };

// The part with this index, from a row of a run on. The table has the first row of each run, and after the last the number of rows.
FN Part part_of(const i32* table, int run, i64 row, int index, i64 size) {
  for (;;) {
    const i64 start = table[run], end = table[run + 1];
    if (row >= end) { run++; continue; }
    const i64 stop = min(end, row + size - (row - start) % size);
    if (index-- == 0) {
      Part part;
      part.first = row; part.last = stop; part.run = run; part.begins = row == start;
      return part;
    }
    row = stop;
  }
}

// A place of its own for the chunk of a row: a run adds at most one chunk that is not full.
FN i64 place_of(i64 row, i64 first, int run, int first_run) { return (row - first) / CHUNK + run - first_run; }

// ln(1 + e^x) and its derivative; x itself above 20.
FN float softplus(float x, float& slope) {
  const float e = exp_(x > 20.f ? 20.f : x), one = 1.f + e, rest = one - 1.f;
  // The quotient makes up for the rounding of 1 + e.
  const float soft = rest == 0.f ? e : logf(one) * (e / rest);
  slope = x > 20.f ? 1.f : sigmoid(x);
  return x > 20.f ? x : soft;
}
// A row's step size, and its derivative: 0 where a limit acts.
FN float step_of(const Scan& of, i64 row, i64 head, float& slope) {
  const float soft = softplus(load_at(of.steps, row, head) + of.bias[head], slope);
  const float limited = fminf(fmaxf(soft, of.low), of.high);
  if (limited != soft) slope = 0.f;
  return limited;
}
FN float rate_of(const Scan& of, i64 head) { return -exp_(of.a_log[head]); }
FN float beta_of(const Scan& of, i64 row, i64 head, float& slope) {
  const float s = sigmoid(load_at(of.betas, row, head));
  slope = of.beta * s * (1.f - s);
  return of.beta * s;
}
FN i64 group_of(const Scan& of, i64 head) { return head / (of.heads / of.groups); }
FN float root_of(const Scan& of) { return 1.f / sqrtf((float)of.n); }

// One over the length of a row of q or k; every lane gets it.
FN float inverse_length(const Scan& of, i64 row, i64 col) {
  float squares = 0.f;
  for (i64 n = threadIdx.x & 31; n < of.n; n += 32) {
    const float x = load_at(of.u, row, col + n);
    squares = fmaf(x, x, squares);
  }
  return 1.f / sqrtf(warp_sum(squares) + of.eps);
}

// Rows `from .. from + count` of q and k in shared memory, with the head's step sizes, decays and betas.
struct Rows { float *q, *k, *delta, *decay, *beta; };
template <bool DELTA> FN void stage(const Scan& of, const Rows& to, i64 from, int count, i64 head, float rate) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  __syncthreads();
  if (warp < count) {
    const i64 row = from + warp, group = group_of(of, head), q = of.q + group * of.n, k = of.k + group * of.n;
    const float by_q = DELTA ? inverse_length(of, row, q) * root_of(of) : 1.f, by_k = DELTA ? inverse_length(of, row, k) : 1.f;
    for (i64 n = lane; n < of.n; n += 32) {
      to.q[warp * of.n + n] = load_at(of.u, row, q + n) * by_q;
      to.k[warp * of.n + n] = load_at(of.u, row, k + n) * by_k;
    }
    if (lane == 0) {
      float slope;
      to.delta[warp] = step_of(of, row, head, slope);
      to.decay[warp] = exp_(to.delta[warp] * rate);
      to.beta[warp] = DELTA ? beta_of(of, row, head, slope) : 0.f;
    }
  }
  __syncthreads();
}

// States at borders of runs, or their gradients: f32 [places, heads, n, p]; a run without one has a place below 0.
struct Border { const i32* places; float* states; i64 stride; };
FN float* border_of(Border border, int run, i64 offset) {
  const i32 place = border.places ? border.places[run] : -1;
  return place < 0 ? 0 : border.states + place * border.stride + offset;
}

// Blocks on x: heads and tiles of 8 columns; on y: parts of `size` rows from `first` on. With `state`, the run's before the rows and
// then after them; otherwise runs begin with zero or the state of their border, and parts within them with what is `kept`, which is
// written with `keeps`.
// For the backward pass, `entering` gets the states before chunks and `rest` x - S^T k of each row.
template <bool DELTA>
FN void forward(const Scan& of, Mat out, float* state, Border before, float* kept, i32 keeps, float* entering, float* rest, i32 run, i64 first, i64 size) {
  DYNAMIC_SHARED(bytes);
  __shared__ float delta[TILE], decay[TILE], beta[TILE];
  Rows rows;
  rows.q = (float*)bytes; rows.k = rows.q + TILE * of.n;
  rows.delta = delta; rows.decay = decay; rows.beta = beta;
  const Part part = part_of(of.table, run, first, (int)blockIdx.y, size);
  const int lane = threadIdx.x & 31;
  const i64 tiles = (of.p + 7) / 8, head = blockIdx.x / tiles, col = blockIdx.x % tiles * 8 + (threadIdx.x >> 5), np = of.n * of.p;
  const i64 start = of.table[part.run], at_x = of.x + head * of.p + col;
  const bool mine = col < of.p;
  const float rate = rate_of(of, head);
  const float* from = state ? state + head * np : part.begins ? border_of(before, part.run, head * np) : kept + ((part.first / SPAN - 1) * of.heads + head) * np;
  float s[MOST];
  #pragma unroll
  for (int i = 0; i < MOST; i++) s[i] = from && mine && lane + 32 * i < of.n ? from[(lane + 32 * i) * of.p + col] : 0.f;
  for (i64 row = part.first; row < part.last; row += TILE) {
    const int count = (int)min((i64)TILE, part.last - row);
    stage<DELTA>(of, rows, row, count, head, rate);
    for (int j = 0; j < count && mine; j++) {
      const i64 now = row + j, within = now - start;
      float* to = 0;
      if (entering && within % CHUNK == 0) to = entering + (place_of(now, first, part.run, run) * of.heads + head) * np;
      else if (keeps && within > 0 && within % SPAN == 0) to = kept + ((now / SPAN - 1) * of.heads + head) * np;
      const float *q = rows.q + j * of.n, *k = rows.k + j * of.n, x = load_at(of.u, now, at_x);
      float along = 0.f, y = 0.f;
      #pragma unroll
      for (int i = 0; i < MOST; i++) {
        const int n = lane + 32 * i;
        if (n >= of.n) continue;
        if (to) to[n * of.p + col] = s[i];
        s[i] *= decay[j];
        along = fmaf(s[i], k[n], along);
      }
      float w = delta[j] * x;
      if (DELTA) {
        const float left = x - warp_sum(along);
        if (rest && lane == 0) rest[((now - first) * of.heads + head) * of.p + col] = left;
        w = beta[j] * left;
      }
      #pragma unroll
      for (int i = 0; i < MOST; i++) {
        const int n = lane + 32 * i;
        if (n >= of.n) continue;
        s[i] = fmaf(k[n], w, s[i]);
        y = fmaf(s[i], q[n], y);
      }
      if (!out.ptr) continue;
      y = warp_sum(y);
      if (!DELTA) y = fmaf(of.d[head], x, y);
      if (lane == 0) store_at(out, now, head * of.p + col, y);
    }
  }
  if (!state || !mine) return;
  #pragma unroll
  for (int i = 0; i < MOST; i++) if (lane + 32 * i < of.n) state[head * np + (lane + 32 * i) * of.p + col] = s[i];
}

// The gradient of the state, from the last row to the first: `leaving` gets it after chunks, `dw` that of w. Blocks on x as above; on
// y: runs from `run` on, of which those rows from `first` to `last` are read. `after` is that of a run that goes on after `last`,
// `before` that of one that has begun before `first`; `ends` are those of runs.
template <bool DELTA>
FN void reverse(const Scan& of, Mat dy, float* leaving, float* dw, const float* after, float* before, Border ends, i32 run, i64 first, i64 last) {
  DYNAMIC_SHARED(bytes);
  __shared__ float delta[TILE], decay[TILE], beta[TILE];
  Rows rows;
  rows.q = (float*)bytes; rows.k = rows.q + TILE * of.n;
  rows.delta = delta; rows.decay = decay; rows.beta = beta;
  const int lane = threadIdx.x & 31, own = run + (int)blockIdx.y;
  const i64 tiles = (of.p + 7) / 8, head = blockIdx.x / tiles, col = blockIdx.x % tiles * 8 + (threadIdx.x >> 5), np = of.n * of.p;
  const i64 start = of.table[own], end = of.table[own + 1], from = max(start, first), to = min(end, last);
  const bool mine = col < of.p;
  const float rate = rate_of(of, head);
  const float* begun = to < end ? after + head * np : border_of(ends, own, head * np);
  float e[MOST];
  #pragma unroll
  for (int i = 0; i < MOST; i++) {
    const int n = lane + 32 * i;
    e[i] = begun && mine && n < of.n ? begun[n * of.p + col] : 0.f;
  }
  for (i64 tile = to; tile > from;) {
    const int count = (int)min((i64)TILE, tile - from);
    tile -= count;
    stage<DELTA>(of, rows, tile, count, head, rate);
    for (int j = count - 1; j >= 0 && mine; j--) {
      const i64 now = tile + j, within = now - start;
      float* at_end = 0;
      if (now + 1 == end || (within + 1) % CHUNK == 0)
        at_end = leaving + (place_of(now - within % CHUNK, first, own, run) * of.heads + head) * np;
      const float *q = rows.q + j * of.n, *k = rows.k + j * of.n, g = load_at(dy, now, head * of.p + col);
      float along = 0.f;
      #pragma unroll
      for (int i = 0; i < MOST; i++) {
        const int n = lane + 32 * i;
        if (n >= of.n) continue;
        if (at_end) at_end[n * of.p + col] = e[i];
        e[i] = fmaf(q[n], g, e[i]);
        along = fmaf(e[i], k[n], along);
      }
      along = warp_sum(along);
      if (lane == 0) dw[((now - first) * of.heads + head) * of.p + col] = along;
      const float by = DELTA ? -beta[j] * along : 0.f;
      #pragma unroll
      for (int i = 0; i < MOST; i++) {
        const int n = lane + 32 * i;
        if (n < of.n) e[i] = (DELTA ? fmaf(k[n], by, e[i]) : e[i]) * decay[j];
      }
    }
  }
  if (from >= to || from == start || !mine) return;
  #pragma unroll
  for (int i = 0; i < MOST; i++) if (lane + 32 * i < of.n) before[head * np + (lane + 32 * i) * of.p + col] = e[i];
}

// A warp's column of a head's state for runs with a place, from their first row to their last or back: with dy, the gradient of the
// state before the run by its rows; without, the state after it from zero, and what the run multiplies a state by: the product of its
// rows' decays, or a matrix [n, n] whose columns are those of the states after it from columns of 1 and no x.
template <bool DELTA> FN void pass(const Scan& of, Mat dy, Border border, float* factors, i64 factors_stride, i32 run) {
  DYNAMIC_SHARED(bytes);
  __shared__ float delta[TILE], decay[TILE], beta[TILE];
  Rows rows;
  rows.q = (float*)bytes; rows.k = rows.q + TILE * of.n;
  rows.delta = delta; rows.decay = decay; rows.beta = beta;
  const int lane = threadIdx.x & 31, own = run + (int)blockIdx.y;
  const i64 cols = of.p + (DELTA && !dy.ptr ? of.n : 0), tiles = (cols + 7) / 8, np = of.n * of.p;
  const i64 head = blockIdx.x / tiles, col = blockIdx.x % tiles * 8 + (threadIdx.x >> 5);
  float* state = border_of(border, own, head * np);
  if (!state) return;
  const i64 start = of.table[own], end = of.table[own + 1];
  const bool mine = col < cols, has_x = col < of.p;
  const float rate = rate_of(of, head);
  float s[MOST], all = 1.f;
  #pragma unroll
  for (int i = 0; i < MOST; i++) s[i] = !has_x && lane + 32 * i == col - of.p ? 1.f : 0.f;
  for (i64 done = 0; done < end - start; done += TILE) {
    const int count = (int)min((i64)TILE, end - start - done);
    const i64 tile = dy.ptr ? end - done - count : start + done;
    stage<DELTA>(of, rows, tile, count, head, rate);
    for (int step = 0; step < count && mine; step++) {
      const int j = dy.ptr ? count - 1 - step : step;
      const float *q = rows.q + j * of.n, *k = rows.k + j * of.n;
      const float x = !has_x ? 0.f : dy.ptr ? load_at(dy, tile + j, head * of.p + col) : load_at(of.u, tile + j, of.x + head * of.p + col);
      float along = 0.f;
      all *= decay[j];
      #pragma unroll
      for (int i = 0; i < MOST; i++) {
        const int n = lane + 32 * i;
        if (n >= of.n) continue;
        s[i] = dy.ptr ? fmaf(q[n], x, s[i]) : s[i] * decay[j];
        if (DELTA) along = fmaf(s[i], k[n], along);
      }
      if (DELTA) along = warp_sum(along);
      const float w = DELTA ? beta[j] * ((dy.ptr ? 0.f : x) - along) : dy.ptr ? 0.f : delta[j] * x;
      #pragma unroll
      for (int i = 0; i < MOST; i++) {
        const int n = lane + 32 * i;
        if (n >= of.n) continue;
        if (DELTA || !dy.ptr) s[i] = fmaf(k[n], w, s[i]);
        if (dy.ptr) s[i] *= decay[j];
      }
    }
  }
  if (!mine) return;
  float* own_factors = factors + border.places[own] * factors_stride;
  #pragma unroll
  for (int i = 0; i < MOST; i++) {
    const int n = lane + 32 * i;
    if (n >= of.n) continue;
    if (has_x) state[n * of.p + col] = s[i];
    else own_factors[(head * of.n + n) * of.n + col - of.p] = s[i];
  }
  if (!DELTA && factors && col == 0 && lane == 0) own_factors[head] = all;
}

// A block's chunk of a head: its rows and factors in shared memory.
struct Chunk {
  i64 first, head, q, k, x;
  int rows;
  // Sums of log decays, step sizes, betas with their derivatives, factors of q and k.
  double* sums;
  float *delta, *slope, *beta, *beta_slope, *by_q, *by_k;
  // From the first row of the chunk and head, `heads x p` apart.
  const float *dw, *rest;
};
FN float q_of(const Scan& of, const Chunk& c, int i, i64 n) { return load_at(of.u, c.first + i, c.q + n) * c.by_q[i]; }
FN float k_of(const Scan& of, const Chunk& c, int i, i64 n) { return load_at(of.u, c.first + i, c.k + n) * c.by_k[i]; }
template <bool DELTA> FN float w_of(const Scan& of, const Chunk& c, int i, i64 p) {
  return DELTA ? c.beta[i] * c.rest[i * of.heads * of.p + p] : c.delta[i] * load_at(of.u, c.first + i, c.x + p);
}
FN float dw_of(const Scan& of, const Chunk& c, int i, i64 p) { return c.dw[i * of.heads * of.p + p]; }

// P_ij and N_ij; with `z`, also P_ij q_i . k_j + N_ij k_i . k_j of j < i.
struct Pair { float p, n, z; };
template <bool DELTA> FN Pair pair(const Scan& of, const Chunk& c, Mat dy, int i, int j, bool z) {
  float by_dy = 0.f, by_dw = 0.f, qk = 0.f, kk = 0.f;
  for (i64 p = 0; p < of.p; p++) {
    const float w = w_of<DELTA>(of, c, j, p);
    by_dy = fmaf(w, load_at(dy, c.first + i, c.head * of.p + p), by_dy);
    if (DELTA) by_dw = fmaf(w, dw_of(of, c, i, p), by_dw);
  }
  const float decay = exp_((float)(c.sums[i] - c.sums[j]));
  Pair pair;
  pair.p = decay * by_dy;
  pair.n = DELTA && j < i ? -decay * c.beta[i] * by_dw : 0.f;
  pair.z = 0.f;
  if (!z || j >= i) return pair;
  for (i64 n = 0; n < of.n; n++) {
    const float k = k_of(of, c, j, n);
    qk = fmaf(q_of(of, c, i, n), k, qk);
    if (DELTA) kk = fmaf(k_of(of, c, i, n), k, kk);
  }
  pair.z = pair.p * qk + pair.n * kk;
  return pair;
}

// Blocks: chunks of a round from `first` on, times heads. `parts` f32 [rows of the round, heads, 2 n] gets gradients of q and k as they
// are multiplied, `terms` f32 [rows, (2 or 3) heads] those of a_log, bias and d.
template <bool DELTA>
FN void gradients(const Scan& of, Mat dy, const float* entering, const float* leaving, const float* rest, const float* dw, Mat du, Mat dsteps, Mat dbetas, float* parts, float* terms, i32 run, i64 first) {
  __shared__ double sums[CHUNK];
  __shared__ float delta[CHUNK], slope[CHUNK], beta[CHUNK], beta_slope[CHUNK], by_q[CHUNK], by_k[CHUNK];
  __shared__ float into[CHUNK], out_of[CHUNK], over[CHUNK], direct[CHUNK], extra[CHUNK];
  __shared__ float p_s[STRIP][CHUNK], n_s[STRIP][CHUNK], z_s[STRIP][CHUNK];
  const int tid = (int)threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const i64 np = of.n * of.p, step = of.heads * of.p;
  const Part part = part_of(of.table, run, first, (int)(blockIdx.x / of.heads), CHUNK);
  Chunk c;
  c.first = part.first; c.rows = (int)(part.last - part.first); c.head = blockIdx.x % of.heads;
  c.q = of.q + group_of(of, c.head) * of.n; c.k = of.k + group_of(of, c.head) * of.n; c.x = of.x + c.head * of.p;
  c.sums = sums; c.delta = delta; c.slope = slope; c.beta = beta; c.beta_slope = beta_slope; c.by_q = by_q; c.by_k = by_k;
  c.dw = dw + (c.first - first) * step + c.head * of.p;
  c.rest = rest + (DELTA ? (c.first - first) * step + c.head * of.p : 0);
  const i64 place = place_of(c.first, first, part.run, run) * of.heads + c.head;
  const float rate = rate_of(of, c.head), *state = entering + place * np, *ending = leaving + place * np;
  float* own = parts + ((c.first - first) * of.heads + c.head) * 2 * of.n;
  const i64 next = of.heads * 2 * of.n;
  for (int i = warp; i < c.rows; i += 8) {
    const float q = DELTA ? inverse_length(of, c.first + i, c.q) * root_of(of) : 1.f;
    const float k = DELTA ? inverse_length(of, c.first + i, c.k) : 1.f;
    if (lane) continue;
    by_q[i] = q;
    by_k[i] = k;
    delta[i] = step_of(of, c.first + i, c.head, slope[i]);
    beta[i] = beta_slope[i] = 0.f;
    if (DELTA) beta[i] = beta_of(of, c.first + i, c.head, beta_slope[i]);
  }
  __syncthreads();
  if (tid == 0) {
    double sum = 0.0;
    for (int i = 0; i < c.rows; i++) sums[i] = sum += (double)delta[i] * (double)rate;
  }
  if (tid < CHUNK) over[tid] = 0.f;
  __syncthreads();
  const double all = sums[c.rows - 1];
  float through = 0.f;
  for (i64 at = tid; at < np; at += 256) through = fmaf(state[at], ending[at], through);
  through = team_sum(through, 256) * exp_((float)all);
  // Rows i of q, with all j before them.
  for (int strip = 0; strip < c.rows; strip += STRIP) {
    for (int at = tid; at < STRIP * CHUNK; at += 256) {
      const int i = strip + at / CHUNK, j = at % CHUNK;
      Pair found = {0.f, 0.f, 0.f};
      if (i < c.rows && j <= i) found = pair<DELTA>(of, c, dy, i, j, true);
      p_s[at / CHUNK][j] = found.p;
      n_s[at / CHUNK][j] = found.n;
      z_s[at / CHUNK][j] = found.z;
    }
    __syncthreads();
    for (int line = warp * 2; line < warp * 2 + 2; line++) {
      const int i = strip + line;
      if (i >= c.rows) break;
      const float enter = exp_((float)sums[i]);
      float r = 0.f;
      for (i64 n = lane; n < of.n; n += 32) {
        float by_dy = 0.f, by_dw = 0.f, dq = 0.f, dk = 0.f;
        for (i64 p = 0; p < of.p; p++) {
          const float s = state[n * of.p + p];
          by_dy = fmaf(s, load_at(dy, c.first + i, c.head * of.p + p), by_dy);
          if (DELTA) by_dw = fmaf(s, dw_of(of, c, i, p), by_dw);
        }
        for (int j = 0; j <= i; j++) {
          const float k = k_of(of, c, j, n);
          dq = fmaf(p_s[line][j], k, dq);
          if (DELTA) dk = fmaf(n_s[line][j], k, dk);
        }
        by_dy *= enter;
        by_dw *= -enter * beta[i];
        own[i * next + n] = dq + by_dy;
        own[i * next + of.n + n] = DELTA ? dk + by_dw : 0.f;
        r += q_of(of, c, i, n) * by_dy + (DELTA ? k_of(of, c, i, n) * by_dw : 0.f);
      }
      r = warp_sum(r);
      if (lane == 0) into[i] = r;
      // Sums of the pairs before each column, in place: a lane has four columns.
      float mine[4], sum = 0.f;
      for (int m = 0; m < 4; m++) { mine[m] = sum; sum += z_s[line][lane * 4 + m]; }
      float before = 0.f;
      for (int m = 0; m < 32; m++) { const float of_lane = __shfl_sync(~0u, sum, m); before += m < lane ? of_lane : 0.f; }
      for (int m = 0; m < 4; m++) z_s[line][lane * 4 + m] = before + mine[m];
    }
    __syncthreads();
    for (int i = strip; tid < CHUNK && i < min(strip + STRIP, c.rows); i++) if (i >= tid) over[tid] += z_s[i - strip][tid];
    __syncthreads();
  }
  // Rows j of k, with all i after them.
  for (int strip = 0; strip < c.rows; strip += STRIP) {
    for (int at = tid; at < STRIP * CHUNK; at += 256) {
      const int j = strip + at / CHUNK, i = at % CHUNK;
      Pair found = {0.f, 0.f, 0.f};
      if (j < c.rows && i >= j && i < c.rows) found = pair<DELTA>(of, c, dy, i, j, false);
      p_s[at / CHUNK][i] = found.p;
      n_s[at / CHUNK][i] = found.n;
    }
    __syncthreads();
    for (int line = warp * 2; line < warp * 2 + 2; line++) {
      const int j = strip + line;
      if (j >= c.rows) break;
      const float leave = exp_((float)(all - sums[j]));
      float r = 0.f, straight = 0.f, by_d = 0.f;
      for (i64 n = lane; n < of.n; n += 32) {
        float by_w = 0.f, dk = 0.f;
        for (i64 p = 0; p < of.p; p++) by_w = fmaf(ending[n * of.p + p], w_of<DELTA>(of, c, j, p), by_w);
        for (int i = j; i < c.rows; i++) {
          dk = fmaf(p_s[line][i], q_of(of, c, i, n), dk);
          if (DELTA) dk = fmaf(n_s[line][i], k_of(of, c, i, n), dk);
        }
        by_w *= leave;
        own[j * next + of.n + n] += dk + by_w;
        r = fmaf(k_of(of, c, j, n), by_w, r);
      }
      for (i64 p = lane; p < of.p; p += 32) {
        const float g = dw_of(of, c, j, p), x = load_at(of.u, c.first + j, c.x + p);
        const float y = load_at(dy, c.first + j, c.head * of.p + p);
        straight = fmaf(g, DELTA ? c.rest[j * step + p] : x, straight);
        by_d = fmaf(y, x, by_d);
        if (du.ptr) store_at(du, c.first + j, c.x + p, DELTA ? beta[j] * g : fmaf(delta[j], g, of.d[c.head] * y));
      }
      r = warp_sum(r);
      straight = warp_sum(straight);
      by_d = warp_sum(by_d);
      if (lane == 0) { out_of[j] = r; direct[j] = straight; extra[j] = by_d; }
    }
    __syncthreads();
  }
  if (tid >= c.rows) return;
  float log_decay = over[tid] + through;
  for (int i = tid; i < c.rows; i++) log_decay += into[i];
  for (int j = 0; j < tid; j++) log_decay += out_of[j];
  const float raw = (log_decay * rate + (DELTA ? 0.f : direct[tid])) * slope[tid];
  const i64 row = c.first + tid;
  float* to = terms + row * (DELTA ? 2 : 3) * of.heads + c.head;
  to[0] = log_decay * delta[tid] * rate;
  to[of.heads] = raw;
  if (!DELTA) to[2 * of.heads] = extra[tid];
  if (dsteps.ptr) store_at(dsteps, row, c.head, raw);
  if (DELTA && dbetas.ptr) store_at(dbetas, row, c.head, direct[tid] * beta_slope[tid]);
}

// Gradients of q and k of `rows` rows from `first` on: sums over the heads of a group, through the division by the length. A warp has
// one row of q or of k.
template <bool DELTA> FN void keys(const Scan& of, const float* parts, Mat du, i64 first, i64 rows) {
  const int lane = threadIdx.x & 31;
  const i64 item = (i64)blockIdx.x * 8 + (threadIdx.x >> 5), which = item & 1, group = item / 2 % of.groups, at = item / 2 / of.groups;
  if (at >= rows) return;
  const i64 row = first + at, each = of.heads / of.groups, col = (which ? of.k : of.q) + group * of.n;
  float g[MOST], along = 0.f;
  const float inverse = DELTA ? inverse_length(of, row, col) : 1.f, root = DELTA && !which ? root_of(of) : 1.f;
  #pragma unroll
  for (int i = 0; i < MOST; i++) {
    const int n = lane + 32 * i;
    g[i] = 0.f;
    if (n >= of.n) continue;
    for (i64 head = group * each; head < (group + 1) * each; head++) g[i] += parts[((at * of.heads + head) * 2 + which) * of.n + n];
    if (!DELTA) continue;
    g[i] *= root;
    along = fmaf(g[i], load_at(of.u, row, col + n) * inverse, along);
  }
  if (DELTA) along = warp_sum(along);
  #pragma unroll
  for (int i = 0; i < MOST; i++) {
    const int n = lane + 32 * i;
    if (n >= of.n) continue;
    store_at(du, row, col + n, DELTA ? inverse * (g[i] - load_at(of.u, row, col + n) * inverse * along) : g[i]);
  }
}

ENTRY(256) ssd_pass(Scan of, Mat dy, Border border, float* factors, i64 factors_stride, i32 run) {
  pass<false>(of, dy, border, factors, factors_stride, run);
}
ENTRY(256) delta_pass(Scan of, Mat dy, Border border, float* factors, i64 factors_stride, i32 run) {
  pass<true>(of, dy, border, factors, factors_stride, run);
}
// `state = decay state + added` of [heads, count], with a decay for each head.
ENTRY(256) ssd_advance(float* state, const float* decays, const float* added, i64 heads, i64 count) {
  const i64 at = (i64)blockIdx.x * 256 + threadIdx.x;
  if (at < heads * count) state[at] = fmaf(decays[at / count], state[at], added[at]);
}
// `after = M before + added` of [heads, n, p], with a matrix [n, n] for each head, or its transpose.
ENTRY(256) delta_advance(const float* matrices, i32 transposed, const float* before, const float* added, float* after, i64 heads, i64 n, i64 p) {
  const i64 at = (i64)blockIdx.x * 256 + threadIdx.x, head = at / (n * p), row = at / p % n, col = at % p;
  if (head >= heads) return;
  const float* matrix = matrices + head * n * n + (transposed ? row : row * n);
  float sum = added[at];
  for (i64 m = 0; m < n; m++) sum = fmaf(matrix[transposed ? m * n : m], before[(head * n + m) * p + col], sum);
  after[at] = sum;
}
ENTRY(256) ssd_forward(Scan of, Mat out, float* state, Border before, float* kept, i32 keeps, float* entering, float* rest, i32 run, i64 first, i64 size) {
  forward<false>(of, out, state, before, kept, keeps, entering, rest, run, first, size);
}
ENTRY(256) delta_forward(Scan of, Mat out, float* state, Border before, float* kept, i32 keeps, float* entering, float* rest, i32 run, i64 first, i64 size) {
  forward<true>(of, out, state, before, kept, keeps, entering, rest, run, first, size);
}
ENTRY(256) ssd_reverse(Scan of, Mat dy, float* leaving, float* dw, const float* after, float* before, Border ends, i32 run, i64 first, i64 last) {
  reverse<false>(of, dy, leaving, dw, after, before, ends, run, first, last);
}
ENTRY(256) delta_reverse(Scan of, Mat dy, float* leaving, float* dw, const float* after, float* before, Border ends, i32 run, i64 first, i64 last) {
  reverse<true>(of, dy, leaving, dw, after, before, ends, run, first, last);
}
ENTRY(256) ssd_gradients(Scan of, Mat dy, const float* entering, const float* leaving, const float* rest, const float* dw, Mat du, Mat dsteps, Mat dbetas, float* parts, float* terms, i32 run, i64 first) {
  gradients<false>(of, dy, entering, leaving, rest, dw, du, dsteps, dbetas, parts, terms, run, first);
}
ENTRY(256) delta_gradients(Scan of, Mat dy, const float* entering, const float* leaving, const float* rest, const float* dw, Mat du, Mat dsteps, Mat dbetas, float* parts, float* terms, i32 run, i64 first) {
  gradients<true>(of, dy, entering, leaving, rest, dw, du, dsteps, dbetas, parts, terms, run, first);
}
ENTRY(256) ssd_keys(Scan of, const float* parts, Mat du, i64 first, i64 rows) { keys<false>(of, parts, du, first, rows); }
ENTRY(256) delta_keys(Scan of, const float* parts, Mat du, i64 first, i64 rows) { keys<true>(of, parts, du, first, rows); }
