//! Losses and advantages of reinforcement learning, compared with TRL: `tests/golden_rl`, written by `oracle/rl.py`.

use std::path::PathBuf;

use fathom_model::{SafeTensors, Source};
use fathom_train::policy::{AdvantageName, Policy, RolloutRewards, advantages};
use fathom_train::recipe::{KlIn, PolicyName, RlTable};
use fathom_train::{Answers, MicroBatch, Objective, ObjectiveSum, RolloutColumns, Weigh};
use serde_json::Value;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_rl")
}

fn golden() -> Value {
    serde_json::from_slice(&std::fs::read(root().join("golden.json")).unwrap()).unwrap()
}

/// Elements of a tensor, four bytes each, and its sizes.
fn tensor(files: &SafeTensors, name: &str) -> (Vec<[u8; 4]>, Vec<usize>) {
    let (shape, mut bytes) = (files.shape(name).unwrap().to_vec(), Vec::new());
    files.read_rows(name, 0..shape[0], &mut bytes).unwrap();
    (bytes.as_chunks().0.to_vec(), shape)
}

fn floats(files: &SafeTensors, name: &str) -> Vec<f64> {
    tensor(files, name).0.into_iter().map(|x| f64::from(f32::from_le_bytes(x))).collect()
}

fn whole(files: &SafeTensors, name: &str) -> Vec<i32> {
    tensor(files, name).0.into_iter().map(i32::from_le_bytes).collect()
}

/// The completions of the files after prompts of one token, with the log-probabilities of their tokens, and the
/// entropies there.
fn completions(files: &SafeTensors, mask: &str, sign: f64) -> (MicroBatch, Vec<f32>, Vec<f32>) {
    let (ids, mask) = (whole(files, "completion_ids"), whole(files, mask));
    let (logits, shape) = (floats(files, "logits"), files.shape("logits").unwrap());
    let [rows, wide, vocab] = [shape[0], shape[1], shape[2]];
    let [old, reference] = ["old_logps", "ref_logps"].map(|name| floats(files, name));
    let given = floats(files, "advantages");
    let valid = whole(files, "mask");
    let (mut micro, mut losses, mut entropies) = (MicroBatch::default(), Vec::new(), Vec::new());
    micro.rolled = RolloutColumns { answers: rows, ..RolloutColumns::default() };
    for row in 0..rows {
        let start = micro.ids.len();
        for at in 0..=wide {
            // The token at a position predicts the next.
            let label = row * wide + at;
            let is = at < wide && mask[label] * valid[label] == 1;
            let id = if is { ids[label] } else { -100 };
            let of = |values: &[f64]| if is { values[label] as f32 } else { 0.0 };
            let logit = |id: usize| logits[label * vocab + id];
            let sum = || (0..vocab).map(|id| logit(id).exp()).sum::<f64>().ln();
            losses.push(if is { (sum() - logit(id as usize)) as f32 } else { 0.0 });
            let mean =
                |sum: f64| (0..vocab).map(|id| (logit(id) - sum).exp() * (sum - logit(id))).sum::<f64>();
            entropies.push(if is { mean(sum()) as f32 } else { 0.0 });
            micro.ids.push(4);
            micro.labels.push(id);
            micro.positions.push(at as i32);
            micro.reference.push(of(&reference));
            micro.rolled.logps.push(of(&old));
            micro.rolled.advantages.push((sign * given[row]) as f32);
        }
        micro.docs.push(start..micro.ids.len());
    }
    (micro, losses, entropies)
}

