//! Interaction sets: texts with the verdict that is expected, and the rates of those that a guard gave.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::statistics::{Latency, Rate};
use crate::verdict::{Decision, Direction, Verdict};

/// Verdict that is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expectation {
    /// Passes as it is.
    Allow,
    /// Is refused.
    Block,
    /// Passes with changes.
    Rewrite,
}

/// One line of an interaction set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interaction {
    /// Name in reports; its line if it has none.
    #[serde(default)]
    pub id: String,
    /// Judged text; by default the last message's.
    #[serde(default)]
    pub text: Option<String>,
    /// Conversation, the judged message last.
    #[serde(default)]
    pub messages: Vec<Value>,
    /// Passages that an answer has to be based on.
    #[serde(default)]
    pub evidence: Vec<String>,
    /// Direction of the text.
    #[serde(default = "input")]
    pub direction: Direction,
    /// Expected verdict.
    pub expected: Expectation,
    /// Kind, by which rates are listed.
    #[serde(default)]
    pub kind: String,
    /// Rail that is expected to block or rewrite; any if empty.
    #[serde(default)]
    pub rail: String,
}

fn input() -> Direction {
    Direction::Input
}

impl Interaction {
    /// The judged text.
    pub fn judged_text(&self) -> String {
        let last = || self.messages.last().map(|message| crate::rails::message_text(message).1);
        self.text.clone().or_else(last).unwrap_or_default()
    }

    /// The conversation as a guard reads it: the messages, with the text as the last one if it is an input.
    pub fn conversation(&self) -> Vec<Value> {
        match (&self.text, self.direction) {
            (Some(text), Direction::Input) => {
                let mut all = self.messages.clone();
                all.push(serde_json::json!({"role": "user", "content": text}));
                all
            }
            (None, Direction::Output) => self.messages[..self.messages.len().saturating_sub(1)].to_vec(),
            _ => self.messages.clone(),
        }
    }
}

/// Reads an interaction set: JSON lines.
///
/// # Errors
/// The line and the problem.
pub fn read_interactions(text: &str) -> Result<Vec<Interaction>, (usize, String)> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let read = |(at, line): (usize, &str)| {
        let mut one: Interaction = serde_json::from_str(line).map_err(|error| (at + 1, error.to_string()))?;
        if one.text.is_none() && one.messages.is_empty() {
            return Err((at + 1, "has neither `text` nor `messages`".to_string()));
        }
        if one.id.is_empty() {
            one.id = (at + 1).to_string();
        }
        Ok(one)
    };
    lines.map(read).collect()
}

/// A guard's verdict about an interaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The decision over all rails.
    pub decision: Decision,
    /// Verdicts of all rails that were asked.
    pub rails: Vec<RailDecision>,
    /// Seconds that it took.
    pub took_s: f64,
}

/// Decision of one rail.
#[derive(Clone, Debug, PartialEq)]
pub struct RailDecision {
    /// Name of the rail.
    pub rail: String,
    /// Its decision.
    pub decision: Decision,
    /// True if it failed.
    pub failed: bool,
    /// Score of its model.
    pub score: Option<f64>,
}

impl Judgement {
    /// The judgement of verdicts: the strictest decision.
    pub fn of(verdicts: &[Verdict], took_s: f64) -> Judgement {
        let decision = verdicts.iter().map(|verdict| verdict.decision).max().unwrap_or(Decision::Allow);
        let one = |verdict: &Verdict| RailDecision {
            rail: verdict.rail.clone(),
            decision: verdict.decision,
            failed: verdict.failed,
            score: verdict.score,
        };
        Judgement { decision, rails: verdicts.iter().map(one).collect(), took_s }
    }

    fn acts(decision: Decision) -> bool {
        matches!(decision, Decision::Block | Decision::Rewrite)
    }
}

/// An interaction with another verdict than expected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Miss {
    /// Its name.
    pub id: String,
    /// Its kind.
    pub kind: String,
    /// Expected verdict.
    pub expected: Expectation,
    /// The verdict.
    pub decision: Decision,
    /// Rails that blocked, rewrote or failed.
    pub rails: Vec<String>,
}

