//! Random numbers, and the choice of tokens against sorting.

use fathom_cuda::kernels::{choose, leave_out, random_uniform};
use fathom_tensor::choice::{self, Draw, LeaveOut, drawn, kept_bytes, uniform};
use fathom_tensor::{Category, DType};

use super::{blank, devices, emulator::run, floats, ints, random, set};

#[test]
fn random_numbers_are_functions_of_their_place() {
    let Some([_, device]) = devices() else { return };
    let out = blank(&device, [7, 33], DType::F32);
    run(&random_uniform(&out, 9, 1 << 40));
    for (at, got) in floats(&device, &out).iter().enumerate() {
        assert_eq!(*got, uniform(9, (1 << 40) + at as u64) as f32);
    }
}

#[test]
fn the_first_of_the_largest() {
    let Some([_, device]) = devices() else { return };
    let logits = random(&device, [3, 1300], DType::Bf16, 1);
    set(&device, &logits.view_rows(0..1).view_cols(700..702), &[9.0, 9.0]);
    set(&device, &logits.view_rows(1..2), &[-3.0; 1300]);
    let ids = device.from_i32(&[-1; 3], Category::Data);
    run(&choose(&logits, &ids, None, None));
    let row = &floats(&device, &logits)[2600..];
    let best = (0..1300).fold(0, |best, at| if row[at] > row[best] { at } else { best });
    assert_eq!(ints(&device, &ids), [700, 0, best as i32]);
}

#[test]
fn tokens_are_those_of_the_host() {
    let Some([_, device]) = devices() else { return };
    let (rows, vocab) = (6, 333);
    let logits = random(&device, [rows, vocab], DType::F32, 4);
    let values = floats(&device, &logits);
    for (temperature, top_k, top_p, min_p) in [
        (1.0, 0, 1.0, 0.0),
        (0.5, 5, 1.0, 0.0),
        (1.5, 0, 0.7, 0.0),
        (1.0, 40, 0.9, 0.2),
        (1.0, 400, 1.0, 0.0),
    ] {
        let ids = device.from_i32(&vec![-1; rows], Category::Data);
        let draw = Draw { temperature, top_k, top_p, min_p, seed: 9, drawn: 5 };
        let kept = device.zeros(rows, kept_bytes(vocab), DType::U8, Category::Data);
        run(&choose(&logits, &ids, Some(draw), Some(&kept)));
        let expected = |row: usize| {
            let draw = Draw { drawn: 5 + row as u64, ..draw };
            drawn(&values[row * vocab..(row + 1) * vocab], &draw).map_or(-1, |id| id as i32)
        };
        assert_eq!(ints(&device, &ids), (0..rows).map(expected).collect::<Vec<i32>>(), "{draw:?}");
        let mut bits = vec![0; rows * kept_bytes(vocab)];
        for (row, bits) in bits.chunks_exact_mut(kept_bytes(vocab)).enumerate() {
            choice::kept(&values[row * vocab..(row + 1) * vocab], Some(&draw), bits);
        }
        assert_eq!(device.machine.read(&kept).wait(), bits, "{draw:?}");
        // Columns from the 40th on, like those of one rank.
        let some = device.from_f32(rows, vocab - 40, &vec![0.5; rows * (vocab - 40)], Category::Data);
        run(&leave_out(&LeaveOut { logits: &some, kept: &kept, first: 40 }));
        let mut want = vec![0.5; rows * (vocab - 40)];
        let each = want.chunks_exact_mut(vocab - 40).zip(bits.chunks_exact(kept_bytes(vocab)));
        each.for_each(|(logits, kept)| choice::leave_out(logits, kept, 40));
        assert_eq!(floats(&device, &some), want, "{draw:?}");
    }
}

/// With a NaN or infinite logit a row has no choice, while other rows do.
#[test]
fn there_is_no_choice_without_numbers() {
    let Some([_, device]) = devices() else { return };
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
        let logits = random(&device, [3, 700], DType::F32, 2);
        set(&device, &logits.view_rows(1..2).view_cols(600..601), &[bad]);
        let draw = Draw { temperature: 1.0, top_k: 4, top_p: 0.9, min_p: 0.1, seed: 1, drawn: 0 };
        for draw in [None, Some(draw)] {
            let ids = device.from_i32(&[7; 3], Category::Data);
            let kept = device.zeros(3, kept_bytes(700), DType::U8, Category::Data);
            run(&choose(&logits, &ids, draw, Some(&kept)));
            let of_each = device.machine.read(&kept).wait();
            let count = |row: usize| -> u32 {
                of_each[row * 88..(row + 1) * 88].iter().map(|b| b.count_ones()).sum()
            };
            let all = if draw.is_some() { 1..5 } else { 700..701 };
            assert!(all.contains(&count(0)) && count(1) == 0 && all.contains(&count(2)), "{bad} {draw:?}");
            let ids = ints(&device, &ids);
            assert!(ids[0] >= 0 && ids[1] == -1 && ids[2] >= 0, "{bad} {draw:?}: {ids:?}");
        }
    }
}
