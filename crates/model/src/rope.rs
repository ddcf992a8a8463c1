//! Rotary frequencies, with the scalings that extend a model's context, named as in Hugging Face's `rope_type`.

use serde::{Deserialize, Serialize};

/// One rotary setting.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Base of the frequencies.
    pub theta: f64,
    /// Rotated columns of each head.
    pub rot_dim: usize,
    /// Whether pairs are neighbours instead of halves.
    pub interleaved: bool,
    /// Context extension.
    pub scaling: RopeScaling,
    /// Length that `dynamic` and `longrope`'s factor are relative to, and the default original length: the file's
    /// `max_position_embeddings`.
    pub max_positions: usize,
}

/// Context extension (training reference, section 5.1).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "lowercase", deny_unknown_fields)]
pub enum RopeScaling {
    /// None.
    #[default]
    Default,
    /// Position interpolation (Chen et al., 2023): every frequency divided by `factor`.
    Linear {
        /// New over old length.
        factor: f64,
    },
    /// NTK-aware with the current length (HF `dynamic`).
    Dynamic {
        /// Scaling factor.
        factor: f64,
    },
    /// YaRN (Peng et al., 2023): interpolates slow frequencies, keeps fast ones, scales the attention.
    Yarn {
        /// New over old length.
        factor: f64,
        /// Length before extension.
        #[serde(rename = "original_max_position_embeddings")]
        original: Option<usize>,
        /// Rotations above which a frequency is kept; 32.
        beta_fast: Option<f64>,
        /// Rotations below which a frequency is interpolated; 1.
        beta_slow: Option<f64>,
        /// Multiplies cosine and sine; `0.1 ln(factor) + 1` if absent.
        attention_factor: Option<f64>,
        /// DeepSeek's variant of the attention factor.
        mscale: Option<f64>,
        /// DeepSeek's variant of the attention factor.
        mscale_all_dim: Option<f64>,
        /// Rounds the ramp's ends to whole dimensions; true if absent.
        truncate: Option<bool>,
    },
    /// Llama 3.1.
    Llama3 {
        /// Divides slow frequencies.
        factor: f64,
        /// Wavelengths longer than `original / low` are divided.
        low_freq_factor: f64,
        /// Wavelengths shorter than `original / high` are kept.
        high_freq_factor: f64,
        /// Length before extension.
        #[serde(rename = "original_max_position_embeddings")]
        original: usize,
    },
    /// LongRoPE (Ding et al., 2024): searched factors per frequency.
    Longrope {
        /// Up to the original length.
        short_factor: Vec<f64>,
        /// Beyond it.
        long_factor: Vec<f64>,
        /// Length before extension.
        #[serde(rename = "original_max_position_embeddings")]
        original: Option<usize>,
        /// Multiplies cosine and sine; `sqrt(1 + ln(factor) / ln(original))` if absent.
        attention_factor: Option<f64>,
        /// New over old length, for the attention factor; `max_positions / original` if absent.
        factor: Option<f64>,
    },
}

impl RopeScaling {
    /// YaRN as in its paper, from `original` positions.
    pub fn yarn(factor: f64, original: Option<usize>) -> RopeScaling {
        RopeScaling::Yarn {
            factor,
            original,
            beta_fast: None,
            beta_slow: None,
            attention_factor: None,
            mscale: None,
            mscale_all_dim: None,
            truncate: None,
        }
    }

    /// Length before extension, if the setting names one.
    pub fn original_positions(&self) -> Option<usize> {
        match self {
            RopeScaling::Default | RopeScaling::Linear { .. } | RopeScaling::Dynamic { .. } => None,
            RopeScaling::Llama3 { original, .. } => Some(*original),
            RopeScaling::Yarn { original, .. } | RopeScaling::Longrope { original, .. } => *original,
        }
    }

    /// Fixes the original length where a setting defaults to the configuration's longest sequence, which is about to
    /// change.
    pub fn name_original(&mut self, positions: usize) {
        if let RopeScaling::Yarn { original, .. } | RopeScaling::Longrope { original, .. } = self {
            original.get_or_insert(positions);
        }
    }
}

/// Frequencies for sequences of some length.
#[derive(Clone, Debug, PartialEq)]
pub struct Frequencies {
    /// Radians per position, `rot_dim / 2` of them.
    pub inv_freq: Vec<f32>,
    /// Multiplies cosine and sine.
    pub factor: f32,
}

impl RopeSpec {
    /// Returns whether the frequencies depend on the length of the current sequence.
    pub fn looks_at_length(&self) -> bool {
        matches!(self.scaling, RopeScaling::Dynamic { .. } | RopeScaling::Longrope { .. })
    }

