//! Compares products with f64, and checks the order of addition: the same bits for every partition of a product.

use fathom_tensor::SUM_CHUNK;
use fathom_tensor::ggml::Kind;
use fathom_tensor::ggml::octets::interleave;
use half::bf16;

use super::*;
use crate::isa::Isa;
use crate::threads::Threads;

/// Every level that this machine supports.
fn levels() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| *isa <= Isa::detect())
}

/// Uniform in (-1, 1), never zero. (xorshift64)
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 40) as f32 + 0.5) / (1u64 << 23) as f32 - 1.0
    }
}

/// A matrix in memory with unused columns next to it.
#[derive(Clone)]
struct PaddedMatrix {
    bytes: Vec<u8>,
    elem: Elem,
    stride: usize,
}

impl PaddedMatrix {
    fn random(rows: usize, cols: usize, elem: Elem, pad: usize, random: &mut Random) -> PaddedMatrix {
        let stride = cols + pad;
        let mut bytes = Vec::with_capacity(rows * stride * 4);
        for _ in 0..rows * stride {
            match elem {
                Elem::F32 => bytes.extend(random.next().to_le_bytes()),
                Elem::Bf16 => bytes.extend(bf16::from_f32(random.next()).to_le_bytes()),
            }
        }
        PaddedMatrix { bytes, elem, stride }
    }

    fn get(&self, row: usize, col: usize) -> f64 {
        let at = (row * self.stride + col) * self.elem.bytes();
        match self.elem {
            Elem::F32 => f32::from_le_bytes(self.bytes[at..at + 4].try_into().unwrap()) as f64,
            Elem::Bf16 => bf16::from_le_bytes(self.bytes[at..at + 2].try_into().unwrap()).to_f64(),
        }
    }

    fn mat(&self, row: usize, col: usize) -> Mat {
        let at = (row * self.stride + col) * self.elem.bytes();
        Mat { ptr: self.bytes[at..].as_ptr(), elem: self.elem, stride: self.stride }
    }

    fn mat_mut(&mut self, row: usize, col: usize) -> MatMut {
        let at = (row * self.stride + col) * self.elem.bytes();
        MatMut { ptr: self.bytes[at..].as_mut_ptr(), elem: self.elem, stride: self.stride }
    }
}

/// Operands of one product and their storage.
struct Case {
    m: usize,
    n: usize,
    k: usize,
    a: PaddedMatrix,
    a_trans: bool,
    b: PaddedMatrix,
    b_trans: bool,
    c: PaddedMatrix,
}

impl Case {
    fn new(size: [usize; 3], elems: [Elem; 3], trans: (bool, bool), pad: usize) -> Case {
        let [m, n, k] = size;
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (m * 31 + n * 7 + k) as u64);
        let turned = |rows: usize, cols: usize, turn: bool| if turn { (cols, rows) } else { (rows, cols) };
        let (ar, ac) = turned(m, k, trans.0);
        let (br, bc) = turned(k, n, trans.1);
        Case {
            m,
            n,
            k,
            a: PaddedMatrix::random(ar, ac, elems[0], pad, &mut random),
            a_trans: trans.0,
            b: PaddedMatrix::random(br, bc, elems[1], pad * 2, &mut random),
            b_trans: trans.1,
            c: PaddedMatrix::random(m, n, elems[2], pad * 3, &mut random),
        }
    }

    /// The part of the product with rows `rows`, columns `cols` and sums `ks`, into the same part of `c`.
    fn part(
        &self,
        c: &mut PaddedMatrix,
        rows: [usize; 2],
        cols: [usize; 2],
        ks: [usize; 2],
        accumulate: bool,
    ) -> Gemm {
        let a = if self.a_trans { self.a.mat(ks[0], rows[0]) } else { self.a.mat(rows[0], ks[0]) };
        let b = if self.b_trans { self.b.mat(cols[0], ks[0]) } else { self.b.mat(ks[0], cols[0]) };
        Gemm {
            m: rows[1] - rows[0],
            n: cols[1] - cols[0],
            k: ks[1] - ks[0],
            a,
            a_trans: self.a_trans,
            b,
            b_layout: Layout::of(self.b_trans),
            c: c.mat_mut(rows[0], cols[0]),
            accumulate,
        }
    }

    fn whole(&self, c: &mut PaddedMatrix, accumulate: bool) -> Gemm {
        self.part(c, [0, self.m], [0, self.n], [0, self.k], accumulate)
    }

    fn run(&self, threads: usize, isa: Isa, accumulate: bool) -> PaddedMatrix {
        let mut c = self.c.clone();
        run(threads, isa, &self.whole(&mut c, accumulate));
        c
    }
}

