// Activation functions, plain and gated, with their gradients.
#include "math.cuh"

enum { SILU = 0, GELU_TANH = 1, GELU_ERF = 2, RELU = 3, RELU2 = 4, TANH = 5, SIGMOID = 6 };

// A function and its derivative.
template <int kind> FN float both(float x, float& slope) {
  if (kind == SILU) {
    const float s = sigmoid(x);
    slope = s * fmaf(x, 1.f - s, 1.f);
    return x * s;
  }
  if (kind == GELU_TANH) {
    // With u = sqrt(2 / pi) (x + 0.044715 x^3), (1 + tanh u) / 2 = sigmoid(2 u).
    const float square = x * x, s = sigmoid(1.595769f * x * fmaf(0.044715f, square, 1.f));
    slope = fmaf(x * s * (1.f - s), 1.595769f * fmaf(3.f * 0.044715f, square, 1.f), s);
    return x * s;
  }
  if (kind == GELU_ERF) {
    float density;
    const float phi = normal(x, density);
    slope = fmaf(x, density, phi);
    return x * phi;
  }
  if (kind == TANH) {
    const float t = tanh_(x);
    slope = fmaf(-t, t, 1.f);
    return t;
  }
  if (kind == SIGMOID) {
    const float s = sigmoid(x);
    slope = s * (1.f - s);
    return s;
  }
  if (x <= 0.f) { slope = 0.f; return 0.f; }
  slope = kind == RELU ? 1.f : 2.f * x;
  return kind == RELU ? x : x * x;
}

// The same of eight: one branch for all, so that they are under way together.
template <int kind> FN void each(float (&x)[8], float (&slope)[8]) {
  #pragma unroll
  for (int i = 0; i < 8; i++) x[i] = both<kind>(x[i], slope[i]);
}
FN void both8(int kind, float (&x)[8], float (&slope)[8]) {
  if (kind == SILU) each<SILU>(x, slope);
  else if (kind == GELU_TANH) each<GELU_TANH>(x, slope);
  else if (kind == GELU_ERF) each<GELU_ERF>(x, slope);
  else if (kind == RELU) each<RELU>(x, slope);
  else if (kind == RELU2) each<RELU2>(x, slope);
  else if (kind == TANH) each<TANH>(x, slope);
  else each<SIGMOID>(x, slope);
}

FN void forward(Mat gate, Mat up, Mat out, Cell c, i64 left, i32 kind) {
  const Raw raw_g = fetch8(gate, c.row, c.col, left), raw_u = up.ptr ? fetch8(up, c.row, c.col, left) : raw_g;
  float g[8], slope[8];
  widen8(g, gate.type, raw_g);
  both8(kind, g, slope);
  if (up.ptr) {
    float u[8];
    widen8(u, up.type, raw_u);
    #pragma unroll
    for (int i = 0; i < 8; i++) g[i] *= u[i];
  }
  store8(out, c.row, c.col, left, g);
}

FN void backward(Mat gate, Mat up, Mat dy, Mat dgate, Mat dup, Cell c, i64 left, i32 kind) {
  const Raw raw_g = fetch8(gate, c.row, c.col, left), raw_d = fetch8(dy, c.row, c.col, left);
  const Raw raw_u = up.ptr ? fetch8(up, c.row, c.col, left) : raw_g;
  float g[8], slope[8], d[8], u[8];
  widen8(g, gate.type, raw_g);
  both8(kind, g, slope);
  widen8(d, dy.type, raw_d);
  // Both results before the first is stored: few registers live across a store's call.
  if (up.ptr) {
    widen8(u, up.type, raw_u);
    #pragma unroll
    for (int i = 0; i < 8; i++) g[i] *= d[i];
    #pragma unroll
    for (int i = 0; i < 8; i++) d[i] *= u[i];
  }
  #pragma unroll
  for (int i = 0; i < 8; i++) d[i] *= slope[i];
  if (up.ptr) store8(dup, c.row, c.col, left, g);
  store8(dgate, c.row, c.col, left, d);
}

// out = act(gate) up, or act(gate) without up. SwiGLU in bf16 has code of its own, as its instructions take longer than its bytes.
ENTRY(256) activate(Mat gate, Mat up, Mat out, i64 rows, i64 cols, i32 shift, i32 pieces, i32 kind) {
  const Cell c = cell(shift, pieces);
  if (c.row >= rows || c.col >= cols) return;
  if (kind == SILU && up.ptr && gate.type == BF16 && up.type == BF16 && out.type == BF16) {
    gate.type = up.type = out.type = BF16;
    forward(gate, up, out, c, cols - c.col, SILU);
  } else {
    forward(gate, up, out, c, cols - c.col, kind);
  }
}

// dgate = dy up act'(gate), dup = dy act(gate).
ENTRY(256) activate_backward(Mat gate, Mat up, Mat dy, Mat dgate, Mat dup, i64 rows, i64 cols, i32 shift, i32 pieces, i32 kind) {
  const Cell c = cell(shift, pieces);
  if (c.row >= rows || c.col >= cols) return;
  const bool halves = gate.type == BF16 && up.type == BF16 && dy.type == BF16 && dgate.type == BF16 && dup.type == BF16;
  if (kind == SILU && up.ptr && halves) {
    gate.type = up.type = dy.type = dgate.type = dup.type = BF16;
    backward(gate, up, dy, dgate, dup, c, cols - c.col, SILU);
  } else {
    backward(gate, up, dy, dgate, dup, c, cols - c.col, kind);
  }
}

// gpt-oss: (up + 1) gate sigmoid(1.702 gate), gate at most 7, up within -7 and 7, in turns. Cells of four pairs of x.
ENTRY(256) clamped(Mat x, Mat out, i64 rows, i64 cols, i32 shift, i32 pieces) {
  const Cell c = cell(shift, pieces);
  if (c.row >= rows || c.col >= 2 * cols) return;
  float v[8];
  load8(v, x, c.row, c.col, 2 * cols - c.col);
  #pragma unroll
  for (int i = 0; i < 4; i++) {
    const float gate = v[2 * i] > 7.f ? 7.f : v[2 * i];
    float up = v[2 * i + 1] > 7.f ? 7.f : v[2 * i + 1];
    up = up < -7.f ? -7.f : up;
    if (c.col / 2 + i < cols) store(out, c.row, c.col / 2 + i, (up + 1.f) * (gate * sigmoid(1.702f * gate)));
  }
}

ENTRY(256) clamped_backward(Mat x, Mat dy, Mat dx, i64 rows, i64 cols, i32 shift, i32 pieces) {
  const Cell c = cell(shift, pieces);
  if (c.row >= rows || c.col >= 2 * cols) return;
  float v[8];
  load8(v, x, c.row, c.col, 2 * cols - c.col);
  #pragma unroll
  for (int i = 0; i < 4; i++) {
    if (c.col / 2 + i >= cols) break;
    const float d = load(dy, c.row, c.col / 2 + i), raw_gate = v[2 * i], raw_up = v[2 * i + 1];
    const float gate = raw_gate > 7.f ? 7.f : raw_gate;
    float up = raw_up > 7.f ? 7.f : raw_up;
    up = up < -7.f ? -7.f : up;
    const float s = sigmoid(1.702f * gate), slope = s * fmaf(1.702f * gate, 1.f - s, 1.f);
    v[2 * i] = raw_gate > 7.f ? 0.f : d * (up + 1.f) * slope;
    v[2 * i + 1] = fabsf(raw_up) > 7.f ? 0.f : d * gate * s;
  }
  store8(dx, c.row, c.col, 2 * cols - c.col, v);
}
