//! Cross-entropy and activations.
use super::*;

fn function(kind: Activation, x: f64) -> f64 {
    match kind {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
        }
        Activation::GeluErf => x * (0.5 + area_of_normal(x)),
        Activation::Relu => x.max(0.0),
        Activation::Relu2 => x.max(0.0) * x.max(0.0),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::ClampedSwiglu => unreachable!("gated by pairs"),
    }
}

/// The integral of the normal density from 0 to x, by Simpson's rule.
fn area_of_normal(x: f64) -> f64 {
    let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let step = x / 200.0;
    (0..100)
        .map(|i| 2.0 * i as f64 * step)
        .map(|a| (density(a) + 4.0 * density(a + step) + density(a + 2.0 * step)) * step / 3.0)
        .sum()
}

fn slope(kind: Activation, x: f64) -> f64 {
    if kind == Activation::Relu {
        return if x > 0.0 { 1.0 } else { 0.0 };
    }
    let h = 1e-4;
    (function(kind, x - 2.0 * h) - 8.0 * function(kind, x - h) + 8.0 * function(kind, x + h)
        - function(kind, x + 2.0 * h))
        / (12.0 * h)
}

#[test]
fn activations_and_their_gradients_agree_with_f64() {
    use Activation::*;
    let (rows, cols) = (7, 77);
    for kind in [Silu, GeluTanh, GeluErf, Relu, Relu2, Tanh, Sigmoid] {
        for (elem, gated) in [(Elem::F32, false), (Elem::F32, true), (Elem::Bf16, false), (Elem::Bf16, true)]
        {
            // Covers the functions' curved range, and avoids the kink of relu.
            let random = PaddedMatrix::random(rows, 2 * cols, elem, 1);
            let x =
                PaddedMatrix::new(rows, 2 * cols, elem, |row, col| random.get(row, col) as f32 * 3.0 + 1e-3);
            let dy = PaddedMatrix::random(rows, cols, elem, 2);
            let blank = PaddedMatrix::blank(rows, 2 * cols, elem);
            let mut bits = Bits::default();
            let (gate, up) = (x.mat(0), gated.then(|| x.right_of(cols)));
            let up_at = |row: usize, col: usize| if gated { x.get(row, cols + col) } else { 1.0 };
            places(|place| {
                let mut out = PaddedMatrix::blank(rows, cols, elem);
                let op = Activate { kind, rows, cols, gate, up, out: out.mat_mut(0) };
                // SAFETY: the operands are `PaddedMatrix`s of these extents; likewise below.
                unsafe { activate(place, &op) };
                let before = PaddedMatrix::blank(rows, cols, elem);
                out.check("activate", &before, 1e-6, |row, col| {
                    function(kind, x.get(row, col)) * up_at(row, col)
                });
                let mut dx = blank.clone();
                let op = ActivateBackward {
                    kind,
                    rows,
                    cols,
                    gate,
                    up,
                    dy: dy.mat(0),
                    dgate: dx.mat_mut(0),
                    dup: gated.then(|| dx.right_of_mut(cols)),
                };
                // SAFETY: the halves of dx are disjoint.
                unsafe { activate_backward(place, &op) };
                bits.check("activate", place.isa, &[&out.bytes[..], &dx.bytes[..]].concat());
                dx.check("activate dx", &blank, 2e-6, |row, col| match (col < cols, gated) {
                    (true, _) => dy.get(row, col) * up_at(row, col) * slope(kind, x.get(row, col)),
                    (false, true) => dy.get(row, col - cols) * function(kind, x.get(row, col - cols)),
                    (false, false) => -77.0,
                });
            });
        }
    }
}

struct Entropy {
    logits: PaddedMatrix,
    labels: Vec<i32>,
    weights: Vec<f32>,
    scale: f32,
    softcap: f32,
    z_loss: f32,
}