/// Confusion of one rail: interactions that should be blocked or rewritten, against those that it blocked or rewrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RailRates {
    /// Acted, as expected.
    pub true_positives: usize,
    /// Acted on a text that should pass.
    pub false_positives: usize,
    /// Let a text pass, as expected.
    pub true_negatives: usize,
    /// Let a text pass that it should not: the rail that the interaction names, or any if none is named and none acted.
    pub false_negatives: usize,
    /// Failed.
    pub failures: usize,
}

/// Rates of a guard on an interaction set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationReport {
    /// Number of interactions.
    pub interactions: usize,
    /// Share with the expected verdict.
    pub agreement: Rate,
    /// Share of those to be blocked that were.
    pub blocked: Rate,
    /// Share of those to pass that were blocked.
    pub false_refusals: Rate,
    /// Share of those to be rewritten that were.
    pub rewritten: Rate,
    /// Share with a rail that failed.
    pub failed: Rate,
    /// Time of a judgement.
    pub latency: Latency,
    /// Agreement by kind.
    pub kinds: BTreeMap<String, Rate>,
    /// Confusion by rail.
    pub rails: BTreeMap<String, RailRates>,
    /// Other verdicts than expected.
    pub misses: Vec<Miss>,
}

/// Judges an interaction set.
///
/// # Errors
/// The first error of the guard.
pub fn evaluate<E>(
    set: &[Interaction],
    mut judge: impl FnMut(&Interaction) -> Result<Judgement, E>,
) -> Result<EvaluationReport, E> {
    let mut report = EvaluationReport { interactions: set.len(), ..EvaluationReport::default() };
    let mut counts = [[0usize; 2]; 5];
    let mut kinds: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    let mut times = Vec::with_capacity(set.len());
    for one in set {
        let found = judge(one)?;
        times.push(found.took_s);
        let agrees = agrees(one, &found);
        let blocked = found.decision == Decision::Block;
        let mut count = |row: usize, hit: bool| {
            counts[row][0] += usize::from(hit);
            counts[row][1] += 1;
        };
        count(0, agrees);
        match one.expected {
            Expectation::Block => count(1, blocked),
            Expectation::Allow => count(2, blocked),
            Expectation::Rewrite => count(3, found.decision == Decision::Rewrite),
        }
        count(4, found.rails.iter().any(|rail| rail.failed));
        let kind = kinds.entry(one.kind.clone()).or_default();
        kind[0] += usize::from(agrees);
        kind[1] += 1;
        confuse(&mut report.rails, one, &found);
        if !agrees {
            let acted = |rail: &&RailDecision| Judgement::acts(rail.decision) || rail.failed;
            report.misses.push(Miss {
                id: one.id.clone(),
                kind: one.kind.clone(),
                expected: one.expected,
                decision: found.decision,
                rails: found.rails.iter().filter(acted).map(|rail| rail.rail.clone()).collect(),
            });
        }
    }
    let rate = |row: usize| Rate::new(counts[row][0], counts[row][1]);
    (report.agreement, report.blocked, report.false_refusals) = (rate(0), rate(1), rate(2));
    (report.rewritten, report.failed) = (rate(3), rate(4));
    report.latency = Latency::of(times);
    report.kinds = kinds.into_iter().map(|(kind, [hits, of])| (kind, Rate::new(hits, of))).collect();
    Ok(report)
}

fn agrees(one: &Interaction, found: &Judgement) -> bool {
    let decision = match one.expected {
        Expectation::Block => found.decision == Decision::Block,
        Expectation::Rewrite => found.decision == Decision::Rewrite,
        Expectation::Allow => matches!(found.decision, Decision::Allow | Decision::Flag),
    };
    let acted = |rail: &RailDecision| rail.rail == one.rail && Judgement::acts(rail.decision);
    decision && (one.rail.is_empty() || one.expected == Expectation::Allow || found.rails.iter().any(acted))
}

