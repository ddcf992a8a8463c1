//! Micro batches for a model: the masks of its windows and the tables of its rotations.

use std::ops::Range;

use fathom_grad::{Batch, Rotation};
use fathom_tensor::{Category, DType, Device, Extent, Mask, RopeTable, Slice, Tensor};

use crate::model::Model;
use crate::rope::{Frequencies, RopeSpec};

/// A packed stream of tokens on the host.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    /// Token ids.
    pub ids: &'a [i32],
    /// Position of each token.
    pub positions: &'a [i32],
    /// Ranges that attend among themselves only; they cover the stream.
    pub docs: &'a [Range<usize>],
}

/// Largest rotary table that is kept for a whole micro batch.
const TABLE_BYTES: usize = 32 << 20;

/// Sizes that shapes are charged with, whatever a batch holds.
#[derive(Clone, Copy, Debug)]
pub struct Caps {
    /// Most documents of a micro batch.
    pub docs: usize,
    /// Longest sequence of the stage; decides length-dependent rotary scalings.
    pub seq_tokens: usize,
}

impl Model {
    /// A micro batch on the device: ids, positions, one causal mask per window, one table per rotary setting.
    ///
    /// # Panics
    /// If lengths differ or there are more documents than the cap.
    pub fn batch(&self, device: &Device, packed: Packed<'_>, caps: Caps) -> Batch {
        let tokens = packed.ids.len();
        assert!(
            packed.positions.len() == tokens && packed.docs.len() <= caps.docs,
            "batch: {} ids, {} positions, {} documents of at most {}",
            tokens,
            packed.positions.len(),
            packed.docs.len(),
            caps.docs
        );
        device.pool.enter("batch", -1);
        let ids = device.from_i32(packed.ids, Category::Data);
        let positions = device.from_i32(packed.positions, Category::Data);
        let windows = self.spec.windows();
        let masks = windows
            .iter()
            .map(|window| causal(device, packed.docs, *window, &positions, caps.docs))
            .collect();
        let ropes = self.rotations(device, &positions, caps.seq_tokens);
        Batch { tokens, ids, positions, masks, ropes }
    }

    /// Tables for one run of tokens; those above [`TABLE_BYTES`] are computed tile by tile.
    fn rotations(&self, device: &Device, positions: &Tensor, seq_tokens: usize) -> Vec<Rotation> {
        let rotation = |spec: &RopeSpec| {
            let tokens = positions.cols();
            let frequencies = frequencies(device, spec, seq_tokens);
            if tokens * spec.rot_dim * 4 > TABLE_BYTES {
                return Rotation::ByTile { inv_freq: frequencies.0, factor: frequencies.1 };
            }
            let out = device.empty(tokens, spec.rot_dim, DType::F32, Category::Data);
            rope_table(device, frequencies, positions, &out);
            Rotation::Table(out)
        };
        self.spec.ropes.iter().map(rotation).collect()
    }

    /// f32 [t, rot] cosines and sines for each rotary setting. `sequences` are runs of the stream's tokens, covering it
    /// in order, each with the length of its sequence, which some settings look at.
    pub fn rope_tables(
        &self,
        device: &Device,
        positions: &Tensor,
        sequences: &[(Range<usize>, usize)],
    ) -> Vec<Rotation> {
        let table = |spec: &RopeSpec| {
            let out = device.empty(positions.cols(), spec.rot_dim, DType::F32, Category::Data);
            if spec.looks_at_length() {
                for (rows, tokens) in sequences {
                    let part = positions.view_cols(rows.clone());
                    rope_table(
                        device,
                        frequencies(device, spec, *tokens),
                        &part,
                        &out.view_rows(rows.clone()),
                    );
                }
            } else {
                rope_table(device, frequencies(device, spec, 0), positions, &out);
            }
            Rotation::Table(out)
        };
        self.spec.ropes.iter().map(table).collect()
    }
}

/// f32 [1, rot/2] radians per position, and the factor of cosines and sines.
fn frequencies(device: &Device, spec: &RopeSpec, seq_tokens: usize) -> (Tensor, f32) {
    let Frequencies { inv_freq, factor } = spec.frequencies(seq_tokens);
    (device.from_f32(1, inv_freq.len(), &inv_freq, Category::Data), factor)
}

fn rope_table(device: &Device, (inv_freq, factor): (Tensor, f32), positions: &Tensor, out: &Tensor) {
    device.machine.rope_table(&RopeTable { positions, inv_freq: &inv_freq, factor, out });
}

fn causal(
    device: &Device,
    docs: &[Range<usize>],
    window: Option<usize>,
    positions: &Tensor,
    cap: usize,
) -> Mask {
    let slices: Vec<Slice> = docs.iter().map(|doc| Slice::causal(doc.clone(), doc.clone(), window)).collect();
    let pairs = docs.iter().map(|doc| causal_pairs(doc.len(), window)).sum();
    mask(device, &slices, cap, [positions, positions], pairs)
}

/// Pairs that attend in a causal document of `tokens`, within a window if given.
pub fn causal_pairs(tokens: usize, window: Option<usize>) -> u64 {
    let tokens = tokens as u64;
    let reach = window.map_or(tokens, |window| tokens.min(window as u64));
    reach * (reach + 1) / 2 + (tokens - reach) * reach
}

/// A mask of slices, charged at `cap` slices.
pub fn mask(device: &Device, slices: &[Slice], cap: usize, positions: [&Tensor; 2], pairs: u64) -> Mask {
    let table = device.empty(cap, 6, DType::I64, Category::Data);
    let row = |s: &Slice| [s.q_start, s.q_end, s.k_start, s.k_end, s.lo, s.hi];
    let mut bytes: Vec<u8> = slices.iter().flat_map(row).flat_map(i64::to_le_bytes).collect();
    bytes.resize(cap * 48, 0);
    device.machine.write(&table, &bytes);
    let count = device.from_i32(&[slices.len() as i32], Category::Data);
    let [pos_q, pos_k] = positions.map(Tensor::clone);
    Mask { table, slices: Extent::UpTo { cap, count }, pos_q, pos_k, pairs }
}
