//! Products with packed weights: the same bits on every instruction set and for any number of rows, and within the
//! error bound of f64 results.

use fathom_tensor::Grouped;
use fathom_tensor::ggml::Kind;
use fathom_tensor::ggml::dequantise;
use fathom_tensor::ggml::octets::{dequantise_row, interleave, interleaves};
use half::{bf16, f16};

use super::*;
use crate::threads::Threads;

const KINDS: [Kind; 8] =
    [Kind::Q8_0, Kind::Q4_0, Kind::Q4_1, Kind::Q5_0, Kind::Q5_1, Kind::Q4K, Kind::Q5K, Kind::Q6K];

const GROUPED: [(Codes, usize); 8] = [
    (Codes::Int2, 64),
    (Codes::Int4, 32),
    (Codes::Int4, 128),
    (Codes::Int8, 96),
    (Codes::E2m1, 32),
    (Codes::E2m1, 16),
    (Codes::E4m3, 64),
    (Codes::E4m3, 32),
];

/// All formats, with the granularity of their row lengths.
fn formats() -> impl Iterator<Item = (BlockFormat, usize)> {
    let grouped =
        GROUPED.map(|(codes, group)| (BlockFormat::Grouped(Grouped { codes, group }), group.max(32)));
    let octets = KINDS.into_iter().filter(|kind| interleaves(*kind)).map(BlockFormat::Octets);
    let blocks = KINDS.map(BlockFormat::Ggml).into_iter().chain(octets);
    let held = [(BlockFormat::Nf4, 64), (BlockFormat::Int8, 32)];
    blocks.map(|format| (format, format.block(0))).chain(grouped).chain(held)
}

/// Every level that this machine supports.
pub(super) fn levels() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| *isa <= Isa::detect())
}

/// xorshift64.
pub(super) struct Random(pub u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Uniform in (-1, 1).
    pub fn next(&mut self) -> f32 {
        ((self.bits() >> 40) as f32 + 0.5) / (1u64 << 23) as f32 - 1.0
    }
}

/// Random blocks with small f16 numbers, which are denormal in every seventh block.
fn blocks(kind: Kind, elements: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..kind.bytes(elements)).map(|_| random.bits() as u8).collect();
    let at: &[usize] = match kind {
        Kind::Q4_1 | Kind::Q5_1 | Kind::Q4K | Kind::Q5K => &[0, 2],
        Kind::Q6K => &[208],
        _ => &[0],
    };
    for (index, block) in bytes.chunks_exact_mut(kind.block_bytes()).enumerate() {
        let size = if index % 7 == 3 { 3e-5 } else { 0.01 };
        for at in at {
            block[*at..at + 2].copy_from_slice(&f16::from_f32(random.next() * size).to_le_bytes());
        }
    }
    bytes
}

/// Random rows of a format.
fn packed_rows(format: BlockFormat, (n, k): (usize, usize), random: &mut Random) -> Vec<u8> {
    let grouped = match format {
        BlockFormat::Ggml(kind) => return blocks(kind, n * k, random),
        BlockFormat::Octets(kind) => {
            let mut bytes = blocks(kind, n * k, random);
            bytes.chunks_mut(OCTET * format.row_bytes(k)).for_each(|rows| interleave(kind, rows));
            return bytes;
        }
        BlockFormat::Grouped(grouped) => grouped,
        BlockFormat::Nf4 | BlockFormat::Int8 => {
            let mut bytes: Vec<u8> = (0..n * format.row_bytes(k)).map(|_| random.bits() as u8).collect();
            for row in bytes.chunks_mut(format.row_bytes(k)) {
                for scale in row[format.scales_at(k)..].as_chunks_mut::<4>().0 {
                    *scale = (random.next() * 0.01).to_le_bytes();
                }
            }
            return bytes;
        }
    };
    let mut bytes = vec![0; n * format.row_bytes(k)];
    for row in bytes.chunks_mut(format.row_bytes(k)) {
        let raw: Vec<u8> = (0..k).map(|_| random.bits() as u8).collect();
        let most = if grouped.codes.bits() == 8 { 255 } else { (1 << grouped.codes.bits()) - 1 };
        // No e4m3 code is a NaN.
        let code = |at: usize| raw[at] & if grouped.codes == Codes::E4m3 { 0xfe } else { most };
        let scale = |at: usize| (f32::from(raw[at]) * 1e-4 - 0.01, raw[at + 1] & most);
        grouped.write_row(k, code, scale, row);
    }
    bytes
}

