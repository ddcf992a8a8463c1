//! Compares narrow formats with a slow definition that lists every code, and with PyTorch's types (`oracle/narrow.py`).

use std::path::Path;

use fathom_tensor::{Blocks, Element, Narrow, ScaleRule};

use super::*;

/// The finite values of all unsigned codes, ascending, decoded from their bits.
fn codes(element: Element) -> Vec<f64> {
    let (bits, mantissa) = match element {
        Element::E4M3 => (4, 3),
        Element::E5M2 => (5, 2),
        Element::E2M3 => (2, 3),
        Element::E3M2 => (3, 2),
        Element::E2M1 => (2, 1),
    };
    let (bias, steps) = ((1 << (bits - 1)) - 1, 1 << mantissa);
    let value = |code: i32| {
        let (exponent, fraction) = (code / steps, f64::from(code % steps) / f64::from(steps));
        match exponent {
            0 => 2f64.powi(1 - bias) * fraction,
            _ => 2f64.powi(exponent - bias) * (1.0 + fraction),
        }
    };
    // E4M3 has one NaN and no infinities, E5M2 a whole exponent for both, the others neither.
    let most = match element {
        Element::E4M3 => (1 << 7) - 1,
        Element::E5M2 => 31 << 2,
        _ => 1 << (bits + mantissa),
    };
    (0..most).map(value).collect()
}

/// The nearest code, ties to even; the largest code for larger values.
fn nearest(codes: &[f64], x: f64) -> f64 {
    let above = codes.partition_point(|code| *code < x.abs()).min(codes.len() - 1);
    let below = above.saturating_sub(1);
    let (up, down) = (codes[above] - x.abs(), x.abs() - codes[below]);
    let code = if up < down || (up == down && above % 2 == 0) { above } else { below };
    codes[code].copysign(x)
}

/// Expected output of the kernel.
fn expected(how: Narrow, block: Option<[usize; 2]>, x: &PaddedMatrix) -> Vec<f32> {
    let codes = codes(how.element);
    let [high, wide] = block.unwrap_or([x.rows, x.cols]);
    let mut out = vec![0.0; x.rows * x.cols];
    for (row, col) in (0..x.rows).step_by(high).flat_map(|r| (0..x.cols).step_by(wide).map(move |c| (r, c))) {
        let cells = || {
            (row..(row + high).min(x.rows))
                .flat_map(move |r| (col..(col + wide).min(x.cols)).map(move |c| (r, c)))
        };
        let finite = cells().map(|(r, c)| x.get(r, c).abs()).filter(|x| x.is_finite());
        let largest = finite.fold(0.0, f64::max);
        let mut exponent = if largest > 0.0 { largest.log2().floor() as i32 - how.element.high() } else { 0 };
        if how.rule == ScaleRule::Covers && largest > codes[codes.len() - 1] * 2f64.powi(exponent) {
            exponent += 1;
        }
        let scale = 2f64.powi(exponent.clamp(-127, 127));
        for (r, c) in cells() {
            let value = x.get(r, c);
            let near = nearest(&codes, value / scale) * scale;
            out[r * x.cols + c] = if value.is_finite() { near as f32 } else { value as f32 };
        }
    }
    out
}

fn values(x: &PaddedMatrix) -> Vec<f32> {
    (0..x.rows).flat_map(|row| (0..x.cols).map(move |col| x.get(row, col) as f32)).collect()
}

fn round(place: Place<'_>, how: Narrow, scale: Scale, x: &PaddedMatrix, elem: Elem) -> Vec<f32> {
    let mut out = PaddedMatrix::new(x.rows, x.cols, elem, |_, _| 9.0);
    let call = Round { how, rows: x.rows, cols: x.cols, scale, x: x.mat(0), out: out.mat_mut(0) };
    // SAFETY: both have the rows and columns named.
    unsafe { narrow(place, &call) };
    values(&out)
}

#[track_caller]
fn same(what: &str, found: &[f32], expected: &[f32]) {
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(same, "{what} at {at}: {found:e}, not {expected:e}");
    }
}

const RULES: [ScaleRule; 2] = [ScaleRule::Floor, ScaleRule::Covers];

