//! State of a source between steps and in checkpoints: the rollout of the current steps, and answers for the next one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::episode::Episode;
use super::pack::Doc;

/// Serializes bytes as base64 text.
pub(super) mod text {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        STANDARD.decode(String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// A rollout in use by steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UsedRollout {
    /// Groups of documents.
    pub groups: Vec<Vec<Doc>>,
    /// Number of steps taken with it.
    pub made: usize,
    /// True if log-probabilities are those of the trainer's weights before the first step, rather than the sampler's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub corrected: bool,
}

/// A group of answers to a prompt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Group {
    pub prompt: usize,
    pub answers: Vec<Episode>,
}

/// Answers of a rollout with their rewards, by group.
#[derive(Clone, Debug, Default)]
pub(super) struct ScoredRollout {
    pub groups: Vec<Group>,
    pub each: Vec<Vec<f64>>,
    pub sums: Vec<f64>,
    /// Metrics from the time of writing, for the log.
    pub seen: BTreeMap<String, f64>,
}

/// A `ScoredRollout` in a checkpoint: numbers, some of them NaN, are stored as their bits.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ahead {
    groups: Vec<Group>,
    each: Vec<Vec<u64>>,
    sums: Vec<u64>,
    seen: BTreeMap<String, f64>,
}

impl From<&ScoredRollout> for Ahead {
    fn from(of: &ScoredRollout) -> Ahead {
        let bits = |of: &Vec<f64>| of.iter().map(|x| x.to_bits()).collect::<Vec<u64>>();
        let (groups, seen) = (of.groups.clone(), of.seen.clone());
        Ahead { groups, each: of.each.iter().map(bits).collect(), sums: bits(&of.sums), seen }
    }
}

impl From<Ahead> for ScoredRollout {
    fn from(of: Ahead) -> ScoredRollout {
        let numbers = |of: Vec<u64>| of.into_iter().map(f64::from_bits).collect::<Vec<f64>>();
        let (groups, seen) = (of.groups, of.seen);
        ScoredRollout {
            groups,
            each: of.each.into_iter().map(numbers).collect(),
            sums: numbers(of.sums),
            seen,
        }
    }
}

/// The state if answers for the next rollout exist.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NextRollout {
    pending: Option<UsedRollout>,
    next: Ahead,
}

/// The state for a cursor.
pub(super) fn held(pending: Option<&UsedRollout>, next: Option<&ScoredRollout>) -> Option<Value> {
    // Only numbers, texts and lists of them: everything in it has a JSON form.
    match next {
        Some(next) => serde_json::to_value(NextRollout { pending: pending.cloned(), next: next.into() }).ok(),
        None => pending.and_then(|pending| serde_json::to_value(pending).ok()),
    }
}

/// Parses the state in a cursor.
pub(super) fn kept(held: Option<&Value>) -> serde_json::Result<(Option<UsedRollout>, Option<ScoredRollout>)> {
    let Some(held) = held else { return Ok((None, None)) };
    if held.get("next").is_none() {
        return Ok((Some(UsedRollout::deserialize(held)?), None));
    }
    let NextRollout { pending, next } = NextRollout::deserialize(held)?;
    Ok((pending, Some(next.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_holds_what_is_learned_and_what_is_next() {
        let doc = Doc { ids: vec![1, 2], prompt: 1, logps: vec![-0.1], kept: vec![0, 255], ..Doc::default() };
        let pending = UsedRollout { groups: vec![vec![doc]], made: 1, corrected: true };
        let text = |value: Option<Value>| serde_json::from_str::<Value>(&value.unwrap().to_string()).unwrap();
        let (found, next) = kept(Some(&text(held(Some(&pending), None)))).unwrap();
        assert!(found.as_ref() == Some(&pending) && next.is_none());
        let rolled = ScoredRollout {
            groups: vec![Group { prompt: 3, answers: vec![Episode { ids: vec![7], ..Episode::default() }] }],
            each: vec![vec![f64::NAN]],
            sums: vec![0.1 + 0.2],
            seen: [("a".to_string(), 0.5)].into(),
        };
        for pending in [None, Some(&pending)] {
            let (found, next) = kept(Some(&text(held(pending, Some(&rolled))))).unwrap();
            let next = next.unwrap();
            assert_eq!((found.as_ref(), next.sums[0].to_bits()), (pending, rolled.sums[0].to_bits()));
            assert!(next.each[0][0].is_nan() && next.seen["a"] == 0.5);
            assert_eq!((next.groups[0].prompt, &next.groups[0].answers[0].ids), (3, &vec![7]));
        }
        assert!(kept(Some(&serde_json::json!({"next": 1}))).is_err());
        assert!(kept(None).unwrap().1.is_none());
    }
}