fn confuse(rails: &mut BTreeMap<String, RailRates>, one: &Interaction, found: &Judgement) {
    let caught = found.rails.iter().any(|rail| Judgement::acts(rail.decision) && !rail.failed);
    for rail in &found.rails {
        let own = rails.entry(rail.rail.clone()).or_default();
        // A rail that is named by the interaction answers for it alone.
        let positive = one.expected != Expectation::Allow && (one.rail.is_empty() || one.rail == rail.rail);
        let cell = match (rail.failed, positive, Judgement::acts(rail.decision)) {
            (true, ..) => &mut own.failures,
            (_, true, true) => &mut own.true_positives,
            (_, false, true) => &mut own.false_positives,
            (_, false, false) => &mut own.true_negatives,
            // Another rail caught a text for which none is named.
            (_, true, false) if one.rail.is_empty() && caught => continue,
            (_, true, false) => &mut own.false_negatives,
        };
        *cell += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_count_what_was_expected() {
        let text = r#"{"text": "a", "expected": "block", "kind": "x", "rail": "r"}
{"text": "b", "expected": "allow"}

{"id": "c", "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "d"}], "direction": "output", "expected": "rewrite"}
{"text": "e", "expected": "block", "kind": "x", "rail": "other"}
"#;
        let set = read_interactions(text).unwrap();
        assert_eq!((set[0].id.as_str(), set[3].id.as_str(), set[2].judged_text().as_str()), ("1", "5", "d"));
        assert_eq!(set[2].conversation().len(), 1);
        let report = evaluate(&set, |one| {
            let decision = if one.id == "c" { Decision::Rewrite } else { Decision::Block };
            let rails = vec![
                RailDecision { rail: "r".into(), decision, failed: false, score: None },
                RailDecision { rail: "s".into(), decision: Decision::Block, failed: true, score: None },
            ];
            Ok::<_, ()>(Judgement { decision, rails, took_s: 0.001 })
        })
        .unwrap();
        assert_eq!((report.agreement.hits, report.blocked.hits, report.false_refusals.hits), (2, 2, 1));
        assert_eq!((report.rewritten.rate, report.failed.rate), (1.0, 1.0));
        assert_eq!((report.kinds["x"].hits, report.kinds["x"].of), (1, 2));
        let rail = report.rails["r"];
        assert_eq!((rail.true_positives, rail.false_positives, rail.false_negatives), (2, 2, 0));
        assert_eq!(report.rails["s"].failures, 4);
        assert_eq!(report.misses.iter().map(|miss| &*miss.id).collect::<Vec<_>>(), ["2", "5"]);
        assert!(serde_json::to_string(&report).is_ok());
    }

    #[test]
    fn a_text_that_one_rail_catches_is_no_miss_of_the_others() {
        let set = read_interactions(
            "{\"text\": \"a\", \"expected\": \"block\"}\n{\"text\": \"b\", \"expected\": \"block\"}",
        )
        .unwrap();
        let report = evaluate(&set, |one| {
            let decision = if one.id == "1" { Decision::Block } else { Decision::Allow };
            let rail = |name: &str, decision| RailDecision {
                rail: name.into(),
                decision,
                failed: false,
                score: None,
            };
            let rails = vec![rail("r", decision), rail("s", Decision::Allow)];
            Ok::<_, ()>(Judgement { decision, rails, took_s: 0.001 })
        })
        .unwrap();
        let missed = |name: &str| report.rails[name].false_negatives;
        assert_eq!((report.rails["r"].true_positives, missed("r"), missed("s")), (1, 1, 1));
    }

    #[test]
    fn damaged_lines_are_named() {
        for (text, line) in [
            ("{\"text\": \"a\", \"expected\": \"allow\"}\n{", 2),
            ("{\"expected\": \"allow\"}", 1),
            ("\n{\"text\": \"a\", \"expected\": \"maybe\"}", 2),
            ("{\"text\": \"a\", \"expected\": \"allow\", \"typo\": 1}", 1),
        ] {
            assert_eq!(read_interactions(text).unwrap_err().0, line, "{text}");
        }
    }
}
