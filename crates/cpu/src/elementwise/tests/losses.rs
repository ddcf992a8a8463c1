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
    for kind in [Silu, GeluTanh, GeluErf, Relu, Relu2, Tanh] {
        for (elem, gated) in [(Elem::F32, false), (Elem::F32, true), (Elem::Bf16, false), (Elem::Bf16, true)]
        {
            // Wider than the functions' bends, and never at the corner of relu.
            let random = Stored::random(rows, 2 * cols, elem, 1);
            let x = Stored::new(rows, 2 * cols, elem, |row, col| random.get(row, col) as f32 * 3.0 + 1e-3);
            let dy = Stored::random(rows, cols, elem, 2);
            let blank = Stored::blank(rows, 2 * cols, elem);
            let mut bits = Bits::default();
            let (gate, up) = (x.mat(0), gated.then(|| x.right_of(cols)));
            let up_at = |row: usize, col: usize| if gated { x.get(row, cols + col) } else { 1.0 };
            places(|place| {
                let mut out = Stored::blank(rows, cols, elem);
                let op = Activate { kind, rows, cols, gate, up, out: out.mat_mut(0) };
                // SAFETY: the operands are `Stored`s of these extents; so below.
                unsafe { activate(place, &op) };
                let before = Stored::blank(rows, cols, elem);
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
                // SAFETY: the halves of dx are apart.
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
    logits: Stored,
    labels: Vec<i32>,
    weights: Vec<f32>,
    scale: f32,
    softcap: f32,
    z_loss: f32,
}

impl Entropy {
    /// Loss, log-probability and gradient of a row, in f64.
    fn reference(&self, row: usize) -> (f64, f64, Vec<f64>) {
        let vocab = self.logits.cols;
        if self.labels[row] < 0 {
            return (0.0, 0.0, vec![0.0; vocab]);
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
        (lse - f[label] + z * lse * lse, f[label] - lse, gradient.collect())
    }

    /// Loss and log-probability as rows, and the gradient; `None`: in place of the logits.
    fn run(&self, place: Place<'_>, cuts: &[usize], gradient: Option<Elem>) -> (Stored, Stored) {
        let rows = self.labels.len();
        let mut values = Stored::blank(2, rows, Elem::F32);
        let mut logits = self.logits.clone();
        let mut dlogits = Stored::blank(rows, logits.cols, gradient.unwrap_or(logits.elem));
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
            };
            // SAFETY: the operands are `Stored`s of these extents.
            unsafe { cross_entropy(place, &op) };
        }
        (values, if gradient.is_some() { dlogits } else { logits })
    }
}

#[test]
fn cross_entropy_agrees_with_f64() {
    let (rows, vocab) = (11, 333);
    let labels: Vec<i32> =
        (0..rows as i32).map(|i| if i % 4 == 3 { -100 } else { i * 29 % vocab as i32 }).collect();
    let weights: Vec<f32> = (0..rows).map(|i| 0.25 + i as f32 / 7.0).collect();
    for elem in ELEMS {
        for (scale, softcap, z_loss) in
            [(1.0, 0.0, 0.0), (3.0, 0.0, 1e-2), (0.5, 1.5, 1e-3), (20.0, 30.0, 0.0)]
        {
            let logits = Stored::random(rows, vocab, elem, 5);
            let case =
                Entropy { logits, labels: labels.clone(), weights: weights.clone(), scale, softcap, z_loss };
            let want: Vec<(f64, f64, Vec<f64>)> = (0..rows).map(|row| case.reference(row)).collect();
            for gradient in [Some(Elem::F32), Some(Elem::Bf16), None] {
                let mut bits = Bits::default();
                places(|place| {
                    let (values, dlogits) = case.run(place, &[0, rows], gradient);
                    let cut = case.run(place, &[0, 1, 5, rows], gradient);
                    assert!(cut.0 == values && cut.1 == dlogits);
                    let both = [&values.bytes[..], &dlogits.bytes[..]].concat();
                    bits.check("cross entropy", place.isa, &both);
                    let value = |row: usize, i: usize| if row == 0 { want[i].0 } else { want[i].1 };
                    values.check("cross entropy", &Stored::blank(2, rows, Elem::F32), 1e-6, value);
                    let blank = Stored::blank(rows, vocab, dlogits.elem);
                    let before = if gradient.is_some() { &blank } else { &case.logits };
                    dlogits.check("dlogits", before, 1e-6 * scale as f64, |row, i| want[row].2[i]);
                });
            }
        }
    }
}

#[test]
#[should_panic(expected = "label 9 at 1 is not below 8")]
fn a_label_beyond_the_vocabulary_is_named() {
    let case = Entropy {
        logits: Stored::random(2, 8, Elem::F32, 1),
        labels: vec![7, 9],
        weights: vec![1.0; 2],
        scale: 1.0,
        softcap: 0.0,
        z_loss: 0.0,
    };
    case.run(Place { threads: &Threads::new(1), isa: Isa::Portable }, &[0, 2], None);
}
