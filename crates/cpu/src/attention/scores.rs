//! Conversion of raw scores.

/// Conversion of scores to logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Factor of `q . k`, positive.
    pub scale: f32,
    /// 0 for none; otherwise the logit is `softcap * tanh(scale q.k / softcap)`.
    pub softcap: f32,
}

/// `Options` in the units of the kernels.
#[derive(Clone, Copy)]
pub(crate) struct Scores {
    /// Raw score to log2 units.
    pub scale: f32,
    /// Raw score to the argument of tanh; 0 without a cap.
    pub cap_in: f32,
    /// tanh to log2 units.
    pub cap_out: f32,
}

impl Scores {
    pub fn of(o: &Options) -> Scores {
        let log2e = std::f32::consts::LOG2_E;
        if o.softcap > 0.0 {
            Scores { scale: o.scale * log2e, cap_in: o.scale / o.softcap, cap_out: o.softcap * log2e }
        } else {
            Scores { scale: o.scale * log2e, cap_in: 0.0, cap_out: 0.0 }
        }
    }
}
