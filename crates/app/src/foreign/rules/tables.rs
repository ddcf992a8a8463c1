//! Rules that apply to a file.

use super::{Row, adapters, common, distill, machine, policy, preferences};
use crate::foreign::kind::Kind;

/// Returns the rules common to all kinds, followed by the kind's own.
pub(in crate::foreign) fn of(kind: Kind) -> [&'static [Row]; 4] {
    [common::RULES, adapters::RULES, machine::RULES, own(kind)]
}

fn own(kind: Kind) -> &'static [Row] {
    match kind {
        Kind::Text | Kind::Answers => common::OF_ANSWERS,
        Kind::Dpo | Kind::Kto | Kind::Orpo | Kind::Cpo | Kind::Simpo => preferences::RULES,
        Kind::Reward | Kind::Steps => preferences::OF_SCORES,
        Kind::Distill => distill::RULES,
        Kind::Grpo | Kind::Rloo | Kind::Ppo => policy::RULES,
    }
}

/// Returns whether some kind has a rule for a key.
pub(in crate::foreign) fn any_has(key: &str) -> bool {
    [Kind::Answers, Kind::Dpo, Kind::Reward, Kind::Distill, Kind::Grpo]
        .iter()
        .any(|kind| own(*kind).iter().any(|(keys, _)| keys.contains(&key)))
}