fn run(threads: usize, isa: Isa, g: &Gemm) {
    let threads = Threads::new(threads);
    let bytes = workspace_bytes(isa, threads.count(), &g.shape(), g.c.elem);
    // Filled with a pattern, and checked for writes past its end.
    let mut workspace = vec![0xa5u8; bytes + 64];
    // SAFETY: the operands come from `PaddedMatrix`, whose memory outlives the call.
    unsafe { gemm(&threads, isa, g, workspace.as_mut_ptr()) };
    assert!(workspace[bytes..].iter().all(|byte| *byte == 0xa5), "workspace overrun: {g:?}");
}

/// Expected C, and the sum of |products| to which its error is relative, row by row.
struct Reference {
    sums: Vec<[f64; 2]>,
    accumulate: bool,
}

impl Reference {
    fn new(case: &Case, accumulate: bool) -> Reference {
        let (m, n, k) = (case.m, case.n, case.k);
        let mut sums = vec![[0.0; 2]; m * n];
        let b: Vec<f64> = (0..k * n)
            .map(|at| if case.b_trans { case.b.get(at % n, at / n) } else { case.b.get(at / n, at % n) })
            .collect();
        for (i, sums) in sums.chunks_exact_mut(n).enumerate() {
            if accumulate {
                sums.iter_mut()
                    .enumerate()
                    .for_each(|(j, sum)| *sum = [case.c.get(i, j), case.c.get(i, j).abs()]);
            }
            for (k, b) in b.chunks_exact(n).enumerate() {
                let a = if case.a_trans { case.a.get(k, i) } else { case.a.get(i, k) };
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = [sum[0] + a * b, sum[1] + (a * b).abs()];
                }
            }
        }
        Reference { sums, accumulate }
    }

    /// Checks |C - reference| <= tolerance * sum of |products|, and that nothing outside C is written.
    fn check(&self, isa: Isa, case: &Case, c: &PaddedMatrix) {
        let unit = 6e-8 * (case.k as f64).sqrt().max(4.0);
        for i in 0..case.m {
            for j in 0..case.n {
                let [sum, size] = self.sums[i * case.n + j];
                let rounding = if case.c.elem == Elem::Bf16 { sum.abs() / 256.0 } else { 0.0 };
                let got = c.get(i, j);
                let close = (got - sum).abs() <= rounding + size * unit + 1e-30;
                assert!(close, "{isa:?} {} at {i},{j}: {got} is not {sum}", name(case));
            }
            for j in case.n..case.c.stride {
                assert!(c.get(i, j) == case.c.get(i, j), "{isa:?} {} wrote outside C", name(case));
            }
        }
    }

    fn run_and_check(&self, isa: Isa, case: &Case) {
        self.check(isa, case, &case.run(2, isa, self.accumulate));
    }
}

fn name(case: &Case) -> String {
    let elems = [case.a.elem, case.b.elem, case.c.elem];
    format!("m {} n {} k {} {elems:?} trans {} {}", case.m, case.n, case.k, case.a_trans, case.b_trans)
}

const F: Elem = Elem::F32;
const B: Elem = Elem::Bf16;
const STORAGE: [[Elem; 3]; 5] = [[F, F, F], [B, B, B], [B, B, F], [F, B, F], [B, F, B]];
const TRANS: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

#[test]
fn products_agree_with_f64() {
    let sizes = [
        [1, 1, 1],
        [1, 1, 2],
        [1, 33, 7],
        [2, 64, 31],
        [3, 5, 385],
        [4, 32, 32],
        [7, 100, 129],
        [9, 31, 64],
        [14, 32, 384],
        [15, 33, 383],
        [13, 47, 255],
        [28, 96, 33],
        [33, 65, 513],
        [100, 1, 100],
        [253, 40, 17],
        [270, 390, 65],
    ];
    for size in sizes {
        for elems in STORAGE {
            for trans in TRANS {
                for (pad, accumulate) in [(0, false), (3, true)] {
                    let case = Case::new(size, elems, trans, pad);
                    let reference = Reference::new(&case, accumulate);
                    levels().for_each(|isa| reference.run_and_check(isa, &case));
                }
            }
        }
    }
}

