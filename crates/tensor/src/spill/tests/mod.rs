//! The engine over machines with and without data.
//!
//! `round`: values are read back unchanged, whatever type, stride, size, codec and access. `flight`: values in flight
//! stay charged and cannot be used. `rewrite`: values that keep their place. `plan`: a machine without data makes the
//! same charges. `trouble`: refusals, faults, chaos.

mod flight;
mod machine;
mod plan;
mod rewrite;
mod round;
mod trouble;

use super::{Codec, Options, Spill, Tag};
use crate::{Category, DType, Device, Tensor};

const TAG: Tag = Tag { name: "mlp.act", layer: 3 };
const BUDGET: u64 = 24 << 20;

/// A temporary folder.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Two workers and small pieces, so that small tensors have many pieces.
fn options(folder: &tempfile::TempDir) -> Options {
    Options { piece_bytes: 16384, ..Options::new(folder.path(), 8 << 20) }
}

/// Bytes that vary with position.
fn pattern(seed: u64, len: u64) -> Vec<u8> {
    (0..len).map(|i| (super::chaos::mix(&[seed, i / 8]) >> (i % 8 * 8)) as u8).collect()
}

fn filled(device: &Device, seed: u64, [rows, cols]: [usize; 2], dtype: DType) -> Tensor {
    let tensor = device.empty(rows, cols, dtype, Category::Activations);
    device.machine.write(&tensor, &pattern(seed, tensor.bytes()));
    tensor
}

fn bytes(device: &Device, tensor: &Tensor) -> Vec<u8> {
    device.machine.read(tensor).wait()
}

/// Writes and reads back into another tensor.
fn round_trip(device: &Device, spill: &Spill, tensor: Tensor, codec: Codec) -> Tensor {
    let ([rows, cols], dtype) = (tensor.shape(), tensor.dtype());
    let stored = spill.write(tensor, codec, TAG).unwrap().retire().unwrap();
    let into = device.empty(rows, cols, dtype, Category::Activations);
    spill.read(&stored, into).unwrap().retire().unwrap()
}
