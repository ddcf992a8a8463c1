//! Distribution of a stream over context-parallel ranks: every token once, equal numbers, balanced areas.

use std::ops::Range;

use fathom_grad::{ContextLayout, LayoutSizes, causal_pairs};
use proptest::prelude::*;

const TOKENS: usize = 128 << 10;
const WINDOWS: [Option<usize>; 5] = [None, Some(128), Some(1000), Some(4096), Some(32 << 10)];

/// A number in 0..1 (SplitMix64).
fn uniform(seed: u64, index: u64) -> f64 {
    let mut z = (seed << 32).wrapping_add(index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Documents whose lengths are log-normal with this mean and sigma 1; the last is cut.
fn log_normal(tokens: usize, mean: f64, seed: u64) -> Vec<Range<usize>> {
    let mut docs = Vec::new();
    let mut start = 0;
    for at in 0.. {
        let (u, v) = (1.0 - uniform(seed, 2 * at), uniform(seed, 2 * at + 1));
        let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        let length = (mean.ln() - 0.5 + normal).exp().ceil() as usize;
        docs.push(start..(start + length).min(tokens));
        start += length;
        if start >= tokens {
            break;
        }
    }
    docs
}

fn cut(tokens: usize, cp: usize, chunk: usize, windows: &[Option<usize>]) -> LayoutSizes<'_> {
    LayoutSizes { tokens, cp, chunk, windows, dynamic: None, pieces: None }
}

/// Checks that every token occurs once, in order, with equal numbers per rank, and the sum of areas.
#[track_caller]
fn check(docs: &[Range<usize>], cut: &LayoutSizes<'_>) -> ContextLayout {
    let layout = ContextLayout::new(docs, cut).unwrap_or_else(|message| panic!("{message}"));
    let mut owners = vec![0; cut.tokens];
    for rank in 0..cut.cp {
        let ranges = layout.ranges(rank);
        assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{ranges:?}");
        ranges.iter().cloned().flatten().for_each(|token| owners[token] += 1);
        let tokens: Vec<usize> = (0..cut.tokens).collect();
        let own = ranges.iter().cloned().flatten().collect::<Vec<_>>();
        assert_eq!(layout.take(rank, &tokens), own);
        assert_eq!(layout.take(rank, &tokens).len(), cut.tokens / cut.cp);
    }
    assert!(owners.iter().all(|owners| *owners == 1));
    if docs.iter().map(Range::len).sum::<usize>() == cut.tokens {
        let runs = layout.document_runs();
        assert!(runs.iter().flat_map(|run| run.rows.clone()).eq(0..cut.tokens));
        assert!(runs.iter().all(|run| docs[run.document] == run.rows && run.offset == 0));
    }
    for window in cut.windows.iter().copied().chain([None]) {
        let all: u64 = docs.iter().map(|doc| causal_pairs(doc.len(), window)).sum();
        assert_eq!((0..cut.cp).map(|rank| layout.area(rank, window)).sum::<u64>(), all);
    }
    assert_eq!(ContextLayout::new(docs, cut).as_ref(), Ok(&layout));
    layout
}

#[test]
fn one_document_of_two_chunks_a_rank_is_the_zigzag() {
    for cp in [2, 3, 8] {
        let tokens = cp * 2 * 64;
        let whole = 0..tokens;
        let layout = check(std::slice::from_ref(&whole), &cut(tokens, cp, 64, &[]));
        for rank in 0..cp {
            let chunks = [rank, 2 * cp - 1 - rank].map(|chunk| chunk * 64..(chunk + 1) * 64);
            let zigzag: Vec<Range<usize>> = if rank + 1 == cp {
                std::iter::once(chunks[0].start..chunks[1].end).collect()
            } else {
                chunks.to_vec()
            };
            assert_eq!(layout.ranges(rank), zigzag);
        }
    }
}

#[test]
fn one_rank_has_everything() {
    let layout = check(&[0..10, 10..33], &cut(33, 1, 512, &[Some(3)]));
    assert_eq!(layout.ranges(0), std::slice::from_ref(&(0..33)));
}

/// The limits: 8 ranks, 128K tokens, chunks of 512, or as large as balance allows.
#[test]
fn areas_are_balanced() {
    for (window, chunk) in WINDOWS.into_iter().flat_map(|window| [(window, 512), (window, TOKENS)]) {
        let windows = [window];
        let dense = std::iter::once(0..TOKENS).collect::<Vec<_>>();
        let found = check(&dense, &cut(TOKENS, 8, chunk, &windows)).imbalance(window);
        assert!(found <= 1.01, "dense, {window:?}, {chunk}: {found}");
        for seed in 0..40 {
            let docs = log_normal(TOKENS, 4096.0, seed);
            let found = check(&docs, &cut(TOKENS, 8, chunk, &windows)).imbalance(window);
            assert!(found <= 1.05, "packed, {window:?}, {chunk}, {seed}: {found}");
        }
    }
}

/// For layers of two kinds the sum is balanced, and nearly each kind.
#[test]
fn layers_of_several_windows_share_a_layout() {
    let windows = [None, Some(1024), Some(1024), Some(1024), Some(1024), Some(1024)];
    for seed in 0..20 {
        let layout = check(&log_normal(TOKENS, 4096.0, seed), &cut(TOKENS, 8, 512, &windows));
        let worst = [None, Some(1024)].map(|window| layout.imbalance(window)).into_iter().fold(1.0, f64::max);
        assert!(worst <= 1.15, "{seed}: {worst}");
    }
}

/// Number of ranks with some of each document.
fn degrees(layout: &ContextLayout) -> Vec<usize> {
    let has = |rank: usize, doc: &Range<usize>| {
        layout.ranges(rank).iter().any(|range| range.start < doc.end && doc.start < range.end)
    };
    layout.docs().iter().map(|doc| (0..layout.cp()).filter(|rank| has(*rank, doc)).count()).collect()
}

/// A single document is on all ranks, short ones on one each, and mixtures on as few as balance allows.
#[test]
fn documents_lie_on_few_ranks() {
    let dynamic = |docs: &[Range<usize>], cp, token| {
        let tokens = docs.last().map_or(0, |doc| doc.end);
        check(docs, &LayoutSizes { dynamic: Some(token), ..cut(tokens, cp, 512, &[]) })
    };
    let equal: Vec<Range<usize>> = (0..16).map(|doc| doc * 1000..(doc + 1) * 1000).collect();
    let layout = dynamic(&equal, 8, 0);
    assert!(degrees(&layout).iter().all(|degree| *degree == 1) && layout.imbalance(None) == 1.0);
    let whole = 0..TOKENS;
    let layout = dynamic(std::slice::from_ref(&whole), 8, 0);
    assert!(degrees(&layout) == [8] && layout.imbalance(None) < 1.01);
    // One long and sixteen short documents: the long one on nearly all ranks, the short ones on one each except the
    // last.
    let short = (0..16).map(|doc| (64 + doc * 4) << 10..(68 + doc * 4) << 10);
    let mixed: Vec<Range<usize>> = std::iter::once(0..64 << 10).chain(short).collect();
    let layout = dynamic(&mixed, 8, 0);
    let found = degrees(&layout);
    assert!(found[0] >= 7 && found[1..].iter().sum::<usize>() <= 16 + 8, "{found:?}");
    assert!(layout.imbalance(None) < 1.03, "{}", layout.imbalance(None));
    for seed in 0..40 {
        let docs = log_normal(TOKENS, 4096.0, seed);
        // For a layer of Llama 3 8B: its weights divided by twice its columns.
        let token = 26_624;
        let layout = dynamic(&docs, 8, token);
        let areas: Vec<u64> = (0..8).map(|rank| layout.area(rank, None)).collect();
        let work = |area: u64| area as f64 + (token * TOKENS as u64 / 8) as f64;
        let mean = areas.iter().map(|area| work(*area)).sum::<f64>() / 8.0;
        let most = areas.iter().map(|area| work(*area)).fold(0.0, f64::max);
        assert!(most / mean <= 1.02, "{seed}: {}", most / mean);
        let mean = degrees(&layout).iter().sum::<usize>() as f64 / docs.len() as f64;
        assert!(mean < 2.5, "{seed}: {mean}");
        // Balanced by attention only.
        let alone = dynamic(&docs, 8, 0).imbalance(None);
        assert!(alone <= 1.05, "{seed}: {alone}");
    }
}

#[test]
fn tokens_that_cannot_be_dealt_are_reported() {
    let message = ContextLayout::new(&[], &cut(100, 8, 512, &[])).unwrap_err();
    assert!(message.contains("100 tokens") && message.contains("96 or 104"), "{message}");
}

proptest! {
    #[test]
    fn any_stream_is_dealt(
        cp in 1usize..9,
        own in 0usize..400,
        chunk in 1usize..200,
        lengths in prop::collection::vec(0usize..300, 0..12),
        window in prop::option::of(1usize..100),
    ) {
        let tokens = own * cp;
        let mut docs = Vec::new();
        let mut start = 0;
        for length in lengths {
            docs.push(start..(start + length).min(tokens));
            start = (start + length).min(tokens);
        }
        check(&docs, &cut(tokens, cp, chunk, &[window, None]));
        check(&docs, &LayoutSizes { dynamic: Some(chunk as u64 - 1), ..cut(tokens, cp, chunk, &[window, None]) });
    }
}