#[test]
fn every_code_and_every_middle_between_two() {
    for element in Element::ALL {
        let codes = codes(element);
        assert_eq!(codes[codes.len() - 1], f64::from(element.most()), "{element:?}");
        // Codes, midpoints, and the f32 on each side of a midpoint; values above the largest; both signs.
        let pairs = codes.windows(2).flat_map(|pair| {
            let middle = (pair[0] + pair[1]) as f32 / 2.0;
            [pair[0] as f32, middle, middle.next_down(), middle.next_up()]
        });
        let most = element.most();
        let far = [most, most.next_up(), 1.25 * most, 4.0 * most, f32::MAX, f32::MIN_POSITIVE, 1e-45];
        let all: Vec<f32> = pairs.chain(far).flat_map(|x| [x, -x]).chain([f32::NAN, f32::INFINITY]).collect();
        for exponent in [0, -20, 17] {
            let scale = 2f32.powi(exponent);
            let x =
                PaddedMatrix::new(1, all.len(), Elem::F32, |_, col| all.get(col).map_or(0.0, |x| x * scale));
            let how = Narrow { element, blocks: Blocks::Tensor, rule: ScaleRule::Covers };
            let wanted: Vec<f32> = values(&x)
                .iter()
                .map(|x| {
                    if x.is_finite() {
                        (nearest(&codes, f64::from(x / scale)) * f64::from(scale)) as f32
                    } else {
                        *x
                    }
                })
                .collect();
            places(|place| {
                let found = round(place, how, Scale::Power(exponent), &x, Elem::F32);
                same(&format!("{element:?} at 2^{exponent}"), &found, &wanted);
            });
        }
    }
}

#[test]
fn blocks_of_every_shape() {
    let blocks = [[1, 32], [32, 1], [1, 128], [128, 1], [128, 128]];
    for (elem, [rows, cols]) in [(Elem::F32, [67, 300]), (Elem::Bf16, [131, 45]), (Elem::F32, [1, 1])] {
        let mut x = PaddedMatrix::random(rows, cols, elem, 4);
        for row in 0..rows {
            for col in 0..cols {
                let power = (row * 7 + col / 32 * 5) % 40;
                let value = x.get(row, col) as f32 * 2f32.powi(power as i32 - 20);
                x.set(row, col, value);
            }
        }
        if rows > 40 {
            (0..cols).for_each(|col| x.set(33, col, 0.0));
            [(1, f32::NAN), (2, f32::INFINITY), (3, -0.0)]
                .iter()
                .for_each(|(row, value)| x.set(*row, 7, *value));
        }
        for (element, rule, block) in Element::ALL
            .into_iter()
            .flat_map(|e| RULES.map(|r| (e, r)))
            .flat_map(|(e, r)| blocks.map(|b| (e, r, b)))
        {
            let how = Narrow { element, blocks: Blocks::Line(32), rule };
            let wanted = expected(how, Some(block), &x);
            places(|place| {
                let found = round(place, how, Scale::Blocks(block), &x, elem);
                same(&format!("{element:?} {rule:?} {block:?} of {elem:?}"), &found, &wanted);
            });
        }
    }
}

#[test]
fn largest_magnitudes_are_of_finite_elements() {
    for elem in ELEMS {
        let mut x = PaddedMatrix::random(70, 141, elem, 9);
        x.set(3, 5, f32::NEG_INFINITY);
        x.set(4, 5, f32::NAN);
        x.set(69, 140, -7.5);
        places(|place| {
            // SAFETY: the rows and columns are those of x.
            assert_eq!(unsafe { largest(place, 70, 141, x.mat(0)) }, 7.5);
            let mut out = PaddedMatrix::new(1, 141, Elem::F32, |_, col| if col == 8 { 5.0 } else { 0.0 });
            // SAFETY: as above.
            unsafe { largest_by_column(place, 70, 141, x.mat(0), out.mat_mut(0)) };
            for col in 0..141 {
                let column = (0..70).map(|row| x.get(row, col).abs()).filter(|x| x.is_finite());
                let most = column.fold(if col == 8 { 5.0 } else { 0.0 }, f64::max);
                assert_eq!(out.get(0, col), most, "column {col}");
            }
        });
    }
}

/// A file written by `oracle/narrow.py`.
fn golden(name: &str) -> PaddedMatrix {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/narrow/{name}.bf16"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let value = |at: usize| bf16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f32();
    PaddedMatrix::new(132, 36, Elem::Bf16, |row, col| if col < 36 { value(row * 36 + col) } else { 0.0 })
}

#[test]
fn pytorch_has_the_same_numbers() {
    let x = golden("x");
    let named = |element: Element| format!("{element:?}").to_lowercase();
    let mut cases = Vec::new();
    for element in [Element::E4M3, Element::E5M2] {
        cases.push((named(element), element, ScaleRule::Floor, Scale::Power(0)));
    }
    for element in Element::ALL {
        for (end, block) in [("cols", [1, 32]), ("rows", [32, 1])] {
            cases.push((
                format!("mx_{}_{end}", named(element)),
                element,
                ScaleRule::Floor,
                Scale::Blocks(block),
            ));
        }
    }
    for (end, block) in [("cols", [1, 128]), ("rows", [128, 1]), ("tiles", [128, 128])] {
        cases.push((format!("fp8_{end}"), Element::E4M3, ScaleRule::Covers, Scale::Blocks(block)));
    }
    for (name, element, rule, scale) in cases {
        let (wanted, how) = (values(&golden(&name)), Narrow { element, blocks: Blocks::Tensor, rule });
        places(|place| same(&name, &round(place, how, scale, &x, Elem::Bf16), &wanted));
    }
}
