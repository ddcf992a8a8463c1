//! Numbers with their derivatives, so that losses are written like in their papers and gradients follow.

use std::ops::{Add, Mul, Neg, Sub};

/// A function of two numbers: its value, and its derivatives by both, in f64. For a pair, they are the
/// log-probabilities of the chosen and the rejected answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slope {
    /// The value.
    pub value: f64,
    /// The derivatives.
    pub by: [f64; 2],
}

/// `1 / (1 + e^-x)`.
pub fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 { 1.0 / (1.0 + (-x).exp()) } else { x.exp() / (1.0 + x.exp()) }
}

impl Slope {
    /// The first of the two numbers.
    pub fn first(value: f64) -> Slope {
        Slope { value, by: [1.0, 0.0] }
    }

    /// The second of the two numbers.
    pub fn second(value: f64) -> Slope {
        Slope { value, by: [0.0, 1.0] }
    }

    /// A constant.
    pub fn constant(value: f64) -> Slope {
        Slope { value, by: [0.0; 2] }
    }

    fn chain(self, value: f64, slope: f64) -> Slope {
        Slope { value, by: self.by.map(|by| by * slope) }
    }

    /// `e^x`.
    pub fn exp(self) -> Slope {
        self.chain(self.value.exp(), self.value.exp())
    }

    /// `1 / (1 + e^-x)`.
    pub fn sigmoid(self) -> Slope {
        let s = sigmoid(self.value);
        self.chain(s, s * (1.0 - s))
    }

    /// The logarithm of [`Slope::sigmoid`].
    pub fn log_sigmoid(self) -> Slope {
        let x = self.value;
        let value = if x >= 0.0 { -(-x).exp().ln_1p() } else { x - x.exp().ln_1p() };
        self.chain(value, sigmoid(-x))
    }

    /// `x^2`.
    pub fn square(self) -> Slope {
        self.chain(self.value * self.value, 2.0 * self.value)
    }

    /// `max(0, x)`.
    pub fn relu(self) -> Slope {
        self.chain(self.value.max(0.0), f64::from(u8::from(self.value > 0.0)))
    }

    /// `min(x, most)`.
    pub fn at_most(self, most: f64) -> Slope {
        if self.value > most { Slope::constant(most) } else { self }
    }

    /// `log(1 - e^x)` for negative x.
    pub fn log_one_minus_exp(self) -> Slope {
        let x = self.value;
        let value = if x > -std::f64::consts::LN_2 { (-x.exp_m1()).ln() } else { (-x.exp()).ln_1p() };
        self.chain(value, -1.0 / (-x).exp_m1())
    }
}

impl Add for Slope {
    type Output = Slope;
    fn add(self, other: Slope) -> Slope {
        Slope { value: self.value + other.value, by: [0, 1].map(|at| self.by[at] + other.by[at]) }
    }
}

impl Add<f64> for Slope {
    type Output = Slope;
    fn add(self, other: f64) -> Slope {
        Slope { value: self.value + other, ..self }
    }
}

impl Sub for Slope {
    type Output = Slope;
    fn sub(self, other: Slope) -> Slope {
        self + -other
    }
}

impl Sub<f64> for Slope {
    type Output = Slope;
    fn sub(self, other: f64) -> Slope {
        self + -other
    }
}

impl Neg for Slope {
    type Output = Slope;
    fn neg(self) -> Slope {
        self * -1.0
    }
}

impl Mul for Slope {
    type Output = Slope;
    #[allow(clippy::suspicious_arithmetic_impl)] // The product rule.
    fn mul(self, other: Slope) -> Slope {
        let by = [0, 1].map(|at| self.by[at] * other.value + self.value * other.by[at]);
        Slope { value: self.value * other.value, by }
    }
}

impl Mul<f64> for Slope {
    type Output = Slope;
    fn mul(self, other: f64) -> Slope {
        self.chain(self.value * other, other)
    }
}
