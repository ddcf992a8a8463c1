//! Conformance test of links: run by each rank of a mesh on a machine with data; panics if a link violates the
//! contract.

use super::{Axis, Group};
use crate::{Category, DType, Device, Tensor};

/// Checks all collectives along all axes of the device's mesh.
///
/// # Panics
/// With the collective and its result.
pub fn check(device: &Device) {
    let mesh = &device.mesh;
    let groups = [&[Axis::Tp][..], &[Axis::Cp], &[Axis::Dp], &[Axis::Pp], &[Axis::Ep], &[Axis::Cp, Axis::Dp]];
    for axes in groups {
        let group = mesh.group(axes);
        gather(device, &group);
        scatter(device, &group);
        for dtype in [DType::F32, DType::Bf16] {
            for len in [1, 3, 1000, 70_001] {
                reduce(device, &group, len, dtype);
            }
        }
        shift(device, &group);
        overtake(device, &group);
        sums_under_way(device, &group);
    }
    let everybody = mesh.everybody();
    let x = tensor(device, 5, 7, everybody.index());
    everybody.broadcast(device, everybody.size() - 1, &x);
    expect(device, "broadcast", &x, &values(5, 7, everybody.size() - 1));
    assert_eq!(mesh.check(), Ok(()));
}

/// Small integers that depend on the seed, so that ranks differ.
fn values(rows: usize, cols: usize, seed: usize) -> Vec<f32> {
    (0..rows * cols).map(|at| ((at * 7 + seed * 13) % 31) as f32 - 15.0).collect()
}

fn tensor(device: &Device, rows: usize, cols: usize, seed: usize) -> Tensor {
    device.from_f32(rows, cols, &values(rows, cols, seed), Category::Data)
}

#[track_caller]
fn expect(device: &Device, what: &str, found: &Tensor, expected: &[f32]) {
    let found = device.to_f32(found);
    let at = found.iter().zip(expected).position(|(found, expected)| found != expected);
    assert!(at.is_none() && found.len() == expected.len(), "{what} of {:?}: differs at {at:?}", device.mesh);
}

fn gather(device: &Device, group: &Group) {
    let all = device.zeros(3 * group.size(), 5, DType::F32, Category::Data);
    let parts: Vec<Tensor> = (0..group.size()).map(|index| all.view_rows(3 * index..3 * index + 3)).collect();
    let mine = tensor(device, 3, 5, group.ranks()[group.index()]);
    group.all_gather(device, &mine, &parts).wait();
    let expected: Vec<f32> = group.ranks().iter().flat_map(|rank| values(3, 5, *rank)).collect();
    expect(device, "all_gather", &all, &expected);
    let mut seen = vec![false; group.size()];
    group.each_gathered(device, &mine, &mut |index, part| {
        expect(device, "each_gathered", part, &values(3, 5, group.ranks()[index]));
        seen[index] = true;
    });
    assert!(seen.into_iter().all(|seen| seen));
}

fn scatter(device: &Device, group: &Group) {
    let size = group.size();
    // Columns of a wider tensor: sent tensors may have gaps.
    let wide = tensor(device, 4, 6 * size, group.ranks()[group.index()]);
    let parts: Vec<Tensor> = (0..size).map(|index| wide.view_cols(6 * index..6 * index + 6)).collect();
    let column = |rank: usize| {
        let all = values(4, 6 * size, rank);
        let index = group.index();
        (0..4).flat_map(|row| all[row * 6 * size + 6 * index..][..6].to_vec()).collect::<Vec<f32>>()
    };
    let out = device.zeros(4, 6, DType::F32, Category::Data);
    group.reduce_scatter(device, &parts, &out);
    let made: Vec<Tensor> = parts.iter().map(|_| device.zeros(4, 6, DType::F32, Category::Data)).collect();
    let again = device.zeros(4, 6, DType::F32, Category::Data);
    group.reduce_scatter_made(device, &made, &again, &mut |at| device.machine.copy(&parts[at], &made[at]));
    let mut sum = vec![0.0; 24];
    for rank in group.ranks() {
        sum.iter_mut().zip(column(*rank)).for_each(|(sum, x)| *sum += x);
    }
    expect(device, "reduce_scatter", &out, &sum);
    expect(device, "reduce_scatter_made", &again, &sum);
    let taken = device.zeros(4 * size, 6, DType::F32, Category::Data);
    let take: Vec<Tensor> = (0..size).map(|index| taken.view_rows(4 * index..4 * index + 4)).collect();
    group.all_to_all(device, &parts, &take).wait();
    let expected: Vec<f32> = group.ranks().iter().flat_map(|rank| column(*rank)).collect();
    expect(device, "all_to_all", &taken, &expected);
}