/// A in either storage, with NaN columns next to it.
struct PaddedRows {
    bytes: Vec<u8>,
    elem: Elem,
    values: Vec<f32>,
    k: usize,
}

const UNUSED: usize = 3;

impl PaddedRows {
    fn new(m: usize, k: usize, elem: Elem, value: impl Fn(usize, &mut Random) -> f32) -> PaddedRows {
        let (mut random, mut bytes, mut values) = (Random(77), Vec::new(), Vec::new());
        for _ in 0..m {
            for col in 0..k + UNUSED {
                let x = if col < k { value(col, &mut random) } else { f32::NAN };
                match elem {
                    Elem::F32 => bytes.extend(x.to_le_bytes()),
                    Elem::Bf16 => bytes.extend(bf16::from_f32(x).to_le_bytes()),
                }
                if col < k {
                    values.push(if elem == Elem::F32 { x } else { bf16::from_f32(x).to_f32() });
                }
            }
        }
        PaddedRows { bytes, elem, values, k }
    }

    fn mat(&self, row: usize) -> Mat {
        let stride = self.k + UNUSED;
        Mat { ptr: self.bytes[row * stride * self.elem.bytes()..].as_ptr(), elem: self.elem, stride }
    }
}

/// Rows `first..first + m` of the product, with a column next to them that must stay unchanged.
fn product_of(isa: Isa, threads: usize, a: &PaddedRows, first: usize, m: usize, runs: &[Run]) -> Vec<u32> {
    let n: usize = runs.iter().map(|run| run.rows).sum();
    let threads = Threads::new(threads);
    let mut c = vec![-7.0f32; m * (n + 1)];
    let mut scratch = vec![0xffu8; workspace_bytes(isa, threads.count(), m, a.k)];
    let out = MatMut { ptr: c.as_mut_ptr().cast(), elem: Elem::F32, stride: n + 1 };
    let op = Product { m, k: a.k, a: a.mat(first), runs, c: out };
    // SAFETY: the operands have these extents, and the level is supported by this machine.
    unsafe { product(Place { threads: &threads, isa }, &op, scratch.as_mut_ptr()) };
    assert!(c.chunks(n + 1).all(|row| row[n] == -7.0), "written outside the result");
    c.chunks(n + 1).flat_map(|row| row[..n].iter().map(|x| x.to_bits()).collect::<Vec<_>>()).collect()
}

/// Weights in consecutive runs of formats.
pub(super) fn weights(formats: &[(BlockFormat, usize)], k: usize) -> (Vec<Vec<u8>>, Vec<f32>) {
    let mut random = Random(0x9e37_79b9 ^ k as u64);
    let all: Vec<Vec<u8>> =
        formats.iter().map(|(format, n)| packed_rows(*format, (*n, k), &mut random)).collect();
    let mut plain = Vec::new();
    for ((format, _), bytes) in formats.iter().zip(&all) {
        for (at, row) in bytes.chunks(format.row_bytes(k)).enumerate() {
            let mut out = vec![0.0; k];
            match *format {
                BlockFormat::Octets(kind) => {
                    let wide = OCTET * format.row_bytes(k);
                    dequantise_row(kind, &bytes[at / OCTET * wide..][..wide], (at % OCTET, 0), &mut out);
                }
                _ => format.unpack_row(row, &mut out),
            }
            plain.extend(out);
        }
    }
    (all, plain)
}

pub(super) fn runs(formats: &[(BlockFormat, usize)], bytes: &[Vec<u8>]) -> Vec<Run> {
    let run = |((format, rows), bytes): (&(BlockFormat, usize), &Vec<u8>)| Run {
        format: *format,
        rows: *rows,
        bytes: bytes.as_ptr(),
    };
    formats.iter().zip(bytes).map(run).collect()
}

