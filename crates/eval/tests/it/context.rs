//! The benefit of context, for models for which it is known.

use fathom_eval::*;

use crate::{Rule, manual_clock};

/// A model with loss `short` for tokens with fewer than `needs` tokens before them, and `long` for all others, plus a
/// term that depends on the token.
fn needing(needs: usize, [short, long]: [f64; 2]) -> Rule<impl FnMut(&[u32], u32) -> f64> {
    let loss =
        move |before: &[u32], id: u32| f64::from(id) / 1e3 + if before.len() < needs { short } else { long };
    Rule::new(loss, 4096)
}

fn documents() -> Vec<Vec<u32>> {
    (0..3).map(|seed| (0..1100).map(|at| (at * 7 + seed) % 50).collect()).collect()
}

#[test]
fn losses_are_of_the_same_tokens() {
    let limits = Limits::default();
    // The part of the loss that depends only on the token is the same with any context.
    let found = worth_of_context(&needing(256, [3.0, 2.0]), &documents(), [512, 128], &limits);
    let found = found.unwrap().unwrap();
    // Two pieces of 512 tokens per document; the second half of each has four blocks of 64.
    assert_eq!((found.full_tokens, found.cut_tokens, found.blocks, found.tokens), (512, 128, 24, 24 * 64));
    assert!((found.cut_loss - found.full_loss - 1.0).abs() < 1e-9, "{found:?}");
    assert!(found.standard_error < 1e-9, "{found:?}");
    // No benefit if 64 tokens are enough.
    let near = worth_of_context(&needing(64, [3.0, 2.0]), &documents(), [512, 128], &limits);
    let near = near.unwrap().unwrap();
    assert_eq!((near.full_loss, near.standard_error), (near.cut_loss, 0.0));
    assert_eq!(near.to_event(&Moment::default()).blocks, 24);
}

#[test]
fn a_difference_by_chance_is_within_its_standard_error() {
    // A loss that is a hash of the whole context: it differs but carries no benefit.
    let mix =
        |hash: u64, id: &u32| (hash ^ u64::from(*id)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let chance = |before: &[u32], _: u32| before.iter().fold(7, mix) as f64 / 2f64.powi(64);
    let model = Rule::new(chance, 4096);
    let found = worth_of_context(&model, &documents(), [512, 128], &Limits::default()).unwrap().unwrap();
    let gain = found.cut_loss - found.full_loss;
    assert!(found.standard_error > 0.0 && gain.abs() < 2.0 * found.standard_error, "{found:?}");
}

#[test]
fn the_length_is_what_text_and_time_hold() {
    let model = needing(0, [0.0; 2]);
    let length = |model: &dyn fathom_base::LanguageModel, full, limits: &Limits| {
        let found = worth_of_context(model, &documents(), [full, 128], limits).unwrap();
        found.map(|found| (found.full_tokens, found.blocks))
    };
    assert_eq!(length(&model, 2048, &Limits::default()), Some((1024, 24)));
    assert_eq!(length(&model, 128, &Limits::default()), None);
    // A token takes a millisecond: 1,024 tokens and eight blocks of 128 take two seconds.
    for (seconds, expected) in [(3.0, Some((1024, 8))), (2.0, Some((512, 4))), (0.4, None)] {
        let (clock, spend) = manual_clock();
        let loss = |before: &[u32], _: u32| {
            spend(if before.len() == 1 { 2e-3 } else { 1e-3 });
            0.0
        };
        let slow = Rule::new(loss, 4096);
        let limits = Limits { deadline: Some(clock.within(seconds)), ..Limits::default() };
        assert_eq!(length(&slow, 1024, &limits), expected, "{seconds}");
        assert!(clock.now_s() <= seconds.max(0.4), "{}", clock.now_s());
    }
}