#[test]
fn an_empty_sum_is_zero_or_leaves_c() {
    let case = Case::new([3, 5, 0], [F, F, F], (false, false), 1);
    assert_eq!(case.run(1, Isa::Portable, true).bytes, case.c.bytes);
    let c = case.run(1, Isa::Portable, false);
    assert!((0..3).all(|i| (0..5).all(|j| c.get(i, j) == 0.0) && c.get(i, 5) == case.c.get(i, 5)));
}

/// Sizes and storage for the bit tests: several blocks of k, rows and columns, and uneven ends.
fn bit_cases() -> impl Iterator<Item = Case> {
    [[270, 400, 140], [31, 70, 1101]].into_iter().flat_map(|size| {
        STORAGE
            .into_iter()
            .flat_map(move |elems| TRANS.into_iter().map(move |trans| Case::new(size, elems, trans, 5)))
    })
}

#[test]
fn threads_do_not_change_bits() {
    for isa in levels() {
        for case in bit_cases() {
            let one = case.run(1, isa, true);
            for threads in [2, 3] {
                assert!(case.run(threads, isa, true).bytes == one.bytes, "{isa:?} {}", name(&case));
            }
        }
    }
}

#[test]
fn a_row_or_a_column_view_alone_has_the_same_bits() {
    for isa in levels() {
        for case in bit_cases() {
            let whole = case.run(2, isa, false);
            let mut parts = case.c.clone();
            let (rows, cols) = ([0, 1, 3, 6, 10, 23, case.m], [0, 17, 18, case.n]);
            for row in rows.windows(2) {
                for col in cols.windows(2) {
                    let g = case.part(&mut parts, [row[0], row[1]], [col[0], col[1]], [0, case.k], false);
                    run(2, isa, &g);
                }
            }
            assert!(parts.bytes == whole.bytes, "{isa:?} {}", name(&case));
        }
    }
}

#[test]
fn accumulating_over_k_in_chunks_has_the_same_bits() {
    for isa in levels() {
        for case in bit_cases().filter(|case| case.c.elem == F) {
            for accumulate in [false, true] {
                let whole = case.run(2, isa, accumulate);
                let mut parts = case.c.clone();
                let cuts: Vec<usize> = [0, 1, 3, 8]
                    .into_iter()
                    .map(|i| i * SUM_CHUNK)
                    .filter(|k| *k < case.k)
                    .chain([case.k])
                    .collect();
                for cut in cuts.windows(2) {
                    let add = accumulate || cut[0] > 0;
                    run(2, isa, &case.part(&mut parts, [0, case.m], [0, case.n], [cut[0], cut[1]], add));
                }
                assert!(parts.bytes == whole.bytes, "{isa:?} {}", name(&case));
            }
        }
    }
}

#[test]
fn a_packed_weight_has_the_same_bits() {
    let threads = Threads::new(2);
    for isa in levels() {
        for case in bit_cases() {
            let whole = case.run(2, isa, false);
            let bytes = packed_bytes(isa, case.a.elem, case.b.elem, case.k, case.n);
            let mut memory = vec![0xa5u8; bytes + 128];
            let skip = memory.as_ptr().align_offset(64);
            let packed = memory[skip..].as_mut_ptr();
            // SAFETY: the operand is in `case`, and the destination has the required bytes.
            unsafe {
                pack_b(&threads, isa, case.a.elem, &case.b.mat(0, 0), case.b_trans, case.k, case.n, packed)
            };
            assert!(memory[skip + bytes..].iter().all(|byte| *byte == 0xa5));
            for rows in [1, case.m] {
                let mut c = case.c.clone();
                let mut g = case.part(&mut c, [0, rows], [0, case.n], [0, case.k], false);
                (g.b.ptr, g.b_layout) = (memory[skip..].as_ptr(), Layout::Panels);
                run(2, isa, &g);
                let end = rows * c.stride * c.elem.bytes();
                let same = if rows == case.m {
                    c.bytes == whole.bytes
                } else {
                    c.bytes[..case.n] == whole.bytes[..case.n]
                };
                assert!(same, "{isa:?} {} rows {rows} end {end}", name(&case));
            }
        }
    }
}