/// Number of rows, rounded up to a format's granularity.
fn fitting(format: BlockFormat, n: usize) -> usize {
    if matches!(format, BlockFormat::Octets(_)) { n.next_multiple_of(OCTET) } else { n }
}

fn ggml(kinds: &[(Kind, usize)]) -> Vec<(BlockFormat, usize)> {
    kinds.iter().map(|(kind, n)| (BlockFormat::Ggml(*kind), *n)).collect()
}

/// Largest difference of an element from the exact sum: half a step of each integer, and the roundings of f32.
fn bound(x: &[f32], w: &[f32]) -> f64 {
    let groups = x.chunks(GROUP).zip(w.chunks(GROUP));
    groups
        .map(|(x, w)| {
            let most = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let size: f64 = w.iter().map(|w| f64::from(w.abs())).sum();
            // Offsets are subtracted from sums that are larger than the result.
            let held = size + 32.0 * w.iter().fold(0.0f32, |most, w| most.max(w.abs())) as f64;
            f64::from(most) * (0.51 / 32639.0 * size + held * (x.len() as f64 + 8.0) * 6e-8)
        })
        .sum::<f64>()
        + 1e-30
}

#[track_caller]
fn check(kinds: &[(BlockFormat, usize)], m: usize, k: usize, elem: Elem) {
    let (bytes, plain) = weights(kinds, k);
    let runs = runs(kinds, &bytes);
    let n: usize = kinds.iter().map(|(_, n)| n).sum();
    let a = PaddedRows::new(m, k, elem, |col, random| random.next() * if col % 50 == 7 { 20.0 } else { 1.0 });
    let what = format!("{kinds:?}, m {m}, k {k}, {elem:?}");
    let first = product_of(Isa::Portable, 1, &a, 0, m, &runs);
    for (at, bits) in first.iter().enumerate() {
        let (row, col) = (at / n, at % n);
        let (x, w) = (&a.values[row * k..][..k], &plain[col * k..][..k]);
        let exact: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
        let (off, most) = ((f64::from(f32::from_bits(*bits)) - exact).abs(), bound(x, w));
        assert!(off <= most, "{what}: [{row}, {col}] is off by {off:e} of {most:e} from {exact:e}");
    }
    for isa in levels() {
        assert!(product_of(isa, 2, &a, 0, m, &runs) == first, "{what}: {isa:?}");
        // A row on its own has the same bits as among others.
        let row = m - 1;
        assert!(product_of(isa, 1, &a, row, 1, &runs) == first[row * n..], "{what}: {isa:?}, alone");
    }
}

#[test]
fn bits_are_the_same_everywhere() {
    for (format, block) in formats() {
        for (m, n, blocks) in [
            (1, 8, 1),
            (1, 70, 3),
            (2, 16, 2),
            (3, 9, 1),
            (4, 24, 5),
            (5, 1, 2),
            (7, 40, 3),
            (16, 87, 1),
            (33, 64, 9),
            (50, 17, 2),
        ] {
            for elem in [Elem::F32, Elem::Bf16] {
                check(&[(format, fitting(format, n))], m, blocks * block, elem);
            }
        }
    }
}

/// Interleaving does not change products.
#[test]
fn interleaved_rows_have_the_same_products() {
    for kind in KINDS.into_iter().filter(|kind| interleaves(*kind)) {
        let (n, k) = (72, 3 * 256);
        let plain = blocks(kind, n * k, &mut Random(91));
        let mut together = plain.clone();
        let octet = OCTET * kind.bytes(k);
        together.chunks_mut(octet).for_each(|rows| interleave(kind, rows));
        for m in [1, 3, 4, 5, 19] {
            let a = PaddedRows::new(m, k, Elem::F32, |_, random| random.next());
            let product = |format, bytes: &Vec<u8>| {
                let runs = [Run { format, rows: n, bytes: bytes.as_ptr() }];
                product_of(Isa::detect(), 2, &a, 0, m, &runs)
            };
            let found = product(BlockFormat::Octets(kind), &together);
            assert!(found == product(BlockFormat::Ggml(kind), &plain), "{kind:?}, {m} rows");
        }
    }
}

