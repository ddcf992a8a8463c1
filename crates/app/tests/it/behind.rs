//! Generation of answers with the weights from before an update (`rl.behind`).

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use fathom_app::train::Order;
use fathom_app::{Silent, library, train};
use fathom_cpu::Cpu;
use fathom_grad::Sharding;
use fathom_tensor::Device;
use fathom_train::policy::apart::Apart;
use fathom_train::policy::reward::{Numbers, Reward, RewardInput};
use fathom_train::{Outcome, Refers};
use serde_json::Value;

use crate::policy::{asked, bits, events, job, prepare};
use crate::policy_mesh::{SMALL, family, rolled};
use crate::policy_values::with_values;

/// Returns the texts of each rollout's answers.
fn texts(folder: &Path) -> Vec<Vec<Value>> {
    let of = |it: &Value| {
        let answers = it["answers"].as_array().unwrap();
        answers.iter().map(|answer| answer["text"].clone()).collect()
    };
    events(folder, "rollout").iter().map(of).collect()
}

/// The first rollout is on policy; the second was generated with the same weights, before the first update, and has
/// importance weights for that. A stopped and resumed run has the bits of an uninterrupted one, also with several steps
/// per rollout.
#[test]
fn a_rollout_is_written_before_the_update_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    let run = |out: &str, more: &[&str]| {
        let job = job(folder, out, more);
        assert_eq!(train(&job, &Order::default(), &Silent).unwrap().outcome, Outcome::Finished);
        events(&folder.join(out), "step")
    };
    let metric = |step: &Value, name: &str| step["metrics"][name].as_f64().unwrap_or(f64::NAN);
    let steps = ["stage.0.steps=4", "rl.shown=12", "optimizer.lr=1e-2", "schedule.decay=constant"];
    let behind = [&steps[..], &["rl.behind=1"]].concat();
    let late = run("late", &behind);
    // Answers of the initial weights, which do not change here.
    run("still", &[&steps[..], &["optimizer.lr=0"]].concat());
    let [written, still] = ["late", "still"].map(|out| texts(&folder.join(out)));
    assert_eq!((written.len(), &written[..2]), (4, &still[..2]));
    assert_ne!(written[2..], still[2..]);
    // The first step equals that of an on-policy run.
    let now = run("now", &steps);
    assert_eq!(late[0]["loss_bits"], now[0]["loss_bits"]);
    assert_eq!(metric(&late[0], "token_mult_prob_error"), 1.0);
    for step in &late[1..] {
        assert!(metric(step, "token_mult_prob_error") > 1.0, "{step}");
        assert_eq!(metric(step, "probs_ratio"), 1.0, "{step}");
        let name = |which: &str| format!("sampling/importance_sampling_ratio/{which}");
        let [min, mean, max] = ["min", "mean", "max"].map(|which| metric(step, &name(which)));
        assert!(0.0 < min && min < mean && mean < max && max <= 3.0, "{step}");
        assert!(metric(step, "sampling/sampling_logp_difference/max") > 0.0, "{step}");
    }
    assert_ne!(late[1]["loss_bits"], now[1]["loss_bits"]);
    // Without importance weights, the ratio in the loss uses the sampler's probabilities.
    let plain = run("plain", &[&behind[..], &["rl.importance_sampling_mode=none"]].concat());
    let [a, b] = [&plain[1], &late[1]].map(|step| metric(step, "token_mult_prob_error"));
    assert!((a - b).abs() < 1e-5, "{a} {b}");
    assert!(metric(&plain[1], "probs_ratio") != 1.0, "{}", plain[1]);
    let several = ["stage.0.steps=5", "rl.behind=1", "rl.minibatches=2", "rl.beta=0.02", "rl.shown=12"];
    let modes = ["rl.importance_sampling_mode=sequence_truncate"];
    for (out, more, at) in [("one", &behind[..], 2), ("two", &[&several[..], &modes].concat(), 3)] {
        run(&format!("whole-{out}"), more);
        let fault = format!("machine.fault=\"term rank 0 at step {at}\"");
        let cut = job(folder, out, &[more, &[fault.as_str()]].concat());
        let outcome = || train(&cut, &Order::default(), &Silent).unwrap().outcome;
        assert_eq!([outcome(), outcome()], [Outcome::Interrupted, Outcome::Finished]);
        assert_eq!(bits(&folder.join(out)), bits(&folder.join(format!("whole-{out}"))));
    }
    // Two replicas generate the same answers, and so does a ring, which also scores its first rollout again.
    for (out, mesh) in [("dp", "mesh.dp=2"), ("ring", "mesh.cp=2")] {
        let steps = run(out, &[&behind[..], &[mesh]].concat());
        assert_eq!(texts(&folder.join(out))[..2], written[..2], "{out}");
        assert!(steps[1..].iter().all(|step| metric(step, "probs_ratio") == 1.0), "{out}");
    }
    for (more, said) in [
        (&["rl.behind=2"][..], "rl.behind"),
        (&["rl.behind=1", "rl.importance_sampling_clip_max=none"], "rl.importance_sampling_clip_max"),
        (&["rl.behind=1", "rl.importance_sampling_clip_min=4"], "rl.importance_sampling_clip_min"),
    ] {
        let made = asked(folder, "bad", more);
        let error = made.and_then(|job| train(&job, &Order::default(), &Silent)).err().unwrap().to_string();
        assert!(error.contains(said), "{more:?}: {error}");
    }
}

/// Scores at once the first time, and after that only on a signal.
struct Waits(Receiver<()>, Cell<bool>);

impl Reward for Waits {
    fn score(&self, answers: &[RewardInput<'_>]) -> Numbers {
        if self.1.replace(true) {
            self.0.recv_timeout(Duration::from_secs(60)).map_err(|_| "was not let".to_string())?;
        }
        Ok(answers.iter().map(|answer| Some((answer.tokens % 5) as f64)).collect())
    }
}

/// A step does not wait for the rewards of answers that a later step trains on; that step does.
#[test]
fn rewards_are_computed_while_steps_are_taken() {
    let (device, folder) = (Device::new(Arc::new(Cpu::new(1, None)), 1 << 30), family("llama31"));
    let from = format!("model.from={}", folder.display());
    let settings = SMALL.iter().copied().chain(["rl.behind=1", from.as_str()]).map(str::to_string);
    let recipe = library::load(library::layers("grpo", &settings.collect::<Vec<_>>())).unwrap().value;
    let trainer = with_values(&device, &folder, 0, (Sharding::NoShard, Refers::Not));
    let (lets, waits) = channel();
    let mut source = rolled(&recipe, Box::new(Apart::new(Waits(waits, Cell::new(false)))));
    source.step(&trainer).unwrap();
    // Pending answers are saved in checkpoints without rewards.
    let held = source.cursor().held.as_ref().unwrap();
    assert_eq!(
        (held["next"]["groups"].as_array().unwrap().len(), &held["next"]["sums"]),
        (4, &Value::from([0; 0]))
    );
    lets.send(()).unwrap();
    source.step(&trainer).unwrap();
    let metrics = source.reported().metrics;
    assert!(metrics["rewards_wait_s"] >= 0.0 && metrics["reward"] >= 0.0, "{metrics:?}");
    drop(lets);
    let error = source.step(&trainer).err().unwrap().to_string();
    assert!(error.contains("reward `length`: was not let"), "{error}");
}