/// An interleaved bf16 weight gives the same bits as a plain one, with few rows and many.
#[test]
fn interleaved_rows_have_the_same_bits() {
    let wholes =
        [[1, 8, 2], [1, 72, 258], [2, 40, 64], [3, 96, 514], [4, 24, 30], [7, 80, 300], [33, 160, 128]];
    for isa in levels().filter(|isa| matches!(isa, Isa::Portable | Isa::Avx2)) {
        for (size, elem) in wholes.into_iter().flat_map(|size| [(size, F), (size, B)]) {
            let case = Case::new(size, [elem, B, F], (false, true), 0);
            let [_, n, k] = size;
            let mut octets = case.b.bytes.clone();
            octets.chunks_exact_mut(8 * k * 2).for_each(|rows| interleave(Kind::Bf16, rows));
            for accumulate in [false, true] {
                let whole = case.run(2, isa, accumulate);
                let mut c = case.c.clone();
                let mut g = case.part(&mut c, [0, case.m], [0, n], [0, k], accumulate);
                (g.b.ptr, g.b_layout) = (octets.as_ptr(), Layout::Octets);
                run(2, isa, &g);
                assert!(c.bytes == whole.bytes, "{isa:?} {} {accumulate}", name(&case));
            }
        }
    }
}

#[test]
fn zero_products_and_negative_zero_keep_their_bits() {
    // An odd k is padded inside the panel of a pair kernel; -0.0 in C must give the same as in the whole product.
    for isa in levels() {
        let mut case = Case::new([5, 40, 129], [B, B, F], (false, true), 0);
        case.c.bytes.chunks_exact_mut(4).step_by(3).for_each(|x| x.copy_from_slice(&(-0.0f32).to_le_bytes()));
        let whole = case.run(2, isa, true);
        let mut row = case.c.clone();
        for i in 0..5 {
            run(1, isa, &case.part(&mut row, [i, i + 1], [0, 40], [0, 129], true));
        }
        assert!(row.bytes == whole.bytes, "{isa:?}");
    }
}

