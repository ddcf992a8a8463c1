//! Reward models: a head of scores that learns which answers are better.

use fathom_model::scored_at;

use super::slope::Slope;
use crate::micro_batch::MicroBatch;
use crate::objective::{Answers, Objective, ObjectiveSum, Weigh, WeightedLoss};

/// Loss of the scores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RewardLoss {
    /// For two answers: `-log sigmoid(r_w - r_l - margin)` (Bradley and Terry, 1952); without a margin in the row it is
    /// 0.
    #[default]
    BradleyTerry,
    /// `BradleyTerry` without the margin inside, multiplied by the margin (NeMo-Aligner's `scaled_bt`); without one
    /// it is 1.
    Scaled,
    /// Squared error of known ratings.
    Regression,
    /// Cross-entropy of steps that are right or wrong, at the last token of each (Lightman and others, 2023).
    Process,
}

/// The objective of a reward model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reward {
    /// The loss.
    pub loss: RewardLoss,
    /// Weight of the squared sum of a pair's rewards, which keeps their mean near 0.
    pub center: f64,
}

impl Reward {
    /// Positions of the stream at the ends of judged steps, and whether those steps are right. Weights are stored one
    /// position earlier.
    fn steps(micro: &MicroBatch) -> impl Iterator<Item = (usize, bool)> + '_ {
        let docs = micro.docs[..micro.facts.documents().min(micro.docs.len())].iter();
        let judged = |at: &usize| micro.weights.get(*at).is_some_and(|weight| *weight > 0.0);
        let places = docs.flat_map(|doc| doc.start..doc.end.max(doc.start + 1) - 1);
        places.filter(judged).map(|at| (at + 1, micro.weights[at] > 1.5))
    }

    /// The position of each document's scores, and its facts after the first.
    fn ends<'a>(answers: &Answers<'a>) -> impl Iterator<Item = (usize, &'a [f32])> {
        let (micro, padding) = (answers.micro, answers.padding);
        (0..micro.facts.documents()).map(move |doc| {
            let place = &micro.docs[doc];
            let ids = micro.ids[place.clone()].iter().map(|id| i64::from(*id));
            (place.start + scored_at(padding, ids), &micro.facts.of(doc)[1..])
        })
    }

    fn pairs(&self, answers: &Answers<'_>, weighed: &mut ObjectiveSum) {
        let ends: Vec<(usize, &[f32])> = Reward::ends(answers).collect();
        let width = answers.scores.len() / answers.micro.ids.len().max(1);
        let mut metrics = [[0.0; 2]; 3];
        for pair in ends.chunks_exact(2) {
            let places = [pair[0].0 * width, pair[1].0 * width];
            let [w, l] = places.map(|at| f64::from(answers.scores[at]));
            let delta = Slope::first(w) - Slope::second(l);
            let margin = Some(f64::from(pair[0].1[1])).filter(|margin| !margin.is_nan());
            let loss = match self.loss {
                RewardLoss::Scaled => -delta.log_sigmoid() * margin.unwrap_or(1.0),
                _ => -(delta - margin.unwrap_or(0.0)).log_sigmoid(),
            };
            let loss = loss + (Slope::first(w) + Slope::second(l)).square() * self.center;
            weighed.loss += loss.value;
            places.iter().zip(loss.by).for_each(|(at, by)| weighed.scores[*at] = by as f32);
            let right = f64::from(u8::from(w > l));
            for (metric, [sum, count]) in metrics.iter_mut().zip([[right, 1.0], [w - l, 1.0], [w + l, 2.0]]) {
                *metric = [metric[0] + sum, metric[1] + count];
            }
        }
        weighed.metrics = metrics.to_vec();
    }

    fn ratings(answers: &Answers<'_>, weighed: &mut ObjectiveSum) {
        let width = answers.scores.len() / answers.micro.ids.len().max(1);
        let mut metrics = [[0.0; 2]; 2];
        for (end, ratings) in Reward::ends(answers) {
            let known = ratings.iter().enumerate().filter(|(_, rating)| !rating.is_nan());
            for (at, rating) in known.map(|(at, rating)| (end * width + at, rating)) {
                let score = f64::from(answers.scores[at]);
                let error = score - f64::from(*rating);
                weighed.loss += error * error;
                weighed.scores[at] = (2.0 * error) as f32;
                metrics[0] = [metrics[0][0] + error.abs(), metrics[0][1] + 1.0];
                metrics[1] = [metrics[1][0] + score, metrics[1][1] + 1.0];
            }
        }
        weighed.metrics = metrics.to_vec();
    }

    fn processes(answers: &Answers<'_>, weighed: &mut ObjectiveSum) {
        let width = answers.scores.len() / answers.micro.ids.len().max(1);
        let mut metrics = [[0.0; 2]; 2];
        for (place, right) in Reward::steps(answers.micro) {
            let score = f64::from(answers.scores[place * width]);
            let loss = -(Slope::first(score) * if right { 1.0 } else { -1.0 }).log_sigmoid();
            weighed.loss += loss.value;
            weighed.scores[place * width] = loss.by[0] as f32;
            let found = f64::from(u8::from((score > 0.0) == right));
            metrics[0] = [metrics[0][0] + found, metrics[0][1] + 1.0];
            metrics[1] = [metrics[1][0] + score, metrics[1][1] + 1.0];
        }
        weighed.metrics = metrics.to_vec();
    }
}

impl Objective for Reward {
    fn name(&self) -> &'static str {
        "reward"
    }

    /// Number of pairs, known ratings, or steps.
    fn count(&self, micro: &MicroBatch) -> f64 {
        match self.loss {
            RewardLoss::BradleyTerry | RewardLoss::Scaled => (micro.facts.documents() / 2) as f64,
            RewardLoss::Regression => {
                let ratings = |doc| micro.facts.of(doc)[1..].iter().filter(|it| !it.is_nan()).count();
                (0..micro.facts.documents()).map(ratings).sum::<usize>() as f64
            }
            RewardLoss::Process => Reward::steps(micro).count() as f64,
        }
    }

    /// Scores alone.
    fn terms(&self) -> Vec<WeightedLoss> {
        Vec::new()
    }

    fn weigh(&self) -> Option<&dyn Weigh> {
        Some(self)
    }
}

impl Weigh for Reward {
    fn metrics(&self) -> &[&'static str] {
        match self.loss {
            RewardLoss::BradleyTerry | RewardLoss::Scaled => &["accuracy", "margin", "mean_reward"],
            RewardLoss::Regression => &["absolute_error", "mean_reward"],
            RewardLoss::Process => &["accuracy", "mean_reward"],
        }
    }

    fn scores(&self) -> bool {
        true
    }

    fn weigh(&self, answers: &Answers<'_>) -> ObjectiveSum {
        let mut weighed = ObjectiveSum { scores: vec![0.0; answers.scores.len()], ..ObjectiveSum::default() };
        match self.loss {
            RewardLoss::BradleyTerry | RewardLoss::Scaled => self.pairs(answers, &mut weighed),
            RewardLoss::Regression => Reward::ratings(answers, &mut weighed),
            RewardLoss::Process => Reward::processes(answers, &mut weighed),
        }
        weighed
    }
}