impl Entropy {
    /// Loss, log-probability, entropy and whether the label is the first of the largest; and the gradient of a row; all
    /// in f64.
    fn reference(&self, row: usize) -> ([f64; 4], Vec<f64>) {
        let vocab = self.logits.cols;
        if self.labels[row] < 0 {
            return ([0.0; 4], vec![0.0; vocab]);
        }
        let label = self.labels[row] as usize;
        let (scale, cap, z) = (self.scale as f64, self.softcap as f64, self.z_loss as f64);
        let tanh = |x: f64| if cap == 0.0 { 0.0 } else { (scale * x / cap).tanh() };
        let f: Vec<f64> = (0..vocab)
            .map(|i| self.logits.get(row, i))
            .map(|x| if cap == 0.0 { scale * x } else { cap * tanh(x) })
            .collect();
        let lse = f.iter().map(|f| f.exp()).sum::<f64>().ln();
        let gradient = (0..vocab).map(|i| {
            let p = (f[i] - lse).exp();
            let by_f = p * (1.0 + 2.0 * z * lse) - if i == label { 1.0 } else { 0.0 };
            let t = tanh(self.logits.get(row, i));
            self.weights[row] as f64 * by_f * scale * (1.0 - t * t)
        });
        let entropy = f.iter().map(|f| (f - lse).exp() * (lse - f)).sum();
        let largest =
            f.iter().all(|other| *other <= f[label]) && f[..label].iter().all(|other| *other < f[label]);
        let values = [lse - f[label] + z * lse * lse, f[label] - lse, entropy, f64::from(u8::from(largest))];
        (values, gradient.collect())
    }

    /// Loss, log-probability and, if `measured`, the measures as rows, and the gradient; with `None` it replaces the
    /// logits.
    fn run(
        &self,
        place: Place<'_>,
        (cuts, measured): (&[usize], bool),
        gradient: Option<Elem>,
    ) -> (PaddedMatrix, PaddedMatrix) {
        let rows = self.labels.len();
        let mut values = PaddedMatrix::blank(4, rows, Elem::F32);
        let mut logits = self.logits.clone();
        let mut dlogits = PaddedMatrix::blank(rows, logits.cols, gradient.unwrap_or(logits.elem));
        for cut in cuts.windows(2) {
            let at = |from: MatMut| MatMut { ptr: from.ptr.wrapping_add(4 * cut[0]), ..from };
            let to = if gradient.is_some() { dlogits.mat_mut(cut[0]) } else { logits.mat_mut(cut[0]) };
            let op = CrossEntropy {
                vocab: logits.cols,
                logits: if gradient.is_some() { logits.mat(cut[0]) } else { to.as_mat() },
                labels: &self.labels[cut[0]..cut[1]],
                weights: Some(&self.weights[cut[0]..cut[1]]),
                loss: at(values.mat_mut(0)),
                logp: Some(at(values.mat_mut(1))),
                dlogits: Some(to),
                scale: self.scale,
                softcap: self.softcap,
                z_loss: self.z_loss,
                spread: None,
                measures: measured.then(|| {
                    let all = values.mat_mut(0);
                    at(MatMut { ptr: all.ptr.wrapping_add(4 * 2 * all.stride), ..all })
                }),
            };
            // SAFETY: the operands are `PaddedMatrix`s of these extents.
            unsafe { cross_entropy(place, &op) };
        }
        (values, if gradient.is_some() { dlogits } else { logits })
    }
}