/// The tile kernel spelled out: `tdpbf16ps` on the panels of the AMX kind, so that their layout and packing B first are
/// tested without the unit. Sums of a tile step are computed in f64, a difference within the tolerance.
#[cfg(target_arch = "x86_64")]
unsafe fn tile_product(steps: usize, panels: kernel::Panels, c: *mut f32, _rows: usize, fresh: bool) {
    // SAFETY: panels of `steps` pairs of tiles and a 32 x 32 block of C.
    let (a, b, c) = unsafe {
        (
            std::slice::from_raw_parts(panels.a.cast::<[[[bf16; 32]; 16]; 2]>(), steps),
            std::slice::from_raw_parts(panels.b.cast::<[[[[bf16; 2]; 16]; 16]; 2]>(), steps),
            &mut *c.cast::<[[f32; 32]; 32]>(),
        )
    };
    for (i, row) in c.iter_mut().enumerate() {
        for (j, c) in row.iter_mut().enumerate() {
            let mut sum = if fresh { 0.0 } else { *c as f64 };
            for (a, b) in a.iter().zip(b) {
                sum += (0..32)
                    .map(|k| a[i / 16][i % 16][k].to_f64() * b[j / 16][k / 2][j % 16][k % 2].to_f64())
                    .sum::<f64>();
            }
            *c = sum as f32;
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn tile_panels_have_the_layout_of_the_unit() {
    if Isa::detect() < Isa::Avx512 {
        return;
    }
    let spelled = |block, keep| -> &'static kernel::Kind {
        Box::leak(Box::new(kernel::Kind {
            micro: tile_product,
            enter: kernel::nothing,
            leave: kernel::nothing,
            store: avx512::store,
            pack_first_bytes: 512 << 10,
            block,
            keep,
            ..amx::KIND
        }))
    };
    let threads = Threads::new(2);
    let (whole, cut) = (spelled(amx::KIND.block, 0), spelled((64, 96), 1 << 20));
    for (size, spelled) in [
        ([1, 1, 1], whole),
        ([5, 33, 31], whole),
        ([33, 70, 545], whole),
        ([260, 560, 545], whole),
        ([100, 560, 800], cut),
    ] {
        for elems in [[B, B, B], [B, B, F]] {
            for trans in TRANS {
                for accumulate in [false, true] {
                    let case = Case::new(size, elems, trans, 3);
                    let mut c = case.c.clone();
                    let g = case.whole(&mut c, accumulate);
                    let bytes = plan::workspace_of(spelled, 2, &g.shape(), g.c.elem);
                    let mut workspace = vec![0xa5u8; bytes + 64];
                    // SAFETY: as `run`; the tile unit is not used.
                    unsafe {
                        drive::gemm_of(&threads, spelled, &g, terms::Terms::NONE, workspace.as_mut_ptr())
                    };
                    assert!(workspace[bytes..].iter().all(|byte| *byte == 0xa5), "workspace overrun: {g:?}");
                    Reference::new(&case, accumulate).check(Isa::Amx, &case, &c);
                }
            }
        }
    }
}

#[test]
fn terms_have_the_bits_of_products_one_after_the_other() {
    let mut done = 0;
    for isa in levels() {
        for ([m, n, k], trans, splits) in [
            ([5, 64, 40], true, &[(0, 32, 16), (32, 32, 8)][..]),
            ([77, 131, 70], false, &[(0, 131, 48)]),
            ([600, 1056, 512], true, &[(0, 512, 16), (512, 256, 16), (768, 256, 16)]),
            ([530, 96, 1408], false, &[(32, 64, 31)]),
            ([2000, 2816, 512], true, &[(0, 1408, 16), (1408, 1408, 16)]),
        ] {
            let case = Case::new([m, n, k], [B, B, B], (false, trans), 3);
            let parts: Vec<Case> =
                splits.iter().map(|(_, n, k)| Case::new([m, *n, *k], [B, B, B], (false, trans), 2)).collect();
            let sums: Vec<usize> = splits.iter().map(|(_, _, k)| *k).collect();
            let (mut apart, mut together) = (case.c.clone(), case.c.clone());
            run(2, isa, &case.whole(&mut apart, false));
            let mut terms = Vec::new();
            for (part, (col, n, k)) in parts.iter().zip(splits) {
                let call = part.whole(&mut apart, true);
                let mut of_all = call;
                of_all.c = apart.mat_mut(0, *col);
                run(2, isa, &of_all);
                terms.push(Term { col: *col, n: *n, k: *k, a: call.a, b: call.b, b_layout: call.b_layout });
            }
            let threads = Threads::new(2);
            let call = case.whole(&mut together, false);
            let Some(bytes) = bytes_with_terms(isa, 2, &call.shape(), B, &sums) else { continue };
            let mut workspace = vec![0xa5u8; bytes + 64];
            // SAFETY: as `run`.
            assert!(unsafe { gemm_and_terms(&threads, isa, &call, &terms, workspace.as_mut_ptr()) });
            assert!(workspace[bytes..].iter().all(|byte| *byte == 0xa5), "workspace overrun: {call:?}");
            assert!(apart.bytes == together.bytes, "{isa:?} m {m} n {n} k {k}");
            done += 1;
        }
    }
    assert!(done > 0 || Isa::detect() != Isa::Avx512Bf16);
}

#[test]
fn a_few_columns_alone_have_the_bits_of_many() {
    for isa in levels() {
        for (columns, m, k) in [(1, 5, 2), (16, 77, 64), (17, 130, 70), (33, 600, 514), (48, 250, 1408)] {
            for elem in [B, F] {
                for trans in [false, true] {
                    let case = Case::new([m, columns + 64, k], [B, B, elem], (false, trans), 3);
                    let all = case.run(2, isa, false);
                    let mut few = case.c.clone();
                    run(2, isa, &case.part(&mut few, [0, m], [0, columns], [0, k], false));
                    for row in 0..m {
                        for col in 0..case.c.stride {
                            let of = if col < columns { &all } else { &case.c };
                            let same = few.get(row, col).to_bits() == of.get(row, col).to_bits();
                            assert!(same, "{isa:?} {} at {row},{col}", name(&case));
                        }
                    }
                }
            }
        }
    }
}
