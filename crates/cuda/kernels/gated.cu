// RMSNorms with a gate, silu(z), before or after them, and the gate alone; with their gradients. A team of threads (32, or a
// block of 256) has one group of columns of one row.
#include "math.cuh"

FN float gate_of(float z, float& slope) {
  const float s = sigmoid(z);
  slope = s * fmaf(z, 1.f - s, 1.f);
  return z * s;
}

// One over the root mean square of the values that a group normalises.
FN float inverse_of(Mat y, Mat z, i64 row, i64 at, i32 width, i32 team, i32 gate_first, float eps) {
  float squares = 0.f, slope;
  for (int i = (int)(threadIdx.x % team); i < width; i += team) {
    const float x = load_at(y, row, at + i) * (gate_first ? gate_of(load_at(z, row, at + i), slope) : 1.f);
    squares = fmaf(x, x, squares);
  }
  return 1.f / sqrtf(team_sum(squares, team) / (float)width + eps);
}

ENTRY(256) gated_norm(Mat y, Mat z, Mat weight, Mat out, i64 rows, i64 weights, i32 groups, i32 width, i32 team, i32 gate_first, float eps) {
  const i64 item = (i64)blockIdx.x * (256 / team) + threadIdx.x / team, row = item / groups, at = item % groups * width;
  if (row >= rows) return;
  const float inverse = weight.ptr ? inverse_of(y, z, row, at, width, team, gate_first, eps) : 1.f;
  for (int i = (int)(threadIdx.x % team); i < width; i += team) {
    float slope;
    const float gate = gate_of(load_at(z, row, at + i), slope), x = load_at(y, row, at + i);
    const float w = weight.ptr ? load_at(weight, 0, (at + i) % weights) : 1.f;
    store_at(out, row, at + i, gate_first && weight.ptr ? x * gate * inverse * w : x * inverse * w * gate);
  }
}

// Gradients of y and z.
ENTRY(256) gated_norm_backward(Mat y, Mat z, Mat weight, Mat dout, Mat dy, Mat dz, i64 rows, i64 weights, i32 groups, i32 width, i32 team, i32 gate_first, float eps) {
  const i64 item = (i64)blockIdx.x * (256 / team) + threadIdx.x / team, row = item / groups, at = item % groups * width;
  if (row >= rows) return;
  const int first = (int)(threadIdx.x % team);
  const bool norms = weight.ptr != 0;
  const float inverse = norms ? inverse_of(y, z, row, at, width, team, gate_first, eps) : 1.f;
  float along = 0.f, slope;
  for (int i = first; norms && i < width; i += team) {
    const float gate = gate_of(load_at(z, row, at + i), slope), x = load_at(y, row, at + i);
    const float h = load_at(dout, row, at + i) * load_at(weight, 0, (at + i) % weights);
    along += gate_first ? h * x * gate * inverse : h * gate * x * inverse;
  }
  along = norms ? team_sum(along, team) / (float)width : 0.f;
  for (int i = first; i < width; i += team) {
    const float gate = gate_of(load_at(z, row, at + i), slope), x = load_at(y, row, at + i);
    const float g = load_at(dout, row, at + i), w = norms ? load_at(weight, 0, (at + i) % weights) : 1.f;
    float to_y, to_z;
    if (!norms) {
      to_y = g * gate;
      to_z = g * x * slope;
    } else if (gate_first) {
      const float du = inverse * (g * w - x * gate * inverse * along);
      to_y = du * gate;
      to_z = du * x * slope;
    } else {
      to_y = inverse * (g * w * gate - x * inverse * along);
      to_z = g * x * inverse * w * slope;
    }
    if (dy.ptr) store_at(dy, row, at + i, to_y);
    if (dz.ptr) store_at(dz, row, at + i, to_z);
  }
}

// Sums of the weight's gradient over each chunk of 128 rows from `first_row` on: f32 [chunks, weights]; a block has a chunk, and a
// thread columns of its own.
ENTRY(256) gated_norm_chunks(Mat y, Mat z, Mat dout, float* sums, i64 first_row, i64 rows, i64 weights, i32 groups, i32 width, i32 gate_first, float eps) {
  const i64 start = first_row + (i64)blockIdx.x * 128, end = min(start + 128, rows);
  float* to = sums + (i64)blockIdx.x * weights;
  for (i64 at = 0; at < weights; at += width)
    for (int i = (int)threadIdx.x; i < width; i += 256) to[at + i] = 0.f;
  for (i64 row = start; row < end; row++)
    for (int group = 0; group < groups; group++) {
      const i64 at = (i64)group * width;
      const float inverse = inverse_of(y, z, row, at, width, 256, gate_first, eps);
      for (int i = (int)threadIdx.x; i < width; i += 256) {
        float slope;
        const float gated = load_at(y, row, at + i) * gate_of(load_at(z, row, at + i), slope) * inverse;
        to[(at + i) % weights] += load_at(dout, row, at + i) * gated;
      }
    }
}