/// The largest codes with the largest integers of both signs, whose sums of products come closest to the limits of 16
/// bits.
#[test]
fn the_largest_products() {
    for kind in KINDS.into_iter().filter(|kind| interleaves(*kind)) {
        let k = 256;
        let mut bytes = vec![0xff; OCTET * kind.bytes(k)];
        for block in bytes.chunks_mut(kind.block_bytes()) {
            let at = if kind == Kind::Q6K { 208 } else { 0 };
            block[at..at + 2].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
            if matches!(kind, Kind::Q4_1 | Kind::Q5_1 | Kind::Q4K | Kind::Q5K) {
                block[2..4].copy_from_slice(&f16::from_f32(0.25).to_le_bytes());
            }
        }
        let mut plain = vec![0.0; OCTET * k];
        dequantise(kind, &bytes, &mut plain);
        interleave(kind, &mut bytes);
        // The bytes of 32639 are 127 and 127, those of 32384 are 127 and -128.
        let near = 32384.0 / 32639.0;
        for (first, rest) in [(1.0, 1.0), (-1.0, -1.0), (1.0, near), (-1.0, -near), (1.0, -near)] {
            let value = |col: usize, _: &mut Random| if col.is_multiple_of(GROUP) { first } else { rest };
            let a = PaddedRows::new(33, k, Elem::F32, value);
            let runs = [Run { format: BlockFormat::Octets(kind), rows: OCTET, bytes: bytes.as_ptr() }];
            let wanted = product_of(Isa::Portable, 1, &a, 0, 33, &runs);
            for isa in levels() {
                for m in [1, 4, 5, 33] {
                    assert!(
                        product_of(isa, 1, &a, 0, m, &runs) == wanted[..m * OCTET],
                        "{kind:?}, {isa:?}, {m}"
                    );
                }
            }
            for (at, bits) in wanted.iter().enumerate() {
                let w = &plain[at % OCTET * k..][..k];
                let exact: f64 =
                    a.values[..k].iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                let off = (f64::from(f32::from_bits(*bits)) - exact).abs();
                assert!(off <= bound(&a.values[..k], w), "{kind:?}: {off:e} from {exact:e}");
            }
        }
    }
}

/// The same for codes with group scales, for blocks of eight bits, and for the formats of QLoRA's base.
#[test]
fn the_largest_products_of_many_rows() {
    let (k, n, m) = (256, 17, 33);
    let grouped =
        GROUPED.map(|(codes, group)| Grouped { codes, group: if group == 96 { 64 } else { group } });
    for (x, w) in [(1.0f32, 0), (-1.0, 1), (32384.0 / 32639.0, 0)] {
        let value = |col: usize, _: &mut Random| if col.is_multiple_of(GROUP) { x.signum() } else { x };
        let a = PaddedRows::new(m, k, Elem::F32, value);
        let mut all = Vec::new();
        for of in grouped {
            let most = if of.codes.bits() == 8 { 255 } else { (1 << of.codes.bits()) - 1 };
            // The largest positive number, and the most negative one.
            let (code, zero) = match (of.codes, w) {
                (Codes::E4m3, _) => ([0x7e, 0xfe][w], 0),
                (Codes::E2m1, _) => ([7, 15][w], 0),
                (_, 0) => (most, 0),
                _ => (0, most),
            };
            let format = BlockFormat::Grouped(of);
            let mut bytes = vec![0; n * format.row_bytes(k)];
            bytes
                .chunks_mut(format.row_bytes(k))
                .for_each(|row| of.write_row(k, |_| code, |_| (0.01, zero), row));
            all.push((format, bytes));
        }
        for (format, code) in [(BlockFormat::Nf4, [0xff, 0][w]), (BlockFormat::Int8, [0x7f, 0x80][w])] {
            let mut bytes = vec![code; n * format.row_bytes(k)];
            for row in bytes.chunks_mut(format.row_bytes(k)) {
                row[format.scales_at(k)..].as_chunks_mut::<4>().0.fill(0.01f32.to_le_bytes());
            }
            all.push((format, bytes));
        }
        for kind in [Kind::Q8_0, Kind::Q4_1, Kind::Q5_0, Kind::Q5_1] {
            let codes = if kind == Kind::Q8_0 { [0x7f, 0x80] } else { [0xff, 0] };
            let mut bytes = vec![codes[w]; n * kind.bytes(k)];
            for block in bytes.chunks_mut(kind.block_bytes()) {
                block[..2].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
                if matches!(kind, Kind::Q4_1 | Kind::Q5_1) {
                    block[2..4].copy_from_slice(&f16::from_f32(-0.25).to_le_bytes());
                }
            }
            all.push((BlockFormat::Ggml(kind), bytes));
        }
        for (format, bytes) in &all {
            let runs = [Run { format: *format, rows: n, bytes: bytes.as_ptr() }];
            let wanted = product_of(Isa::Portable, 1, &a, 0, m, &runs);
            for isa in levels() {
                assert!(product_of(isa, 1, &a, 0, m, &runs) == wanted, "{format:?}, {isa:?}, {x} and {w}");
            }
        }
    }
}