/// The policy of a case, from TRL's names.
fn policy(case: &Value) -> Policy {
    let number = |key: &str| case[key].as_f64();
    let sequence = case["importance_sampling_level"] == "sequence";
    let loss = match case["loss_type"].as_str() {
        Some("grpo") if sequence => PolicyName::Gspo,
        Some("grpo") => PolicyName::Grpo,
        Some("bnpo") => PolicyName::Bnpo,
        Some("dr_grpo") => PolicyName::DrGrpo,
        Some("dapo") => PolicyName::Dapo,
        Some("cispo") => PolicyName::Cispo,
        Some("sapo") => PolicyName::Sapo,
        None => PolicyName::Rloo,
        other => panic!("{other:?}"),
    };
    let corrected = case["use_bias_correction_kl"].as_bool().unwrap_or(true);
    let plain = RlTable::default();
    let table = RlTable {
        loss,
        max_answer_tokens: 16,
        epsilon: number("epsilon").unwrap_or(0.2),
        epsilon_high: number("epsilon_high"),
        delta: number("delta"),
        sapo_positive: number("sapo_temperature_pos").unwrap_or(plain.sapo_positive),
        sapo_negative: number("sapo_temperature_neg").unwrap_or(plain.sapo_negative),
        beta: number("beta").unwrap_or(0.0),
        kl_in: KlIn::Loss,
        kl_corrected: corrected,
        top_entropy_quantile: number("top_entropy_quantile").unwrap_or(1.0),
        entropy_coefficient: number("entropy_coef").unwrap_or(0.0),
        ..plain
    };
    table.policy().unwrap()
}

#[track_caller]
fn close(what: &str, found: f64, want: f64, most: f64) {
    assert!((found - want).abs() <= most * want.abs().max(1e-2), "{what}: {found} {want}");
}

/// Every loss with its whole gradient by log-probabilities; other methods of TRL are skipped.
#[test]
fn losses_are_those_of_trl() {
    let (golden, files) = (golden(), SafeTensors::open_file(&root().join("losses.safetensors")).unwrap());
    let other =
        ["luspo", "vespo", "off_policy", "sampler_tokens", "sampler_sequences", "dapo_parts", "grpo_parts"];
    let losses =
        golden["losses"].as_object().unwrap().iter().filter(|(name, _)| !other.contains(&name.as_str()));
    let rloo = golden["rloo_losses"].as_object().unwrap().iter();
    let mut seen = 0;
    for (name, case) in losses.chain(rloo) {
        let mask = if name == "tools" { "tool_mask" } else { "mask" };
        let (mut micro, losses, entropies) =
            completions(&files, mask, case["advantages_times"].as_f64().unwrap_or(1.0));
        if name == "on_policy" {
            micro.rolled.logps = losses.iter().map(|loss| -loss).collect();
        }
        let policy = policy(case);
        let count = Objective::count(&policy, &micro);
        let asked = Objective::terms(&policy).len() > 1;
        let others = if asked { vec![entropies] } else { Vec::new() };
        let answers = Answers { others: &others, ..Answers::of(&micro, &losses) };
        let weighed = Weigh::weigh(&policy, &answers);
        close(name, weighed.loss / count, case["value"].as_f64().unwrap(), 1e-5);
        let want = floats(&files, &format!("{name}.grad_logps"));
        let most = want.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        for doc in 0..6 {
            for at in 0..7 {
                let found = -f64::from(weighed.weights[doc * 8 + at]) / count;
                let want = want[doc * 7 + at];
                assert!((found - want).abs() <= 1e-5 * most, "{name}: gradient {doc} {at}: {found} {want}");
            }
        }
        if asked {
            of_logits(name, &files, (&micro, &weighed, &others[0]), count);
        }
        let names = Weigh::metrics(&policy);
        for (key, want) in case["metrics"].as_object().unwrap() {
            let Some(at) = names.iter().position(|name| name == key) else { continue };
            let [sum, count] = weighed.metrics[at];
            if count > 0.0 {
                close(&format!("{name}: {key}"), sum / count, want.as_f64().unwrap(), 1e-5);
            }
        }
        seen += 1;
    }
    assert_eq!(seen, 21);
}

