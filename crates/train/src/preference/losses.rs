//! Losses of a pair of answers, as in TRL 1.16 and NeMo-Aligner.

use super::slope::{Slope, sigmoid};
use super::{Divergence, PairLoss, Settings};

/// Inputs of a pair's loss, the chosen answer first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Log-probability of the chosen answer.
    pub chosen: Slope,
    /// Log-probability of the rejected answer.
    pub rejected: Slope,
    /// Log-probabilities of both under the reference model; 0 without one.
    pub reference: [f64; 2],
    /// Tokens of the answers.
    pub lengths: [f64; 2],
    /// Given rewards of the answers.
    pub rewards: [f64; 2],
}

/// Limit of the exponents of the alpha divergence, as in TRL.
const MOST_EXPONENT: f64 = 80.0;

impl Pair {
    /// Log-ratios of the answers under the model and under the reference model.
    pub fn ratios(&self) -> [Slope; 2] {
        [self.chosen - self.reference[0], self.rejected - self.reference[1]]
    }

    /// The ratios transformed by the divergence from the reference: `f'` (Wang and others, 2023).
    fn scores(&self, settings: &Settings) -> [Slope; 2] {
        let alpha = settings.f_alpha - 1.0;
        self.ratios().map(|ratio| match settings.divergence {
            Divergence::ReverseKl => ratio,
            Divergence::ForwardKl => -(-ratio).exp() + 1.0,
            Divergence::JensenShannon => ratio.log_sigmoid() + std::f64::consts::LN_2,
            Divergence::Alpha if alpha.abs() < 1e-6 => ratio,
            Divergence::Alpha => ((ratio * alpha).at_most(MOST_EXPONENT).exp() - 1.0) * (1.0 / alpha),
        })
    }

    /// The loss; 0 for losses that compare a whole micro-batch ([`PairLoss::sorts`]) and for plain cross-entropy, which
    /// have none per pair.
    pub fn loss(&self, loss: PairLoss, settings: &Settings) -> Slope {
        let (beta, smoothing) = (settings.beta, settings.label_smoothing);
        let [lw, ll] = self.ratios();
        let [sw, sl] = self.scores(settings);
        let [nw, nl] = self.lengths.map(|length| 1.0 / length.max(1.0));
        let delta = (sw - sl) * beta;
        match loss {
            PairLoss::Sigmoid => smoothed(delta, smoothing),
            PairLoss::SigmoidNorm => -((sw * nw - sl * nl) * beta).log_sigmoid(),
            PairLoss::Hinge => (-delta + 1.0).relu(),
            PairLoss::Ipo => (sw * nw - sl * nl - 0.5 / beta).square(),
            PairLoss::IpoSum => (sw - sl - 0.5 / beta).square(),
            PairLoss::ExoPair => {
                let part = |x: Slope, share: f64| x.sigmoid() * (x.log_sigmoid() - share.ln());
                part(delta, 1.0 - smoothing) + part(-delta, smoothing)
            }
            PairLoss::NcaPair => {
                let [w, l] = [lw * beta, ll * beta];
                -w.log_sigmoid() - (-w).log_sigmoid() * 0.5 - (-l).log_sigmoid() * 0.5
            }
            PairLoss::Robust => {
                let clean = delta.log_sigmoid() * (smoothing - 1.0) + (-delta).log_sigmoid() * smoothing;
                clean * (1.0 / (1.0 - 2.0 * smoothing))
            }
            PairLoss::BcoPair => -(lw * beta).log_sigmoid() - (ll * -beta).log_sigmoid(),
            PairLoss::SppoHard => (lw - 0.5 / beta).square() + (ll + 0.5 / beta).square(),
            PairLoss::ApoZero => -(lw * beta).sigmoid() + (ll * beta).sigmoid() + 1.0,
            PairLoss::ApoDown => (lw * beta).sigmoid() - ((lw - ll) * beta).sigmoid() + 1.0,
            PairLoss::Discopop => {
                let share = (delta * (1.0 / settings.discopop_tau)).sigmoid();
                -delta.log_sigmoid() * (-share + 1.0) + (-delta).exp() * share
            }
            PairLoss::Simpo => smoothed(delta - settings.gamma, smoothing),
            PairLoss::OddsRatio => -self.odds().log_sigmoid() * beta,
            PairLoss::BackwardKl | PairLoss::ForwardKl | PairLoss::Squared => self.rewarded(loss, settings),
            PairLoss::Aot | PairLoss::AotUnpaired | PairLoss::Sft => Slope::constant(0.0),
        }
    }

    /// Log of the odds ratio of the chosen and the rejected answer (Hong and others, 2024, equation 4), from mean
    /// log-probabilities.
    pub fn odds(&self) -> Slope {
        let (w, l) = (self.chosen, self.rejected);
        w - l - (w.log_one_minus_exp() - l.log_one_minus_exp())
    }

    /// Reward-aware preference optimisation (Nemotron-4 340B report, section 3.3.2): the distance between the implied
    /// margin and that of the given rewards.
    fn rewarded(&self, loss: PairLoss, settings: &Settings) -> Slope {
        let [lw, ll] = self.ratios();
        let implied = (lw - ll) * settings.beta;
        let given = settings.reward_scale * (self.rewards[0] - self.rewards[1]);
        let known = Slope::constant(given);
        let part = |p: Slope, q: Slope| p.sigmoid() * (p.log_sigmoid() - q.log_sigmoid());
        match loss {
            PairLoss::BackwardKl => part(known, implied) + part(-known, -implied),
            PairLoss::ForwardKl => part(implied, known) + part(-implied, -known),
            _ => (implied - given).square(),
        }
    }
}

/// `-log sigmoid(x)` with a share of wrong labels.
fn smoothed(x: Slope, smoothing: f64) -> Slope {
    x.log_sigmoid() * (smoothing - 1.0) - (-x).log_sigmoid() * smoothing
}

/// Alignment by optimal transport (Melnyk and others, 2024): the sorted log-ratios of a micro-batch against the sorted
/// ones that they should exceed. Returns the loss of each pair with its derivatives.
pub fn transported(pairs: &[Pair], loss: PairLoss, settings: &Settings) -> Vec<Slope> {
    let paired = loss == PairLoss::Aot;
    let ahead: Vec<f64> = pairs
        .iter()
        .map(|it| if paired { it.chosen.value - it.rejected.value } else { it.ratios()[0].value })
        .collect();
    let behind: Vec<f64> = pairs
        .iter()
        .map(|it| if paired { it.reference[0] - it.reference[1] } else { it.ratios()[1].value })
        .collect();
    let sorted = |values: &[f64]| {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|one, other| values[*one].total_cmp(&values[*other]));
        order
    };
    let mut losses = vec![Slope::default(); pairs.len()];
    for (one, other) in sorted(&ahead).into_iter().zip(sorted(&behind)) {
        let (beta, smoothing) = (settings.beta, settings.label_smoothing);
        let x = beta * (ahead[one] - behind[other]);
        let value = smoothed(Slope::constant(x), smoothing).value;
        let slope = beta * (smoothing * sigmoid(x) - (1.0 - smoothing) * sigmoid(-x));
        losses[one].value += value;
        losses[one].by[0] += slope;
        losses[if paired { one } else { other }].by[1] -= slope;
    }
    losses
}