#[test]
fn cross_entropy_agrees_with_f64() {
    let (rows, vocab) = (11, 333);
    let weights: Vec<f32> = (0..rows).map(|i| 0.25 + i as f32 / 7.0).collect();
    for elem in ELEMS {
        for (scale, softcap, z_loss) in
            [(1.0, 0.0, 0.0), (3.0, 0.0, 1e-2), (0.5, 1.5, 1e-3), (20.0, 30.0, 0.0)]
        {
            // In bf16 or under a cap several logits may be the largest; the first of them counts.
            let logits = PaddedMatrix::random(rows, vocab, elem, 5);
            let largest = |row: usize| {
                let most = (0..vocab).map(|col| logits.get(row, col)).fold(f64::NEG_INFINITY, f64::max);
                (0..vocab).position(|col| logits.get(row, col) == most).unwrap() as i32
            };
            let label = |row: usize| match row % 4 {
                3 => -100,
                2 => largest(row),
                _ => (row * 29 % vocab) as i32,
            };
            let labels: Vec<i32> = (0..rows).map(label).collect();
            let case = Entropy { logits, labels, weights: weights.clone(), scale, softcap, z_loss };
            let want: Vec<([f64; 4], Vec<f64>)> = (0..rows).map(|row| case.reference(row)).collect();
            for gradient in [Some(Elem::F32), Some(Elem::Bf16), None] {
                let mut bits = Bits::default();
                places(|place| {
                    let (values, dlogits) = case.run(place, (&[0, rows], true), gradient);
                    let cut = case.run(place, (&[0, 1, 5, rows], true), gradient);
                    assert!(cut.0 == values && cut.1 == dlogits);
                    let (plain, alone) = case.run(place, (&[0, rows], false), gradient);
                    let of_loss = |values: &PaddedMatrix| -> Vec<f64> {
                        (0..2)
                            .flat_map(|row| (0..rows).map(move |i| (row, i)))
                            .map(|(row, i)| values.get(row, i))
                            .collect()
                    };
                    assert!(
                        of_loss(&plain) == of_loss(&values) && alone == dlogits,
                        "measuring changes nothing"
                    );
                    let both = [&values.bytes[..], &dlogits.bytes[..]].concat();
                    bits.check("cross entropy", place.isa, &both);
                    let value = |row: usize, i: usize| want[i].0[row];
                    values.check("cross entropy", &PaddedMatrix::blank(4, rows, Elem::F32), 1e-6, value);
                    let blank = PaddedMatrix::blank(rows, vocab, dlogits.elem);
                    let before = if gradient.is_some() { &blank } else { &case.logits };
                    dlogits.check("dlogits", before, 1e-6 * scale as f64, |row, i| want[row].1[i]);
                });
            }
        }
    }
}