    /// Frequencies for a longest sequence of `tokens` tokens, which only `dynamic` and `longrope` use.
    pub fn frequencies(&self, tokens: usize) -> Frequencies {
        let plain = inverse(self.theta, self.rot_dim);
        let (scaled, factor) = match &self.scaling {
            RopeScaling::Default => (plain, 1.0),
            RopeScaling::Linear { factor } => (plain.iter().map(|f| f / factor).collect(), 1.0),
            RopeScaling::Dynamic { factor } => (self.dynamic(*factor, tokens), 1.0),
            RopeScaling::Yarn { .. } => self.yarn(&plain),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original } => {
                let bands = [*factor, *low_freq_factor, *high_freq_factor, *original as f64];
                (plain.iter().map(|f| llama3(*f, bands)).collect(), 1.0)
            }
            RopeScaling::Longrope { .. } => self.longrope(&plain, tokens),
        };
        Frequencies { inv_freq: scaled.into_iter().map(|f| f as f32).collect(), factor: factor as f32 }
    }

    /// Raises the base for lengths beyond the trained one: `base (factor s - (factor - 1))^(d / (d - 2))`.
    fn dynamic(&self, factor: f64, tokens: usize) -> Vec<f64> {
        let stretch = tokens.max(self.max_positions) as f64 / self.max_positions as f64;
        let dim = self.rot_dim as f64;
        let base = self.theta * (factor * stretch - (factor - 1.0)).powf(dim / (dim - 2.0));
        inverse(base, self.rot_dim)
    }

    fn yarn(&self, plain: &[f64]) -> (Vec<f64>, f64) {
        let RopeScaling::Yarn {
            factor,
            original,
            beta_fast,
            beta_slow,
            attention_factor,
            mscale,
            mscale_all_dim,
            truncate,
        } = &self.scaling
        else {
            return (plain.to_vec(), 1.0);
        };
        let original = original.unwrap_or(self.max_positions) as f64;
        let dim = self.rot_dim as f64;
        let correction = |rotations: f64| {
            dim * (original / (rotations * 2.0 * std::f64::consts::PI)).ln() / (2.0 * self.theta.ln())
        };
        // Zero means unset, as in Transformers.
        let given = |value: &Option<f64>| value.filter(|value| *value != 0.0);
        let (mut low, mut high) =
            (correction(given(beta_fast).unwrap_or(32.0)), correction(given(beta_slow).unwrap_or(1.0)));
        if truncate.unwrap_or(true) {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0), high.min(dim - 1.0));
        if low == high {
            high += 0.001;
        }
        let blend = |(index, f): (usize, &f64)| {
            let interpolated = ((index as f64 - low) / (high - low)).clamp(0.0, 1.0);
            f / factor * interpolated + f * (1.0 - interpolated)
        };
        let temperature = |scale: f64| if *factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
        let scale = attention_factor.unwrap_or_else(|| match (given(mscale), given(mscale_all_dim)) {
            (Some(mscale), Some(all)) => temperature(mscale) / temperature(all),
            _ => temperature(1.0),
        });
        (plain.iter().enumerate().map(blend).collect(), scale)
    }

    fn longrope(&self, plain: &[f64], tokens: usize) -> (Vec<f64>, f64) {
        let RopeScaling::Longrope { short_factor, long_factor, original, attention_factor, factor } =
            &self.scaling
        else {
            return (plain.to_vec(), 1.0);
        };
        let original = original.unwrap_or(self.max_positions) as f64;
        let stretch = factor.unwrap_or(self.max_positions as f64 / original);
        let by = if tokens as f64 > original { long_factor } else { short_factor };
        let scale = attention_factor.unwrap_or_else(|| {
            if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / original.ln()).sqrt() }
        });
        (plain.iter().zip(by).map(|(f, by)| f / by).collect(), scale)
    }
}

/// `base^(-2i / dim)`.
fn inverse(base: f64, dim: usize) -> Vec<f64> {
    (0..dim / 2).map(|i| base.powf(-2.0 * i as f64 / dim as f64)).collect()
}

/// Llama 3.1's bands: slow frequencies divided, fast ones kept, a ramp between.
fn llama3(frequency: f64, [factor, low, high, original]: [f64; 4]) -> f64 {
    let wavelength = 2.0 * std::f64::consts::PI / frequency;
    if wavelength < original / high {
        frequency
    } else if wavelength > original / low {
        frequency / factor
    } else {
        let smooth = (original / wavelength - low) / (high - low);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }
}