fn reduce(device: &Device, group: &Group, len: usize, dtype: DType) {
    let x = device.zeros(1, len, dtype, Category::Data);
    device.machine.copy(&tensor(device, 1, len, group.ranks()[group.index()]), &x);
    group.all_reduce(device, &x);
    let mut sum = vec![0.0; len];
    for rank in group.ranks() {
        sum.iter_mut().zip(values(1, len, *rank)).for_each(|(sum, x)| *sum += x);
    }
    // Integers below 256 are exact in bf16.
    expect(device, "all_reduce", &x, &sum);
}

/// A ring shift whose transfer is in flight while something else is computed.
fn shift(device: &Device, group: &Group) {
    let (size, index) = (group.size(), group.index());
    if size == 1 {
        return;
    }
    let mine = tensor(device, 9, 3, group.ranks()[index]);
    let theirs = device.zeros(9, 3, DType::F32, Category::Data);
    let (next, last) = ((index + 1) % size, (index + size - 1) % size);
    let flying = group.exchange(device, "shift", &[(next, &mine)], &[(last, &theirs)]);
    let other = device.zeros(9, 3, DType::F32, Category::Data);
    device.machine.add(&mine, &mine, &other);
    flying.wait();
    expect(device, "exchange", &theirs, &values(9, 3, group.ranks()[last]));
}

/// Two transfers in flight; the second is waited for first.
fn overtake(device: &Device, group: &Group) {
    let (size, index) = (group.size(), group.index());
    if size == 1 {
        return;
    }
    let (next, last) = ((index + 1) % size, (index + size - 1) % size);
    let begin = |seed: usize| {
        let mine = tensor(device, 4, 3, group.ranks()[index] + seed);
        let theirs = device.zeros(4, 3, DType::F32, Category::Data);
        let flying = group.exchange(device, "overtake", &[(next, &mine)], &[(last, &theirs)]);
        (flying, mine, theirs)
    };
    let (first, second) = (begin(1), begin(5));
    for ((flying, _, theirs), seed) in [(second, 5), (first, 1)] {
        flying.wait();
        expect(device, "exchange", &theirs, &values(4, 3, group.ranks()[last] + seed));
    }
}

/// Sums of two tensors with unequal shares; something else is sent before they are waited for.
fn sums_under_way(device: &Device, group: &Group) {
    let (size, index) = (group.size(), group.index());
    let cut = |len: usize| -> Vec<std::ops::Range<usize>> {
        let at = |member: usize| len * member * member / (size * size);
        (0..size).map(|member| at(member)..at(member + 1)).collect()
    };
    let lens = [50, 7];
    let wholes = lens.map(|len| tensor(device, 1, len, group.ranks()[index]));
    let parts = |whole: &Tensor| cut(whole.len()).into_iter().map(|range| whole.view_cols(range)).collect();
    let reducing = group.begin_reduce_scatter(device, &[parts(&wholes[0]), parts(&wholes[1])]);
    shift(device, group);
    reducing.finish(device, &mut |at, sum| {
        let all = group.ranks().iter().map(|rank| values(1, lens[at], *rank));
        let mut expected = vec![0.0; lens[at]];
        all.for_each(|values| expected.iter_mut().zip(values).for_each(|(sum, x)| *sum += x));
        expect(device, "begin_reduce_scatter", sum, &expected[cut(lens[at])[index].clone()]);
    });
}