/// A vocabulary in parts has the same measures as the whole; among equal logits the first is the largest.
#[test]
fn measures_of_parts_are_those_of_the_whole() {
    let (vocab, labels) = (96, vec![0i32, 40, 50, 95, -1, 64, 63]);
    let rows = labels.len();
    let logits = PaddedMatrix::new(rows, vocab, Elem::F32, |row, col| match row {
        0 | 1 => 0.0,
        2 => {
            if col == 50 || col == 90 {
                3.0
            } else {
                (col % 7) as f32 / 4.0
            }
        }
        3 => {
            if col == 95 || col == 10 {
                -1.0
            } else {
                -2.0
            }
        }
        5 => {
            if col == 63 || col == 64 {
                0.0
            } else {
                -4.0
            }
        }
        _ => (col * 13 % 31) as f32 / 3.0 + if col == 63 { 20.0 } else { 0.0 },
    });
    let hits = [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
    places(|place| {
        let mut whole = PaddedMatrix::blank(3, rows, Elem::F32);
        let mut parts = PaddedMatrix::blank(3, rows, Elem::F32);
        let mut stats = PaddedMatrix::blank(8, rows, Elem::F32);
        let below =
            |all: MatMut, row: usize| MatMut { ptr: all.ptr.wrapping_add(4 * row * all.stride), ..all };
        let run = |(first, width): (usize, usize), to: MatMut, spread: Option<VocabShard>| {
            let logits = logits.mat(0);
            let op = CrossEntropy {
                vocab: width,
                logits: Mat { ptr: logits.ptr.wrapping_add(4 * first), ..logits },
                labels: &labels,
                weights: None,
                loss: to,
                logp: None,
                dlogits: None,
                scale: 1.0,
                softcap: 0.0,
                z_loss: 0.0,
                spread,
                measures: Some(below(to, 1)),
            };
            // SAFETY: the operands are `PaddedMatrix`s of these extents.
            unsafe { cross_entropy(place, &op) };
        };
        run((0, vocab), whole.mat_mut(0), None);
        for (rank, (first, width)) in [(0, 64), (64, 32)].into_iter().enumerate() {
            let spread = VocabShard { first, stats: Some(below(stats.mat_mut(0), 4 * rank)), all: None };
            run((first, width), parts.mat_mut(0), Some(spread));
        }
        let all = Some((stats.mat(0), 2));
        run((64, 32), parts.mat_mut(0), Some(VocabShard { first: 64, stats: None, all }));
        for (row, hit) in hits.into_iter().enumerate() {
            assert_eq!((whole.get(2, row), parts.get(2, row)), (hit, hit), "row {row}");
            assert!((whole.get(1, row) - parts.get(1, row)).abs() < 2e-6, "row {row}");
        }
        assert!((whole.get(1, 0) - f64::ln(96.0)).abs() < 1e-6);
    });
}

/// Distances of rows and their gradients, in place of the target and in a separate tensor.
#[test]
fn distances_agree_with_f64() {
    let (rows, cols) = (5, 77);
    let (labels, weights) = ([3, -1, 0, 9, 1], [0.5, 1.0, 2.0, 0.0, 1.5]);
    for elem in ELEMS {
        let (x, target) =
            (PaddedMatrix::random(rows, cols, elem, 1), PaddedMatrix::random(rows, cols, elem, 2));
        for distance in [Distance::Mse, Distance::Cosine] {
            for in_place in [false, true] {
                let mut bits = Bits::default();
                places(|place| {
                    let mut loss = PaddedMatrix::blank(1, rows, Elem::F32);
                    let mut dx =
                        if in_place { target.clone() } else { PaddedMatrix::blank(rows, cols, elem) };
                    let to = dx.mat_mut(0);
                    let op = RowDistance {
                        distance,
                        cols,
                        x: x.mat(0),
                        target: if in_place { to.as_mat() } else { target.mat(0) },
                        labels: &labels,
                        weights: &weights,
                        factor: 0.7,
                        loss: loss.mat_mut(0),
                        dx: to,
                    };
                    // SAFETY: the operands are `PaddedMatrix`s of these extents.
                    unsafe { row_distance(place, &op) };
                    bits.check("distance", place.isa, &[&loss.bytes[..], &dx.bytes[..]].concat());
                    let sum = |row: usize, of: &dyn Fn(f64, f64) -> f64| -> f64 {
                        (0..cols).map(|col| of(x.get(row, col), target.get(row, col))).sum()
                    };
                    let n = cols as f64;
                    let lengths = |row| [sum(row, &|x, _| x * x).sqrt(), sum(row, &|_, t| t * t).sqrt()];
                    let cosine = |row: usize| sum(row, &|x, t| x * t) / lengths(row).iter().product::<f64>();
                    let want = |row: usize| match distance {
                        _ if labels[row] < 0 => 0.0,
                        Distance::Mse => sum(row, &|x, t| (x - t) * (x - t)) / n,
                        Distance::Cosine => 1.0 - cosine(row),
                    };
                    let slope = |row: usize, col: usize| {
                        let (x, t, by) =
                            (x.get(row, col), target.get(row, col), 0.7 * f64::from(weights[row]));
                        let [of_x, of_t] = lengths(row);
                        match distance {
                            _ if labels[row] < 0 => 0.0,
                            Distance::Mse => by * 2.0 * (x - t) / n,
                            Distance::Cosine => by * (cosine(row) * x / of_x - t / of_t) / of_x,
                        }
                    };
                    loss.check("distance", &PaddedMatrix::blank(1, rows, Elem::F32), 1e-6, |_, row| {
                        want(row)
                    });
                    let before =
                        if in_place { target.clone() } else { PaddedMatrix::blank(rows, cols, elem) };
                    dx.check("its gradient", &before, 1e-6, slope);
                });
            }
        }
    }
}

#[test]
#[should_panic(expected = "label 9 at 1 is not below 8")]
fn a_label_beyond_the_vocabulary_is_named() {
    let case = Entropy {
        logits: PaddedMatrix::random(2, 8, Elem::F32, 1),
        labels: vec![7, 9],
        weights: vec![1.0; 2],
        scale: 1.0,
        softcap: 0.0,
        z_loss: 0.0,
    };
    case.run(Place { threads: &Threads::new(1), isa: Isa::Portable }, (&[0, 2], false), None);
}
