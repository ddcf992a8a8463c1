//! Few rows: a key block seen by one strip is packed in pieces, with the same results.

use super::super::product::{Product, product};
use super::super::simd::portable::Portable;
use super::super::simd::{LANES, Simd};
#[cfg(target_arch = "x86_64")]
use super::super::simd::{avx2::Avx2, avx512::Avx512};
use super::order::{bits, run_in_pages};
use super::*;

/// A step: some of the query rows of `p`, with the same mask.
fn step(p: &Problem, rows: &[usize]) -> Problem {
    let width = p.shape.heads * p.shape.head_dim;
    let picked =
        |x: &[f32]| rows.iter().flat_map(|row| x[row * width..][..width].to_vec()).collect::<Vec<_>>();
    let slices = rows.iter().enumerate().flat_map(|(at, row)| {
        let (at, row) = (at as i64, *row as i64);
        let sees = p.slices.iter().filter(move |s| (s.q_start..s.q_end).contains(&row));
        sees.map(move |s| Slice { q_start: at, q_end: at + 1, ..*s })
    });
    Problem {
        shape: Shape { q_tokens: rows.len(), ..p.shape },
        slices: slices.collect(),
        pos_q: rows.iter().map(|row| p.pos_q[*row]).collect(),
        pos_k: p.pos_k.clone(),
        q: picked(&p.q),
        k: p.k.clone(),
        v: p.v.clone(),
        dout: picked(&p.dout),
        sinks: p.sinks.clone(),
        bias: p.bias.clone(),
        ..*p
    }
}

fn steps_have_the_bits_of_prefills(name: &str, p: &Problem, formats: &[PageFormat]) {
    let (heads, width) = (p.shape.heads, p.shape.heads * p.shape.head_dim);
    for isa in families() {
        for format in formats {
            let (out, lse) = run_in_pages(p, isa, 2, *format);
            // Ends of documents, a few speculative tokens, and single rows.
            for rows in [&[89, 299, 516, 699][..], &[296, 297, 298, 299, 699], &[88], &[450], &[699]] {
                for threads in [1, 3] {
                    let got = run_in_pages(&step(p, rows), isa, threads, *format);
                    for (at, row) in rows.iter().enumerate() {
                        let what = format!(
                            "{name}, {}, {:?}, {format:?}, row {row} of {rows:?}",
                            isa.name(),
                            p.elem
                        );
                        let [here, there] = [at, *row].map(|row| row * width..(row + 1) * width);
                        assert_eq!(bits(&got.0[here]), bits(&out[there]), "{what}: out");
                        let [here, there] = [at, *row].map(|row| row * heads..(row + 1) * heads);
                        assert_eq!(bits(&got.1[here]), bits(&lse[there]), "{what}: lse");
                    }
                }
            }
        }
    }
}

const FORMATS: [PageFormat; 4] = [PageFormat::Plain, PageFormat::Fp8, PageFormat::Int8, PageFormat::Int4];
const ENDS: [usize; 4] = [90, 300, 517, 700];

#[test]
fn a_step_of_some_sequences_has_the_bits_of_their_prefills() {
    for elem in [Elem::F32, Elem::Bf16] {
        let make = |heads, kv_heads, dim| problem(elem, 700, heads, kv_heads, dim).documents(&ENDS, None);
        steps_have_the_bits_of_prefills("groups of four", &make(4, 1, 64), &FORMATS);
        steps_have_the_bits_of_prefills("a last part of a vector", &make(2, 2, 72), &FORMATS);
        steps_have_the_bits_of_prefills("an odd head", &make(3, 1, 21), &FORMATS);
        steps_have_the_bits_of_prefills("a group of seven", &make(7, 1, 128), &FORMATS[..1]);
        let windowed = problem(elem, 700, 3, 1, 80).documents(&ENDS, Some(150));
        steps_have_the_bits_of_prefills("window", &windowed, &FORMATS[..3]);
        let all = make(4, 2, 64).with(|p| {
            p.options.softcap = 5.0;
            p.sinks = Some(noise(8, 4));
        });
        steps_have_the_bits_of_prefills("cap and sinks", &all, &FORMATS[..2]);
        let hard = make(2, 1, 64).with(|p| p.options.scale *= 12.0);
        steps_have_the_bits_of_prefills("hard", &hard, &FORMATS[..1]);
    }
}

