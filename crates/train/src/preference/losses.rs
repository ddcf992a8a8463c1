//! The losses of a pair of answers, as TRL 1.16 and NeMo-Aligner have them.

use super::slope::{Slope, sigmoid};
use super::{Divergence, PairLoss, Settings};

/// What a loss of a pair depends on, the chosen answer first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Log-probability of the chosen answer.
    pub chosen: Slope,
    /// Of the rejected one.
    pub rejected: Slope,
    /// Both under the reference model; 0 without one.
    pub reference: [f64; 2],
    /// Tokens of the answers.
    pub lengths: [f64; 2],
    /// What the answers are worth to others.
    pub rewards: [f64; 2],
}

/// Where exponents of the alpha divergence end, as in TRL.
const MOST_EXPONENT: f64 = 80.0;

impl Pair {
    /// How much likelier the answers are than under the reference model, in logarithms.
    pub fn ratios(&self) -> [Slope; 2] {
        [self.chosen - self.reference[0], self.rejected - self.reference[1]]
    }

    /// What a divergence from the reference makes of the ratios (Wang and others, 2023): `f'` of them.
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

    /// The loss. Those that compare a whole micro batch ([`PairLoss::sorts`]) and the plain cross-entropy have none of a pair: 0.
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

    /// By how much the odds of the chosen answer are higher, in logarithms (Hong and others, 2024, equation 4), of mean
    /// log-probabilities.
    pub fn odds(&self) -> Slope {
        let (w, l) = (self.chosen, self.rejected);
        w - l - (w.log_one_minus_exp() - l.log_one_minus_exp())
    }

    /// Reward-aware preference optimisation (Nemotron-4 340B report, section 3.3.2): the distance of the implied margin from that of the
    /// rewards.
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

/// `-log sigmoid(x)` where a share of the labels is wrong.
fn smoothed(x: Slope, smoothing: f64) -> Slope {
    x.log_sigmoid() * (smoothing - 1.0) - (-x).log_sigmoid() * smoothing
}

/// Alignment by optimal transport (Melnyk and others, 2024): the log-ratios of a micro batch, sorted, against those that they shall
/// exceed, sorted too. The losses of all pairs together, with the derivatives of each pair's.
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
