//! Products with packed experts have the bits of products with each expert's weight, on every instruction set, however
//! slots are cut and whichever other slots there are.

use fathom_tensor::Grouped;

use super::super::tests::{Random, levels, runs, weights};
use super::super::{Product, product, workspace_bytes};
use super::*;
use crate::mat::Elem;
use crate::threads::Threads;

const EXPERTS: usize = 5;
const SLOTS: usize = 2;

/// An expert or none for each slot: one expert has many, the last has none.
fn index(tokens: usize) -> Vec<i32> {
    let of = |at: usize| if at.is_multiple_of(2) { 1 } else { (at * 7 + at / 11) as i32 % 5 - 1 };
    (0..tokens * SLOTS).map(of).collect()
}

/// Numbers in either storage.
fn rows(count: usize, k: usize, elem: Elem) -> Vec<u8> {
    let mut random = Random(41);
    let mut bytes = Vec::new();
    for _ in 0..count * k {
        let x = random.next();
        match elem {
            Elem::F32 => bytes.extend(x.to_le_bytes()),
            Elem::Bf16 => bytes.extend(half::bf16::from_f32(x).to_le_bytes()),
        }
    }
    bytes
}

/// Rows times some rows of weights, by the ordinary packed product.
fn plain(a: Mat, m: usize, k: usize, runs: &[Run]) -> Vec<u32> {
    let n: usize = runs.iter().map(|run| run.rows).sum();
    let (threads, mut c) = (Threads::new(1), vec![0.0f32; m * n]);
    let mut scratch = vec![0xffu8; workspace_bytes(Isa::detect(), 1, m, k)];
    let out = MatMut { ptr: c.as_mut_ptr().cast(), elem: Elem::F32, stride: n };
    let place = Place { threads: &threads, isa: Isa::detect() };
    // SAFETY: the operands have these extents.
    unsafe { product(place, &Product { m, k, a, runs, c: out }, scratch.as_mut_ptr()) };
    c.iter().map(|x| x.to_bits()).collect()
}

/// The product of some slots, with a column next to each token's that must stay unchanged.
fn found(place: Place<'_>, op: &Experts<'_>) -> Vec<u32> {
    let (tokens, wide) = (op.index.len() / SLOTS, SLOTS * op.out);
    let mut c = vec![-7.0f32; tokens * (wide + 1)];
    let bytes = experts_workspace_bytes(place.isa, place.threads.count(), op.index.len(), op.k);
    let mut scratch = vec![0xffu8; bytes + 1];
    let out = MatMut { ptr: c.as_mut_ptr().cast(), elem: Elem::F32, stride: wide + 1 };
    // SAFETY: the operands have these extents, and the level is supported by this machine.
    unsafe { experts(place, &Experts { c: out, ..*op }, scratch.as_mut_ptr()) };
    assert!(scratch[bytes] == 0xff, "written behind the scratch memory");
    assert!(c.chunks(wide + 1).all(|row| row[wide] == -7.0), "written outside the result");
    c.chunks(wide + 1).flat_map(|row| row[..wide].iter().map(|x| x.to_bits()).collect::<Vec<_>>()).collect()
}

/// Checks weights of `EXPERTS` experts of `out` rows, in runs of these formats.
fn check(formats: &[(BlockFormat, usize)], k: usize, tokens: &[usize]) {
    let (bytes, _) = weights(formats, k);
    let runs = &runs(formats, &bytes);
    let out = formats.iter().map(|(_, rows)| rows).sum::<usize>() / EXPERTS;
    let most = tokens.iter().copied().max().unwrap();
    let (index, experts) = (index(most), EXPERTS);
    let own: Vec<Vec<Run>> = (0..EXPERTS).map(|at| rows_of(runs, k, at * out..(at + 1) * out)).collect();
    for (elem, shared) in [(Elem::F32, true), (Elem::Bf16, false)] {
        let each = if shared { 1 } else { SLOTS };
        let a = rows(most * each, k, elem);
        let mat = |row: usize, stride| Mat { ptr: a[row * k * elem.bytes()..].as_ptr(), elem, stride };
        let all: Vec<Vec<u32>> = own.iter().map(|runs| plain(mat(0, k), most * each, k, runs)).collect();
        let wanted = |slot: usize| {
            let row = if shared { slot / SLOTS } else { slot };
            let bits = |expert: usize| all[expert][row * out..][..out].to_vec();
            usize::try_from(index[slot]).map_or_else(|_| vec![0; out], bits)
        };
        for count in tokens.iter().copied() {
            // The last tokens, so that each slot has different companions than before.
            let first = most - count;
            let wanted: Vec<u32> = (first * SLOTS..most * SLOTS).flat_map(&wanted).collect();
            for (isa, threads) in levels().map(|isa| (isa, 2)).chain([(Isa::detect(), 1)]) {
                let threads = Threads::new(threads);
                let (index, a) = (&index[first * SLOTS..], mat(first * each, each * k));
                let c = MatMut { ptr: std::ptr::null_mut(), elem: Elem::F32, stride: 0 };
                let op = Experts { index, slots: SLOTS, experts, k, out, a, shared, runs, c };
                let bits = found(Place { threads: &threads, isa }, &op);
                assert!(bits == wanted, "{formats:?}, k {k}, {count} tokens, {elem:?}, {isa:?}");
            }
        }
    }
}

#[test]
fn bits_are_those_of_each_experts_product() {
    let grouped = |codes, group| BlockFormat::Grouped(Grouped { codes, group });
    for (format, k) in [
        (BlockFormat::Ggml(Kind::Q8_0), 96),
        (BlockFormat::Ggml(Kind::Q4K), 256),
        (BlockFormat::Octets(Kind::Q4_0), 64),
        (BlockFormat::Octets(Kind::Q5_0), 96),
        (BlockFormat::Octets(Kind::Q4K), 512),
        (BlockFormat::Octets(Kind::Q5K), 256),
        (BlockFormat::Octets(Kind::Q6K), 256),
        (grouped(Codes::Int4, 128), 256),
        (grouped(Codes::E2m1, 32), 96),
        (grouped(Codes::E2m1, 16), 64),
        (grouped(Codes::E4m3, 64), 64),
    ] {
        check(&[(format, 24 * EXPERTS)], k, &[1, 3, 9, 40]);
    }
}

/// Experts that begin inside groups of eight rows, without interleaving.
#[test]
fn experts_of_any_number_of_rows() {
    check(&[(BlockFormat::Ggml(Kind::Q4K), 13 * EXPERTS)], 256, &[1, 30]);
}

/// Gate and up projections in two formats, one expert after another.
#[test]
fn experts_of_several_runs() {
    let of_one = [(BlockFormat::Octets(Kind::Q4K), 16), (BlockFormat::Octets(Kind::Q6K), 8)];
    check(&of_one.repeat(EXPERTS), 256, &[1, 30]);
    // One run has the rows of one expert and some of the next.
    let uneven = [(BlockFormat::Octets(Kind::Q5K), 40), (BlockFormat::Ggml(Kind::Q8_0), 80)];
    check(&uneven, 256, &[7]);
}

/// More slots than fit in a wave, including for a single expert.
#[test]
fn many_slots() {
    check(&[(BlockFormat::Octets(Kind::Q4K), 16 * EXPERTS)], 256, &[ROWS + 50, 3]);
}