/// The sum of the terms from losses and from entropies is TRL's gradient by the logits.
fn of_logits(
    name: &str,
    files: &SafeTensors,
    (micro, weighed, entropies): (&MicroBatch, &ObjectiveSum, &[f32]),
    count: f64,
) {
    let (logits, want) = (floats(files, "logits"), floats(files, &format!("{name}.grad_logits")));
    let most = want.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    let (wide, vocab) = (7, want.len() / 42);
    for row in 0..6 * wide {
        let at = row / wide * (wide + 1) + row % wide;
        let of_row = &logits[row * vocab..][..vocab];
        let sum = of_row.iter().map(|x| x.exp()).sum::<f64>().ln();
        for (id, logit) in of_row.iter().enumerate() {
            let p = (logit - sum).exp();
            let of_loss = p - f64::from(u8::from(micro.labels[at] == id as i32));
            // Derivative of an entropy H by a logit: -p (log p + H).
            let of_entropy = -p * (logit - sum + f64::from(entropies[at]));
            let entropy = weighed.others.first().map_or(0.0, |by| f64::from(by[at]));
            let found = (f64::from(weighed.weights[at]) * of_loss + entropy * of_entropy) / count;
            let want = want[row * vocab + id];
            assert!((found - want).abs() <= 1e-5 * most, "{name}: logits {row} {id}: {found} {want}");
        }
    }
}

#[test]
fn advantages_are_those_of_trl() {
    let golden = golden();
    let mut seen = 0;
    for (name, case) in golden["advantages"].as_object().unwrap() {
        let group = case["generations"].as_u64().unwrap() as usize;
        let by = match (name.as_str(), case["scale_rewards"].as_str()) {
            (name, _) if name.starts_with("gdpo") => AdvantageName::EachThenSum,
            // These are also divided by the batch's deviation, have a clipped reward, or a group without others.
            (name, _)
                if name.contains("normalised") || name.contains("clipped") || name == "rloo_one_member" =>
            {
                continue;
            }
            (name, _) if name.starts_with("rloo") => AdvantageName::LeaveOneOut,
            (_, Some("batch")) => AdvantageName::Batch,
            (_, Some("none")) => AdvantageName::Mean,
            _ => AdvantageName::Trl,
        };
        let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
        let rows: Vec<Vec<f64>> = case["rewards"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| {
                row.as_array().map_or_else(|| vec![number(row)], |row| row.iter().map(number).collect())
            })
            .collect();
        let parts = rows[0].len();
        let weights: Vec<f64> = case["reward_weights"]
            .as_array()
            .map_or(vec![1.0; parts], |list| list.iter().map(number).collect());
        let each: Vec<Vec<f64>> = (0..parts).map(|part| rows.iter().map(|row| row[part]).collect()).collect();
        let sums = |key: &str| case[key].as_array().map(|list| list.iter().map(number).collect::<Vec<f64>>());
        let (now, reference) = (sums("logp_sums"), sums("reference_sums"));
        let reward = |(at, row): (usize, &Vec<f64>)| {
            if row.iter().all(|reward| reward.is_nan()) {
                return f64::NAN;
            }
            let there = row.iter().zip(&weights).filter(|(reward, _)| !reward.is_nan());
            let sum: f64 = there.map(|(reward, weight)| reward * weight).sum();
            let kl =
                now.as_ref().zip(reference.as_ref()).map_or(0.0, |(now, reference)| now[at] - reference[at]);
            sum - case["beta"].as_f64().unwrap_or(0.0) * kl
        };
        let rewards: Vec<f64> = rows.iter().enumerate().map(reward).collect();
        let tokens = vec![1; rewards.len()];
        let of = RolloutRewards { rewards: &rewards, each: &each, weights: &weights, tokens: &tokens, group };
        let found = advantages(by, &of).unwrap();
        for (at, (found, want)) in found.iter().zip(case["advantages"].as_array().unwrap()).enumerate() {
            let want = number(want);
            assert!((found - want).abs() <= 1e-6 * want.abs().max(1.0), "{name} {at}: {found} {want}");
        }
        seen += 1;
    }
    assert!(seen >= 15, "{seen}");
}
