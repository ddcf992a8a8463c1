//! Common parts of the operations' tests: f64 matrices for references, batches, and small graphs compared with
//! references.

mod case;
pub(crate) mod recurrence;

use std::ops::{Index, IndexMut, Range};

use fathom_cpu::isa::Isa;
use fathom_tensor::{
    Category, DType, Device, DocumentRun, DocumentRuns, Extent, Mask, PackedMask, RopeTable, Slice, Tensor,
};

use crate::{Batch, Param, ParamId, Params};

pub(crate) use case::{Case, check, check_pair, check_within, join};

/// Rows x columns in f64.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Matrix {
    pub rows: usize,
    pub cols: usize,
    pub data: Vec<f64>,
}

impl Index<(usize, usize)> for Matrix {
    type Output = f64;

    fn index(&self, (row, col): (usize, usize)) -> &f64 {
        &self.data[row * self.cols + col]
    }
}

impl IndexMut<(usize, usize)> for Matrix {
    fn index_mut(&mut self, (row, col): (usize, usize)) -> &mut f64 {
        &mut self.data[row * self.cols + col]
    }
}

/// A number in 0..1 that depends on both arguments only (SplitMix64).
pub(crate) fn uniform(seed: u64, index: u64) -> f64 {
    let mut z = (seed << 32).wrapping_add(index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

impl Matrix {
    pub fn new(rows: usize, cols: usize, mut element: impl FnMut(usize, usize) -> f64) -> Matrix {
        let data = (0..rows * cols).map(|at| element(at / cols, at % cols)).collect();
        Matrix { rows, cols, data }
    }

    pub fn zeros(rows: usize, cols: usize) -> Matrix {
        Matrix::new(rows, cols, |_, _| 0.0)
    }

    /// Roughly normal elements of deviation one.
    pub fn random(rows: usize, cols: usize, seed: u64) -> Matrix {
        let draw =
            |at: u64| (0..4).map(|k| uniform(seed, 4 * at + k)).sum::<f64>() * 3f64.sqrt() - 12f64.sqrt();
        Matrix::new(rows, cols, |row, col| draw((row * cols + col) as u64))
    }

    pub fn times(mut self, factor: f64) -> Matrix {
        self.data.iter_mut().for_each(|x| *x *= factor);
        self
    }

    pub fn columns(&self, range: Range<usize>) -> Matrix {
        Matrix::new(self.rows, range.len(), |row, col| self[(row, range.start + col)])
    }

    /// Rounded to the type.
    pub fn rounded(&self, dtype: DType) -> Matrix {
        Matrix::new(self.rows, self.cols, |row, col| round(self[(row, col)], dtype))
    }

    /// All columns of `parts` side by side.
    pub fn join(parts: &[Matrix]) -> Matrix {
        let mut joined = Matrix::zeros(parts[0].rows, parts.iter().map(|part| part.cols).sum());
        let mut start = 0;
        for part in parts {
            for row in 0..part.rows {
                for col in 0..part.cols {
                    joined[(row, start + col)] = part[(row, col)];
                }
            }
            start += part.cols;
        }
        joined
    }
}

fn bf16_bits(x: f64) -> u16 {
    let bits = (x as f32).to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

fn round(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => f64::from(f32::from_bits(u32::from(bf16_bits(x)) << 16)),
        _ => f64::from(x as f32),
    }
}

/// A matrix on the device, or inside a wider one with columns around it.
pub(crate) fn upload(
    device: &Device,
    from: &Matrix,
    dtype: DType,
    category: Category,
    strided: bool,
) -> Tensor {
    let gap = if strided { 3 } else { 0 };
    let wide = device.zeros(from.rows, from.cols + 2 * gap, dtype, category);
    let tensor = wide.view_cols(gap..gap + from.cols);
    let bytes: Vec<u8> = match dtype {
        DType::Bf16 => from.data.iter().flat_map(|x| bf16_bits(*x).to_le_bytes()).collect(),
        _ => from.data.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect(),
    };
    device.machine.write(&tensor, &bytes);
    tensor
}

/// The elements; zeros from a machine without data.
pub(crate) fn download(device: &Device, from: &Tensor) -> Matrix {
    let [rows, cols] = from.shape();
    let data = device.to_f32(from).into_iter().map(f64::from).collect();
    if device.machine.has_data() { Matrix { rows, cols, data } } else { Matrix::zeros(rows, cols) }
}

/// A rotary setting.
#[derive(Clone, Debug)]
pub(crate) struct Rotation {
    pub inv_freq: Vec<f32>,
    pub factor: f32,
}

impl Rotation {
    /// Base 10000 over `rot` columns (Su et al., 2021, section 3.3).
    pub fn standard(rot: usize, factor: f32) -> Rotation {
        let frequency = |pair: usize| 1e4f64.powf(-2.0 * pair as f64 / rot as f64) as f32;
        Rotation { inv_freq: (0..rot / 2).map(frequency).collect(), factor }
    }
}

/// The host's side of a batch with at most one mask.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub ids: Vec<i32>,
    pub positions: Vec<i32>,
    pub slices: Vec<Slice>,
    pub rotation: Option<Rotation>,
    /// Each document has its own mask.
    pub apart: bool,
    /// Keys for dropout, one per token.
    pub keys: Option<Vec<i32>>,
    /// Slopes of heads by distance.
    pub slopes: Option<Vec<f32>>,
}

impl Stream {
    /// Documents of these lengths, each causal within a window if given; ids below `vocab`.
    pub fn documents(lengths: &[usize], window: Option<usize>, vocab: usize) -> Stream {
        let mut stream = Stream {
            ids: vec![],
            positions: vec![],
            slices: vec![],
            rotation: None,
            apart: false,
            keys: None,
            slopes: None,
        };
        for length in lengths {
            let rows = stream.ids.len()..stream.ids.len() + length;
            stream.ids.extend(rows.clone().map(|at| (uniform(77, at as u64) * vocab as f64) as i32));
            stream.positions.extend(0..*length as i32);
            stream.slices.push(Slice::causal(rows.clone(), rows, window));
        }
        stream
    }

    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// The rows of the document with this row.
    pub fn document(&self, row: usize) -> Range<usize> {
        let rows = |slice: &Slice| slice.q_start as usize..slice.q_end as usize;
        let Some(rows) = self.slices.iter().map(rows).find(|rows| rows.contains(&row)) else {
            panic!("row {row} is in no document")
        };
        rows
    }

    /// True if query row `q` attends to key row `k`: the definition of [`Slice`].
    pub fn attends(&self, q: usize, k: usize) -> bool {
        let distance = i64::from(self.positions[k]) - i64::from(self.positions[q]);
        let (q, k) = (q as i64, k as i64);
        self.slices.iter().any(|s| {
            (s.q_start..s.q_end).contains(&q)
                && (s.k_start..s.k_end).contains(&k)
                && (s.lo..=s.hi).contains(&distance)
        })
    }

    pub fn upload(&self, device: &Device) -> Batch {
        let ids = device.from_i32(&self.ids, Category::Data);
        let positions = device.from_i32(&self.positions, Category::Data);
        let cap = self.slices.len() + 1;
        let table = device.empty(cap, 6, DType::I64, Category::Data);
        let row = |s: &Slice| [s.q_start, s.q_end, s.k_start, s.k_end, s.lo, s.hi];
        let mut bytes: Vec<u8> = self.slices.iter().flat_map(row).flat_map(i64::to_le_bytes).collect();
        bytes.resize(cap * 48, 0);
        device.machine.write(&table, &bytes);
        let count = device.from_i32(&[self.slices.len() as i32], Category::Data);
        let slices = Extent::UpTo { cap, count };
        let pairs = (0..self.tokens()).flat_map(|q| (0..self.tokens()).map(move |k| (q, k)));
        let pairs = pairs.filter(|(q, k)| self.attends(*q, *k)).count() as u64;
        let packed = PackedMask::of(&self.slices, &self.positions, &self.positions);
        let (pos_q, pos_k) = (positions.clone(), positions.clone());
        let mask = Mask { table, slices, pos_q, pos_k, pairs, packed, partial: false, pages: None };
        let rope = |rotation: &Rotation| {
            let inv_freq = device.from_f32(1, rotation.inv_freq.len(), &rotation.inv_freq, Category::Data);
            let out = device.empty(self.tokens(), 2 * rotation.inv_freq.len(), DType::F32, Category::Data);
            let (positions, inv_freq, factor) = (&positions, &inv_freq, rotation.factor);
            device.machine.rope_table(&RopeTable { positions, inv_freq, factor, out: &out });
            crate::Rotation::Table(out)
        };
        let ropes = self.rotation.iter().map(rope).collect();
        let of_doc = |slice: &Slice| {
            let rows = slice.q_start as usize..slice.q_end as usize;
            let (own, all) = (positions.view_cols(rows.clone()), Slice::full(0..rows.len(), 0..rows.len()));
            crate::mask(device, &[all], 1, [&own, &own], (rows.len() * rows.len()) as u64)
        };
        let masks = if self.apart { self.slices.iter().map(of_doc).collect() } else { vec![mask] };
        let text = Some(Batch::text_of(device, &self.ids));
        let run = |(document, slice): (usize, &Slice)| DocumentRun {
            rows: slice.q_start as usize..slice.q_end as usize,
            document,
            offset: 0,
        };
        let runs = self.slices.iter().enumerate().map(run).collect();
        let documents = Some(DocumentRuns::new(device, runs, self.slices.len()));
        let keys = self.keys.as_ref().map(|keys| device.from_i32(keys, Category::Data));
        let slopes = self.slopes.as_ref().map(|row| device.from_f32(1, row.len(), row, Category::Data));
        Batch { documents, masks, ropes, text, keys, slopes, ..Batch::new(ids, positions) }
    }
}

pub(crate) fn weights(device: &Device, values: &[Matrix], dtype: DType) -> (Params, Vec<ParamId>) {
    let mut params = Params::default();
    let ids = values.iter().enumerate().map(|(index, value)| {
        let tensor = upload(device, value, dtype, Category::Params, false);
        params.push(Param {
            name: format!("weight.{index}"),
            value: tensor.into(),
            decays: true,
            trainable: true,
        })
    });
    let ids = ids.collect();
    (params, ids)
}

/// Instruction sets of this processor.
pub(crate) fn levels() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| *isa <= Isa::detect())
}

/// Errors are measured against the largest element expected, or `floor` if that is more.
#[track_caller]
pub(crate) fn assert_close(
    at: &str,
    what: &str,
    found: &[f64],
    expected: &[f64],
    tolerance: f64,
    floor: f64,
) {
    assert_eq!(found.len(), expected.len(), "{at}: {what}");
    let largest = expected.iter().fold(floor.max(1e-12), |most, x| x.abs().max(most));
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs() / largest;
        assert!(
            !(error.is_nan() || error > tolerance),
            "{at}: {what} at {index}: {found}, expected {expected} (error {error:.1e} of the largest)"
        );
    }
}
