//! Thresholds from labelled scores.

use serde::{Deserialize, Serialize};

use super::statistics::Rate;

/// Score of a text with its label.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabelledScore {
    /// Score of a rail.
    pub score: f64,
    /// True if the text is to be condemned.
    pub condemn: bool,
}

/// Rates at a threshold: texts with at least this score are condemned.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Threshold.
    pub threshold: f64,
    /// Share of texts to be condemned that are.
    pub recall: f64,
    /// Share of other texts that are condemned.
    pub false_positive_rate: f64,
    /// Share of condemned texts that are to be.
    pub precision: f64,
}

/// A calibrated threshold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Points of all thresholds, the highest threshold first.
    pub curve: Vec<CurvePoint>,
    /// Area under the curve of recall over false positives: probability that a text to be condemned has the higher
    /// score, ties counting half.
    pub area: f64,
    /// The lowest threshold whose false positive rate is at most the wanted one; `None` if there is none.
    pub chosen: Option<CurvePoint>,
    /// Recall at the chosen threshold, with its interval.
    pub recall: Rate,
    /// False positive rate at the chosen threshold, with its interval.
    pub false_positives: Rate,
}

/// Calibrates a threshold to a false positive rate.
///
/// # Errors
/// There are no texts of one of the labels, a score is no number, or the wanted rate is no share.
pub fn calibrate(scores: &[LabelledScore], most_false_positives: f64) -> Result<Calibration, String> {
    if !(0.0..=1.0).contains(&most_false_positives) {
        return Err(format!("{most_false_positives} is no false positive rate: it is from 0 to 1"));
    }
    if let Some(at) = scores.iter().position(|it| it.score.is_nan()) {
        return Err(format!("score {} is no number", at + 1));
    }
    let positives = scores.iter().filter(|it| it.condemn).count();
    let negatives = scores.len() - positives;
    if positives == 0 || negatives == 0 {
        return Err(format!(
            "needs texts of both labels; {positives} are to be condemned and {negatives} to pass"
        ));
    }
    let mut order = scores.to_vec();
    order.sort_by(|a, b| b.score.total_cmp(&a.score));
    let (mut curve, mut hits, mut false_hits) = (Vec::new(), 0usize, 0usize);
    let mut counts = Vec::new();
    let mut area = 0.0;
    for group in order.chunk_by(|a, b| a.score == b.score) {
        let own = group.iter().filter(|it| it.condemn).count();
        let other = group.len() - own;
        area += other as f64 * (hits as f64 + own as f64 / 2.0);
        (hits, false_hits) = (hits + own, false_hits + other);
        curve.push(CurvePoint {
            threshold: group[0].score,
            recall: hits as f64 / positives as f64,
            false_positive_rate: false_hits as f64 / negatives as f64,
            precision: hits as f64 / (hits + false_hits) as f64,
        });
        counts.push((hits, false_hits));
    }
    let at = curve.iter().rposition(|point| point.false_positive_rate <= most_false_positives);
    let (hits, false_hits) = at.map_or((0, 0), |at| counts[at]);
    Ok(Calibration {
        area: area / (positives as f64 * negatives as f64),
        chosen: at.map(|at| curve[at]),
        recall: Rate::new(hits, positives),
        false_positives: Rate::new(false_hits, negatives),
        curve,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(all: &[(f64, bool)]) -> Vec<LabelledScore> {
        all.iter().map(|(score, condemn)| LabelledScore { score: *score, condemn: *condemn }).collect()
    }

    #[test]
    fn the_lowest_threshold_within_the_rate_is_chosen() {
        let all = scores(&[
            (0.9, true),
            (0.8, true),
            (0.8, false),
            (0.6, true),
            (0.4, false),
            (0.2, false),
            (0.1, false),
        ]);
        let found = calibrate(&all, 0.25).unwrap();
        assert_eq!(found.curve.len(), 6);
        assert_eq!(found.chosen.unwrap().threshold, 0.6);
        assert_eq!((found.recall.hits, found.false_positives.hits), (3, 1));
        // Pairs in which the text to be condemned is higher: 4 + 3.5 + 3 of 12.
        assert!((found.area - 10.5 / 12.0).abs() < 1e-12);
        assert_eq!(calibrate(&all, 0.0).unwrap().chosen.unwrap().threshold, 0.9);
        let worst = calibrate(&scores(&[(0.9, false), (0.1, true)]), 0.5).unwrap();
        assert_eq!((worst.chosen, worst.area), (None, 0.0));
    }

    #[test]
    fn impossible_calibrations_are_refused() {
        for (all, rate) in [
            (scores(&[(0.9, true)]), 0.1),
            (scores(&[(f64::NAN, true), (0.1, false)]), 0.1),
            (scores(&[(0.9, true), (0.1, false)]), 1.5),
        ] {
            assert!(calibrate(&all, rate).is_err());
        }
    }
}