/// Results of the operations that each instruction set implements in its own way.
#[inline(always)]
unsafe fn moved<S: Simd>() -> Vec<u32> {
    // SAFETY: the caller's promise; every pointer covers what is read.
    unsafe {
        let mut found = Vec::new();
        let mut keep = |v: S::V| {
            let mut lanes = [0.0f32; LANES];
            S::store(lanes.as_mut_ptr(), v);
            found.extend(lanes.map(f32::to_bits));
        };
        let words: Vec<f32> = (0..256).map(|at| at as f32).collect();
        let mut block = [S::splat(0.0); LANES];
        for (row, v) in words.chunks(LANES).zip(&mut block) {
            *v = S::load(row.as_ptr());
        }
        S::transpose(&mut block);
        block.into_iter().for_each(&mut keep);
        let halves: Vec<u16> = (0..LANES * 40).map(|at| (at * 97 + 13) as u16).collect();
        let rows: [*const u8; LANES] = std::array::from_fn(|row| halves[40 * row..].as_ptr().cast());
        for at in [0, 2, 48] {
            S::columns(&rows, at).into_iter().for_each(&mut keep);
        }
        let bytes: [u8; 256] = std::array::from_fn(|at| at as u8);
        for sixteen in bytes.as_chunks::<LANES>().0 {
            keep(S::whole(sixteen.as_ptr().cast()));
            keep(S::e4m3(sixteen.as_ptr()));
        }
        found
    }
}

/// Sums of a product, by rows and panels together or separately.
#[inline(always)]
unsafe fn sums<S: Simd>(rows: usize, panels: usize, apart: bool) -> Vec<u32> {
    let depth = 37;
    let [a, b, mut c] = [rows * depth, panels * depth * LANES, rows * panels * LANES]
        .map(|count| noise(count as u64, count).into_iter().map(|x| x * 1.37).collect::<Vec<_>>());
    let (ldb, ldc) = (depth * LANES, panels * LANES);
    let whole = Product {
        a: a.as_ptr().cast(),
        lda: depth,
        b: b.as_ptr().cast(),
        ldb,
        depth,
        c: c.as_mut_ptr(),
        ldc,
        rows,
        panels,
        add: true,
    };
    // SAFETY: the caller's promise; operands have the extents.
    unsafe {
        if !apart {
            product::<S>(&whole);
        }
        for (row, panel) in
            (0..rows).flat_map(|row| (0..panels).map(move |panel| (row, panel))).filter(|_| apart)
        {
            let (a, b) = (whole.a.add(row * depth), whole.b.add(panel * ldb));
            let c = whole.c.add(row * ldc + panel * LANES);
            product::<S>(&Product { a, b, c, rows: 1, panels: 1, ..whole });
        }
    }
    c.into_iter().map(f32::to_bits).collect()
}

#[cfg(target_arch = "x86_64")]
#[test]
fn vectors_move_what_plain_rust_moves() {
    #[target_feature(enable = "avx2,fma")]
    unsafe fn of_avx2() -> Vec<u32> {
        // SAFETY: passed on.
        unsafe { moved::<Avx2>() }
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
    unsafe fn of_avx512() -> Vec<u32> {
        // SAFETY: passed on.
        unsafe { moved::<Avx512<false>>() }
    }
    // SAFETY: the processor supports it.
    unsafe {
        let want = moved::<Portable>();
        if Isa::detect() >= Isa::Avx2 {
            assert_eq!(of_avx2(), want);
        }
        if Isa::detect() >= Isa::Avx512 {
            assert_eq!(of_avx512(), want);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn tiles_of_any_size_give_the_same_sums() {
    #[target_feature(enable = "avx2,fma")]
    unsafe fn of_avx2(rows: usize, panels: usize, apart: bool) -> Vec<u32> {
        // SAFETY: passed on.
        unsafe { sums::<Avx2>(rows, panels, apart) }
    }
    for (rows, panels) in (1..=20).flat_map(|rows| (1..=9).map(move |panels| (rows, panels))) {
        // SAFETY: the processor supports it.
        unsafe {
            assert_eq!(sums::<Portable>(rows, panels, false), sums::<Portable>(rows, panels, true));
            if Isa::detect() >= Isa::Avx2 {
                let what = format!("{rows} rows, {panels} panels");
                assert_eq!(of_avx2(rows, panels, false), of_avx2(rows, panels, true), "{what}");
            }
        }
    }
}
