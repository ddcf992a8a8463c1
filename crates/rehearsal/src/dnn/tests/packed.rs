//! Packed sequences of different lengths, between unused tokens.

use half::bf16;

use super::attention::{PackedOffsets, Shape, backward, forward, wanted};
use super::bench::{Bench, Data, Tensor, memory, numbers, values};

/// Value of tokens before, between and behind the sequences, which must be neither read nor written.
const UNUSED: f32 = f32::NAN;

struct Sequence {
    start: usize,
    queries: usize,
    keys: usize,
}

/// Tokens of sequences, taken from a source, with unused tokens in between.
fn spread(
    all: &[Sequence],
    length: impl Fn(&Sequence) -> usize,
    row: usize,
    total: usize,
    seed: u32,
) -> Vec<f32> {
    let source = numbers(seed, total * row);
    let mut tokens = vec![UNUSED; total * row];
    for sequence in all {
        let range = sequence.start * row..(sequence.start + length(sequence)) * row;
        tokens[range.clone()].copy_from_slice(&source[range]);
    }
    tokens
}

fn put(values: &[f32], data: Data) -> u64 {
    match data {
        Data::CUDNN_DATA_FLOAT => memory(values),
        _ => memory(&values.iter().copied().map(bf16::from_f32).collect::<Vec<_>>()),
    }
}

fn take(address: u64, count: usize, data: Data) -> Vec<f32> {
    match data {
        Data::CUDNN_DATA_FLOAT => values(address, count),
        _ => values::<bf16>(address, count).into_iter().map(bf16::to_f32).collect(),
    }
}

/// Checks that values in sequences are as expected and everything else is unchanged.
fn check(found: &[f32], wanted: &[(usize, Vec<f32>)], row: usize, tolerance: f32) {
    let mut left: Vec<Option<f32>> = vec![None; found.len()];
    for (start, values) in wanted {
        for (index, value) in values.iter().enumerate() {
            left[start * row + index] = Some(*value);
        }
    }
    for (index, (found, wanted)) in found.iter().zip(left).enumerate() {
        match wanted {
            None => assert_eq!(*found, 9.0, "{index} is unused"),
            Some(wanted) => {
                let near = (found - wanted).abs() <= tolerance * wanted.abs().max(1.0);
                assert!(near, "{index}: {found}, not {wanted}");
            }
        }
    }
}

fn run(data: Data, tolerance: f32) {
    let one = |start, queries, keys| Sequence { start, queries, keys };
    let all = [one(1, 3, 3), one(4, 0, 0), one(5, 7, 7), one(12, 5, 4), one(18, 1, 2)];
    let (total, last) = (22, 20);
    let shape = Shape { batch: 5, heads: 4, shared: 2, queries: 8, keys: 9, width: 16, data };
    let (wide, narrow, rows) = (4 * 16, 2 * 16, 4);
    let q = spread(&all, |one| one.queries, wide, total, 1);
    let d_o = spread(&all, |one| one.queries, wide, total, 2);
    let k = spread(&all, |one| one.keys, narrow, total, 3);
    let v = spread(&all, |one| one.keys, narrow, total, 4);
    let sequences: Vec<_> = all
        .iter()
        .map(|one| {
            let many = one.start * wide..(one.start + one.queries) * wide;
            let few = one.start * narrow..(one.start + one.keys) * narrow;
            let parts = [&q[many.clone()], &k[few.clone()], &v[few], &d_o[many]];
            (one.start, wanted(shape, parts, one.queries, one.keys))
        })
        .collect();
    let offsets = |row: usize| {
        let starts = all.iter().map(|one| one.start).chain([last]);
        memory(&starts.map(|start| (start * row) as i64).collect::<Vec<_>>())
    };
    let lengths =
        |of: fn(&Sequence) -> usize| memory(&all.iter().map(|one| of(one) as i32).collect::<Vec<_>>());
    let bound = |packed: &PackedOffsets| -> Vec<(Tensor, u64)> {
        vec![
            (packed.queries.clone(), offsets(wide)),
            (packed.keys.clone(), offsets(narrow)),
            (packed.stats.clone(), offsets(rows)),
            (packed.query_lengths.clone(), lengths(|one| one.queries)),
            (packed.key_lengths.clone(), lengths(|one| one.keys)),
        ]
    };
    let [at_q, at_k, at_v, at_d_o] = [&q, &k, &v, &d_o].map(|all| put(all, data));
    let at_o = put(&vec![9.0; total * wide], data);
    let at_stats = memory(&vec![9.0_f32; total * rows]);

    let mut bench = Bench::new();
    let packed = PackedOffsets::new(&bench, 5);
    let tensors = forward(&mut bench, shape, Some(&packed));
    let mut places: Vec<(Tensor, u64)> =
        tensors.into_iter().zip([at_q, at_k, at_v, at_o, at_stats]).collect();
    places.extend(bound(&packed));
    bench.run(&places.iter().map(|(tensor, place)| (tensor, *place)).collect::<Vec<_>>());
    let pick = |of: fn(&super::attention::ExpectedSequence) -> &Vec<f32>| -> Vec<(usize, Vec<f32>)> {
        sequences.iter().map(|(start, wanted)| (*start, of(wanted).clone())).collect()
    };
    check(&take(at_o, total * wide, data), &pick(|wanted| &wanted.o), wide, tolerance);
    check(&values(at_stats, total * rows), &pick(|wanted| &wanted.stats), rows, tolerance);

    let mut bench = Bench::new();
    let packed = PackedOffsets::new(&bench, 5);
    let tensors = backward(&mut bench, shape, Some(&packed));
    let grads = [wide, narrow, narrow].map(|row| put(&vec![9.0; total * row], data));
    let mut at = vec![at_q, at_k, at_v, at_o, at_stats, at_d_o, grads[0], grads[1], grads[2]];
    at.extend([memory(&vec![9.0_f32; total * rows]), memory(&vec![9.0_f32; total * wide])]);
    // For every query head, in correspondingly longer rows.
    at.extend([(); 2].map(|()| put(&vec![9.0; total * wide], data)));
    let mut places: Vec<(Tensor, u64)> = tensors.into_iter().zip(at).collect();
    places.extend(bound(&packed));
    bench.run(&places.iter().map(|(tensor, place)| (tensor, *place)).collect::<Vec<_>>());
    check(&take(grads[0], total * wide, data), &pick(|wanted| &wanted.grads[0]), wide, 2.0 * tolerance);
    check(&take(grads[1], total * narrow, data), &pick(|wanted| &wanted.grads[1]), narrow, 2.0 * tolerance);
    check(&take(grads[2], total * narrow, data), &pick(|wanted| &wanted.grads[2]), narrow, 2.0 * tolerance);
}

#[test]
fn sequences_are_attended_by_themselves_and_neighbours_are_unharmed() {
    run(Data::CUDNN_DATA_FLOAT, 1e-4);
}

#[test]
fn the_same_in_half_of_singles() {
    run(Data::CUDNN_DATA_BFLOAT16, 3e-2);
}