/// Products with ggml's own blocks, compared with the elements that ggml's library made of them
/// (`oracle/gguf_blocks.py`).
#[test]
fn products_with_golden_blocks() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_gguf");
    let (k, m) = (256, 6);
    for kind in KINDS {
        let read =
            |ending| std::fs::read(folder.join(format!("{}.{ending}", kind.name().to_lowercase()))).unwrap();
        let (blocks, plain) = (read("blocks"), read("f32"));
        let plain: Vec<f32> = plain.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
        let n = plain.len() / k;
        let runs = [Run { format: BlockFormat::Ggml(kind), rows: n, bytes: blocks.as_ptr() }];
        let a = PaddedRows::new(m, k, Elem::F32, |_, random| random.next());
        for isa in levels() {
            let found = product_of(isa, 2, &a, 0, m, &runs);
            for (at, bits) in found.iter().enumerate() {
                let (x, w) = (&a.values[at / n * k..][..k], &plain[at % n * k..][..k]);
                let exact: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                let off = (f64::from(f32::from_bits(*bits)) - exact).abs();
                assert!(off <= bound(x, w), "{kind:?}, {isa:?}: {off:e} from {exact:e}");
            }
        }
    }
}

#[test]
fn more_rows_than_are_quantised_at_a_time() {
    check(&ggml(&[(Kind::Q4K, 24)]), ROWS + 6, 512, Elem::F32);
    check(&ggml(&[(Kind::Q8_0, 17)]), 2 * ROWS + 1, 96, Elem::Bf16);
    check(&ggml(&[(Kind::Q5_0, 17)]), ROWS + 3, 96, Elem::Bf16);
    check(&[(BlockFormat::Octets(Kind::Q6K), 24)], ROWS + 2, 256, Elem::F32);
    let e4m3 = BlockFormat::Grouped(Grouped { codes: Codes::E4m3, group: 640 });
    check(&[(e4m3, 17)], ROWS + 6, 640, Elem::Bf16);
    check(&[(BlockFormat::Nf4, 24)], ROWS + 5, 640, Elem::F32);
    check(&[(BlockFormat::Int8, 19)], ROWS + 2, 96, Elem::F32);
}

#[test]
fn runs_of_several_kinds() {
    let kinds = [(Kind::Q4K, 33), (Kind::Q6K, 8), (Kind::Q8_0, 70), (Kind::Q4_0, 1), (Kind::Q5K, 16)];
    let kinds = [&kinds[..], &[(Kind::Q5_0, 24), (Kind::Q5_1, 9), (Kind::Q4_1, 16)]].concat();
    let mut kinds = ggml(&kinds);
    kinds.push((BlockFormat::Grouped(Grouped { codes: Codes::Int4, group: 512 }), 40));
    kinds.push((BlockFormat::Grouped(Grouped { codes: Codes::E4m3, group: 128 }), 17));
    kinds.extend([(BlockFormat::Octets(Kind::Q4K), 72), (BlockFormat::Octets(Kind::Q6K), 8)]);
    kinds.extend([(BlockFormat::Octets(Kind::Q5_1), 16), (BlockFormat::Octets(Kind::Q5_0), 24)]);
    for m in [1, 4, 6] {
        check(&kinds, m, 512, Elem::F32);
    }
}

