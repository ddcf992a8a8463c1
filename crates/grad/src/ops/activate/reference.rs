//! SiLU (Elfwing et al., 2017), GELU exact and by tanh (Hendrycks and Gimpel, 2016, section 2), ReLU, and ReLU squared
//! (So et al., 2021, section 3); gated as in GLU variants (Shazeer, 2020, eq. 6): `act(gate) up`.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use fathom_tensor::Activation;

use crate::testing::Matrix;

/// `erf z = 2/sqrt(pi) exp(-z^2) sum_n 2^n z^(2n+1) / (2n+1)!!` (Abramowitz and Stegun, 7.1.6): all terms have one sign.
fn erf(z: f64) -> f64 {
    if z.abs() > 6.0 {
        return z.signum();
    }
    let (mut term, mut sum) = (z, z);
    for n in 1..200 {
        term *= 2.0 * z * z / f64::from(2 * n + 1);
        sum += term;
    }
    2.0 / PI.sqrt() * (-z * z).exp() * sum
}

fn act(kind: Activation, x: f64) -> f64 {
    match kind {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh()),
        Activation::GeluErf => 0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2)),
        Activation::Relu => x.max(0.0),
        Activation::Relu2 => x.max(0.0).powi(2),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::ClampedSwiglu => panic!("gated alone, and by pairs"),
    }
}

/// `act(x)`: any shape.
pub(crate) fn activate(kind: Activation, x: &Matrix) -> Matrix {
    Matrix::new(x.rows, x.cols, |t, col| act(kind, x[(t, col)]))
}

/// `act(gate) up` of x = [gate | up]: [t, 2f] to [t, f].
pub(crate) fn gate(kind: Activation, x: &Matrix) -> Matrix {
    let f = x.cols / 2;
    Matrix::new(x.rows, f, |t, col| act(kind, x[(t, col)]) * x[(t, f + col)])
}

#[test]
fn erf_at_known_points() {
    for (z, expected) in [(0.0, 0.0), (0.5, 0.520_499_877_813_046_5), (-2.0, -0.995_322_265_018_952_7)] {
        assert!((erf(z) - expected).abs() < 1e-15, "erf {z}");
    }
}