/// Groups of zeros, of denormal numbers and of very large ones, and non-finite numbers.
#[test]
fn numbers_at_the_ends() {
    for (kind, block) in formats() {
        let k = 3 * block.max(64);
        let n = fitting(kind, 11);
        let kinds = [(kind, n)];
        let (bytes, plain) = weights(&kinds, k);
        let runs = runs(&kinds, &bytes);
        let sizes = [0.0, 1e-40, 1e-33, 1.0, 1e33];
        let a =
            PaddedRows::new(7, k, Elem::F32, |col, random| random.next() * sizes[col / GROUP % sizes.len()]);
        let first = product_of(Isa::Portable, 1, &a, 0, 7, &runs);
        for (at, bits) in first.iter().enumerate() {
            let (x, w) = (&a.values[at / n * k..][..k], &plain[at % n * k..][..k]);
            let exact: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            let off = (f64::from(f32::from_bits(*bits)) - exact).abs();
            assert!(off <= bound(x, w), "{kind:?}: {off:e} from {exact:e}");
        }
        let broken = PaddedRows::new(7, k, Elem::F32, |col, random| {
            if col == 40 && random.bits() % 3 == 0 { f32::INFINITY } else { random.next() }
        });
        let lost = product_of(Isa::Portable, 1, &broken, 0, 7, &runs);
        for (row, bits) in lost.chunks(n).enumerate() {
            let finite = broken.values[row * k..][..k].iter().all(|x| x.is_finite());
            assert!(bits.iter().all(|bits| f32::from_bits(*bits).is_nan() != finite), "{kind:?}: row {row}");
        }
        for isa in levels() {
            assert!(product_of(isa, 2, &a, 0, 7, &runs) == first, "{kind:?}: {isa:?}");
            let again = product_of(isa, 2, &broken, 0, 7, &runs);
            let same =
                |(x, y): (&u32, &u32)| x == y || f32::from_bits(*x).is_nan() && f32::from_bits(*y).is_nan();
            assert!(again.iter().zip(&lost).all(same), "{kind:?}: {isa:?}");
        }
    }
}

#[test]
fn rows_of_a_table() {
    let int4 = BlockFormat::Grouped(Grouped { codes: Codes::Int4, group: 64 });
    let kinds = [(BlockFormat::Ggml(Kind::Q4K), 3), (int4, 1), (BlockFormat::Octets(Kind::Q6K), 8)];
    let k = 512;
    let (bytes, plain) = weights(&kinds, k);
    let runs = runs(&kinds, &bytes);
    let threads = Threads::new(2);
    for (ids, first) in [(vec![4, 0, 11, 4], None), (vec![12, 9, 14, 10, 3, 22, 20], Some(10))] {
        let mut out = vec![1.0f32; ids.len() * k];
        let to = MatMut { ptr: out.as_mut_ptr().cast(), elem: Elem::F32, stride: k };
        let op = Embed { ids: &ids, k, runs: &runs, scale: 2.0, out: to, accumulate: true, first };
        // SAFETY: the table and the rows have these extents.
        unsafe { embed(Place { threads: &threads, isa: Isa::Portable }, &op) };
        for (id, row) in ids.iter().zip(out.chunks(k)) {
            let at = (*id as usize).checked_sub(first.unwrap_or(0)).filter(|at| *at < 12);
            let wanted = |col: usize| at.map_or(1.0, |at| 2.0 * plain[at * k + col] + 1.0);
            assert!(row.iter().enumerate().all(|(col, x)| *x == wanted(col)), "id {id} of {first:?}");
        }
    }
}
