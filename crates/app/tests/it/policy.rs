//! Training on rewards: sampler and trainer are the same program.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use fathom_app::train::Order;
use fathom_app::{Error, Job, Silent, library, train};
use fathom_base::metrics::read_events;
use fathom_cpu::Cpu;
use fathom_engine::Writer;
use fathom_grad::{AdamWSettings, CpComm, Places};
use fathom_model::{Caps, Model, Rollout, RolloutRequest, RopeSpec, load, open};
use fathom_tensor::{DType, Device};
use fathom_text::Tokenizer;
use fathom_train::parallel::Ranks;
use fathom_train::policy::Policy;
use fathom_train::policy::pack::{Doc, Room, bins, stream};
use fathom_train::recipe::{PolicyName, RlTable};
use fathom_train::{Goal, InStep, MicroBatch, Outcome, StepResult, Trainer, Weigh};
use serde_json::Value;

/// Number of prompts in a test.
pub const PROMPTS: usize = 4;

/// Generates a model's answers to some of the four prompts, as documents; with `turns`, two turns each with other text
/// between them.
pub fn written(
    trainer: &Trainer,
    of: Range<usize>,
    temperature: f64,
    (chunk_tokens, sequences): (usize, usize),
    turns: bool,
) -> Vec<Doc> {
    let tokenizer = Tokenizer::train_bpe(std::iter::once("a b".to_string()), 256, &[]).unwrap();
    let writer = Writer { tokenizer: Rc::new(tokenizer), chunk_tokens, sequences };
    let vocab = trainer.model.spec.vocab as u32;
    let prompt = |index: u32| (0..5 + 9 * index).map(|at| (at * 7919 + index * 31 + 13) % vocab).collect();
    let prompts: Vec<Vec<u32>> = of.clone().map(|index| prompt(index as u32)).collect();
    let asked = RolloutRequest {
        seeds: of.map(|index| 3 + index as u64).collect(),
        answers: 2,
        max_tokens: 20,
        temperature,
        top_p: top_p(temperature),
        kept: top_p(temperature) < 1.0,
        prompts: prompts.clone(),
        ..RolloutRequest::default()
    };
    let weights = trainer.view();
    let groups = writer.rollout(weights, &asked).unwrap();
    let doc = |(prompt, written): (&Vec<u32>, fathom_model::RolloutAnswer)| Doc {
        ids: [&prompt[..], &written.ids].concat(),
        prompt: prompt.len(),
        advantages: vec![1.0; written.ids.len()],
        logps: written.logps,
        kept: written.kept,
        ..Doc::default()
    };
    let docs = prompts.iter().zip(groups);
    let docs = docs.flat_map(|(prompt, group)| group.into_iter().map(move |it| doc((prompt, it))));
    let mut docs: Vec<Doc> = docs.collect();
    if turns {
        for (at, doc) in docs.iter_mut().enumerate() {
            let before = doc.ids.len();
            doc.ids.extend((0..3 + at as u32 % 3).map(|id| (id * 5003 + 17) % vocab));
            doc.heard.push(before..doc.ids.len());
        }
        let prompts: Vec<Vec<u32>> = docs.iter().map(|doc| doc.ids.clone()).collect();
        let seeds = (0..prompts.len() as u64).collect();
        let groups = writer
            .rollout(weights, &RolloutRequest { prompts, seeds, answers: 1, max_tokens: 5, ..asked })
            .unwrap();
        for (doc, written) in docs.iter_mut().zip(groups.into_iter().flatten()) {
            doc.ids.extend(written.ids);
            doc.logps.extend(written.logps);
            doc.kept.extend(written.kept);
            doc.advantages = vec![1.0; doc.logps.len()];
        }
    }
    docs
}

/// At temperature 0.7, answers are sampled with top-p.
fn top_p(temperature: f64) -> f64 {
    if temperature == 0.7 { 0.8 } else { 1.0 }
}

/// Returns the metrics, by name, of a step over these documents that changes nothing.
fn measured(
    trainer: &mut Trainer,
    docs: &[Doc],
    temperature: f64,
    tokens: usize,
) -> Vec<(&'static str, f64)> {
    let rl = RlTable { loss: PolicyName::Dapo, temperature, top_p: top_p(temperature), ..RlTable::default() };
    let policy = rl.policy().unwrap();
    let docs: Vec<&Doc> = docs.iter().collect();
    let grid = *trainer.device.mesh.grid();
    let of = |bin: &Vec<usize>| {
        let mut micro = stream(&bin.iter().map(|at| docs[*at]).collect::<Vec<_>>(), true);
        if grid.tp * grid.cp > 1 {
            fill(&mut micro, tokens);
        }
        micro
    };
    let micro_batches: Vec<_> = bins(&docs, Room { tokens, docs: 8 }).iter().map(of).collect();
    let how = in_step(trainer, policy, AdamWSettings { lr: 0.0, ..AdamWSettings::default() });
    said(trainer.step(&micro_batches, &how).unwrap()).into_iter().skip(2).collect()
}

/// Returns the settings of a step that minimizes a policy's loss.
pub fn in_step(trainer: &Trainer, policy: Policy, adamw: AdamWSettings) -> InStep {
    InStep {
        ranks: Ranks {
            grid: *trainer.device.mesh.grid(),
            cp_comm: CpComm::AllGather,
            rank: trainer.device.mesh.rank(),
            ..Ranks::default()
        },
        goal: Goal { objective: Arc::new(policy), ..Goal::default() },
        adamw,
        ..InStep::plain(Places::linear().with_tiles(Some(128)), Caps { docs: 9, seq_tokens: 512 })
    }
}

/// Returns the results of a step of a policy's loss by name, with the loss and the norm first.
pub fn said(result: StepResult) -> Vec<(&'static str, f64)> {
    let mut said = vec![
        ("loss", f64::from(result.loss.wait_f32() / result.count.wait_f32())),
        ("norm", f64::from(result.norm.wait_f32())),
    ];
    let bytes = result.metrics.unwrap().wait();
    let numbers: Vec<f64> = bytes.as_chunks().0.iter().map(|x| f64::from(f32::from_le_bytes(*x))).collect();
    let policy = RlTable { loss: PolicyName::Dapo, ..RlTable::default() }.policy().unwrap();
    // All policies have the same metrics.
    let names = Weigh::metrics(&policy).iter().copied();
    said.extend(names.zip(numbers.chunks(2).map(|of| of[0] / of[1])));
    said
}

/// Pads a stream to `tokens`, as ranks that split its tokens require.
pub fn fill(micro: &mut MicroBatch, tokens: usize) {
    let from = micro.ids.len();
    micro.ids.resize(tokens, 0);
    micro.labels.resize(tokens, -100);
    // Learned positions are few, so the padding's positions repeat.
    micro.positions.extend((0..tokens - from).map(|at| (at % 32) as i32));
    micro.docs.push(from..tokens);
    let rolled = &mut micro.rolled;
    rolled.kept.resize(rolled.kept.len() / from * tokens, 0);
    for column in [&mut rolled.logps, &mut rolled.advantages, &mut rolled.values, &mut rolled.returns] {
        column.resize(column.len() / from * tokens, 0.0);
    }
}

/// Returns the metrics whose values are not those of on-policy data.
pub fn off_policy(
    trainer: &mut Trainer,
    docs: &[Doc],
    temperature: f64,
    tokens: usize,
) -> impl Iterator<Item = String> {
    let metrics = measured(trainer, docs, temperature, tokens).into_iter();
    metrics.filter_map(|(name, value)| {
        let wanted = match name {
            "token_mult_prob_error" | "probs_ratio" => 1.0,
            "sampling_logp_difference/mean" => 0.0,
            _ => return None,
        };
        (value != wanted).then(|| format!("{name} {value}"))
    })
}

/// The trainer computes the sampler's log-probability of each token bit for bit, regardless of the other requests, of
/// chunks and of packing, and also after other text in an episode of two turns.
#[test]
fn on_policy_the_ratio_is_one() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let (mut families, mut misses) = (0, Vec::new());
    for entry in fs::read_dir(golden).unwrap() {
        let folder = entry.unwrap().path();
        let opened = open(&folder).unwrap();
        // Rotary embeddings that depend on the length use the current length in generation, and the whole length in
        // training.
        // State-space layers are read in chunks in training, and token by token in generation: other bits.
        if opened.spec.ropes.iter().any(RopeSpec::looks_at_length) || opened.spec.has_states() {
            continue;
        }
        for dtype in [DType::F32, DType::Bf16] {
            let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 30);
            let (model, mut params) = Model::declare(&device, &opened.spec, dtype);
            load(&device, &model, &mut params, &opened.source).unwrap();
            let mut trainer = Trainer::new(&device, model, params);
            for (temperature, how, turns, tokens) in [(1.0, (1024, 0), false, 512), (0.7, (7, 3), true, 128)]
            {
                let docs = written(&trainer, 0..PROMPTS, temperature, how, turns);
                assert!(docs.iter().all(|doc| doc.answer() > 0 && doc.logps.len() == doc.answer()));
                let all = |doc: &Doc| doc.answer() * trainer.model.spec.vocab;
                let kept = |doc: &Doc| doc.kept.iter().map(|bits| bits.count_ones() as usize).sum();
                assert!(docs.iter().all(|doc| temperature == 1.0 || (1..all(doc)).contains(&kept(doc))));
                let at = format!("{} {dtype:?} at {temperature}", folder.display());
                misses.extend(
                    off_policy(&mut trainer, &docs, temperature, tokens).map(|it| format!("{at}: {it}")),
                );
            }
        }
        families += 1;
    }
    assert!(families >= 36, "{families}");
    assert!(misses.is_empty(), "{misses:#?}");
}

/// Makes a model, prompts and rewards in a folder.
pub(crate) fn prepare(folder: &Path) {
    prepare_with(folder, &[]);
}

/// [`prepare`], for a model with further settings.
pub(crate) fn prepare_with(folder: &Path, more: &[&str]) {
    let base = crate::small(folder, &[&["eval.enabled=false", "model.precision=f32"], more].concat());
    train(&base, &Order::default(), &Silent).unwrap();
    let rows: String =
        (0..12).map(|n| format!("{{\"prompt\": \"What is {n}?\", \"answer\": \"e\"}}\n")).collect();
    fs::write(folder.join("prompts.jsonl"), rows).unwrap();
    let reward = "[[reward]]\nname = \"has\"\nrule = \"regex\"\npattern = 'e'\n\
        [[reward]]\nname = \"short\"\nrule = \"length\"\nmax_tokens = 6\nweight = 0.5\n";
    fs::write(folder.join("reward.toml"), reward).unwrap();
}

pub(crate) fn job(folder: &Path, out: &str, more: &[&str]) -> Job {
    asked(folder, out, more).unwrap()
}

/// Makes a job of the prepared folder, or returns its error.
pub(crate) fn asked(folder: &Path, out: &str, more: &[&str]) -> Result<Job, Error> {
    let at = |name: &str| folder.join(name).display().to_string();
    let mut settings: Vec<String> = vec![
        "machine.kind=cpu".into(),
        "machine.threads=1".into(),
        format!("model.from={}", at("run")),
        format!("data.paths=[{:?}]", at("prompts.jsonl")),
        format!("rl.reward={}", at("reward.toml")),
        format!("run.out={}", at(out)),
    ];
    let small = [
        "rl.prompts=3",
        "rl.answers=4",
        "rl.max_answer_tokens=12",
        "stage.0.seq_tokens=64",
        "stage.0.samples_per_micro_batch=2",
        "stage.0.max_docs=4",
        "optimizer.lr=1e-3",
        "activations.tile_rows=128",
        "checkpoint.every_s=none",
    ];
    settings.extend(small.iter().chain(more).map(|setting| (*setting).to_string()));
    Job::new(library::load(library::layers("grpo", &settings))?, &Silent)
}

pub(crate) fn events(folder: &Path, kind: &str) -> Vec<Value> {
    let events = read_events(folder.join("metrics.jsonl")).unwrap();
    events.into_iter().filter(|event| event["event"] == kind).collect()
}

/// Returns the bits of the losses and norms of all steps, with the other metrics that are not times.
pub(crate) fn bits(folder: &Path) -> Vec<String> {
    let of = |step: &Value| {
        let metrics: Vec<String> = step["metrics"]
            .as_object()
            .unwrap()
            .iter()
            .filter(|(name, _)| {
                !name.ends_with("_s") && *name != "step_time" && *name != "rollout_peak_bytes"
            })
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        format!("{} {} {} {}", step["step"], step["loss_bits"], step["grad_norm"], metrics.join(" "))
    };
    events(folder, "step").iter().map(of).collect()
}

/// A run that is stopped and resumed has the bits of an uninterrupted one, also between two steps of one rollout.
#[test]
fn a_run_goes_on_with_the_same_answers() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    let more = ["stage.0.steps=7", "rl.minibatches=3", "rl.epochs=2", "rl.beta=0.02", "rl.top_p=0.9"];
    let whole = job(folder, "whole", &more);
    assert_eq!(train(&whole, &Order::default(), &Silent).unwrap().outcome, Outcome::Finished);
    let want = bits(&folder.join("whole"));
    assert_eq!(want.len(), 7);
    // A first rollout of six steps, and one step of a second.
    let first = events(&folder.join("whole"), "step").remove(0);
    let metric = |name: &str| first["metrics"][name].as_f64().unwrap();
    assert_eq!([metric("token_mult_prob_error"), metric("probs_ratio"), metric("kl")], [1.0, 1.0, 0.0]);
    assert!(metric("completions/mean_length") > 0.0 && metric("rewards/has/mean") <= 1.0);
    let rollouts = events(&folder.join("whole"), "rollout");
    assert_eq!(rollouts.iter().map(|it| it["step"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 7]);
    assert!(rollouts[0]["answers"][0]["prompt"].as_str().unwrap().starts_with("What is"));
    let cut = job(folder, "cut", &[&more[..], &["machine.fault=\"term rank 0 at step 3\""]].concat());
    let outcome = || train(&cut, &Order::default(), &Silent).unwrap().outcome;
    assert_eq!([outcome(), outcome()], [Outcome::Interrupted, Outcome::Finished]);
    assert_eq!(bits(&folder.join("cut")), want);
}

/// Passes are counted as by TRL's sampler: prompts that do not fill a rollout are left out of a pass.
#[test]
fn passes_over_prompts_have_as_many_steps_as_in_trl() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    let steps = |out: &str, more: &[&str]| {
        let short = ["rl.answers=2", "rl.max_answer_tokens=2"];
        let job = job(folder, out, &[&short[..], more].concat());
        assert_eq!(train(&job, &Order::default(), &Silent).unwrap().outcome, Outcome::Finished);
        events(&folder.join(out), "step").len()
    };
    // Twelve prompts give two rollouts of five in each of three passes; each rollout makes two steps.
    assert_eq!(steps("passes", &["rl.prompts=5", "rl.minibatches=2"]), 12);
    assert_eq!(steps("few", &["rl.prompts=16", "stage.0.epochs=1"]), 1);
    assert_eq!(steps("steps", &["rl.prompts=4", "stage.0.steps=2"]), 2);
}

/// A run on several ranks has the answers, rewards and losses of a run on one.
#[test]
fn a_run_over_ranks_is_that_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    let more = [
        "stage.0.steps=3",
        "rl.beta=0.02",
        "rl.kl_in=reward",
        "rl.dynamic_sampling=true",
        "stage.0.micro_batches=2",
        "rl.minibatches=2",
    ];
    let run = |out: &str, mesh: &[&str]| {
        let job = job(folder, out, &[&more[..], mesh].concat());
        assert_eq!(train(&job, &Order::default(), &Silent).unwrap().outcome, Outcome::Finished);
        let texts = |it: &Value| {
            let answers = it["answers"].as_array().unwrap();
            answers.iter().map(|answer| answer["text"].clone()).collect::<Vec<Value>>()
        };
        let texts: Vec<Vec<Value>> = events(&folder.join(out), "rollout").iter().map(texts).collect();
        let numbers: Vec<[f64; 5]> = events(&folder.join(out), "step")
            .iter()
            .map(|step| {
                let metric = |name: &str| step["metrics"][name].as_f64().unwrap_or(-1.0);
                let [loss, norm] = ["loss", "grad_norm"].map(|key| step[key].as_f64().unwrap());
                [loss, norm, metric("reward"), metric("completions/mean_length"), metric("probs_ratio")]
            })
            .collect();
        (texts, numbers)
    };
    let (texts, numbers) = run("one", &[]);
    assert!(texts.len() == 2 && numbers[0][2] != -1.0, "{numbers:?}");
    for (out, mesh) in [
        ("dp", &["mesh.dp=2"][..]),
        ("zero", &["mesh.dp=2", "mesh.sharding=optim_grads"]),
        ("parts", &["mesh.dp=2", "mesh.sharding=optim_grads_params"]),
        ("cp_parts", &["mesh.cp=2", "mesh.cp_comm_type=all_gather", "mesh.sharding=optim_grads_params"]),
        ("ring", &["mesh.cp=2"]),
    ] {
        let (found, others) = run(out, mesh);
        assert_eq!(found[0], texts[0], "{out}");
        for (a, b) in others.iter().zip(&numbers) {
            let near = a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 2e-5 * b.abs().max(1.0));
            assert!(near, "{out}: {others:?} {numbers:?}");
        }
    }
}

/// A reward model and a judge as rewards, on one and two ranks; answers of the judge without a number are counted.
#[test]
fn models_judge_answers() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    let at = |name: &str| folder.join(name).display().to_string();
    let row = |n: usize| {
        format!("{{\"prompt\": \"Is {n} one?\", \"chosen\": \" Yes {n}.\", \"rejected\": \" No.\"}}\n")
    };
    fs::write(folder.join("pairs.jsonl"), (0..8).map(row).collect::<String>()).unwrap();
    let settings = [
        "machine.kind=cpu".into(),
        "machine.threads=1".into(),
        format!("model.from={}", at("run")),
        format!("data.paths=[{:?}]", at("pairs.jsonl")),
        format!("run.out={}", at("scorer")),
        "model.precision=f32".into(),
        "data.held_out_share=0".into(),
        "stage.0.seq_tokens=128".into(),
        "stage.0.max_docs=32".into(),
        "stage.0.micro_batches=1".into(),
        "stage.0.epochs=2".into(),
    ];
    let scorer = Job::new(library::load(library::layers("reward", &settings)).unwrap(), &Silent).unwrap();
    train(&scorer, &Order::default(), &Silent).unwrap();
    let rule = "[[reward]]\nname = \"length\"\nrule = \"length\"\nmin_tokens = 2\nmax_tokens = 4\n";
    let judges = "[[reward]]\nname = \"score\"\nrule = \"model\"\nmodel = \"scorer\"\n\
        [[reward]]\nname = \"judge\"\nrule = \"judge\"\nmodel = \"run\"\nmax_tokens = 4\nextract = '<(\\d+)>'\n\
        template = \"{prompt} {answer} ({n}): \"\n";
    let reward = folder.join("reward.toml");
    fs::write(&reward, rule).unwrap();
    let rows: String = (0..6).map(|n| format!("{{\"prompt\": \"Is {n} one?\", \"n\": {n}}}\n")).collect();
    fs::write(folder.join("prompts.jsonl"), rows).unwrap();
    let more = ["stage.0.steps=1", "stage.0.micro_batches=2", "model.precision=f32", "rl.prompts=4"];
    let run = |out: &str, mesh: &str| {
        let job = job(folder, out, &[&more[..], &[mesh]].concat());
        train(&job, &Order::default(), &Silent).unwrap();
        let rollout = events(&folder.join(out), "rollout").remove(0);
        let answers = rollout["answers"].as_array().unwrap().iter();
        let answers = answers.map(|it| (it["text"].clone(), it["reward"].as_f64().unwrap()));
        (events(&folder.join(out), "step").remove(0), answers.collect::<Vec<(Value, f64)>>())
    };
    // Peaks of the pool: planned, and of the step.
    let peaks = |out: &str, step: &Value| {
        let planned = events(&folder.join(out), "plan").remove(0)["peak_live_bytes"].as_u64().unwrap();
        [planned, step["pool_peak_bytes"].as_u64().unwrap()]
    };
    let (step, _) = run("rule", "mesh.dp=1");
    let [planned, found] = peaks("rule", &step);
    fs::write(&reward, judges).unwrap();
    let (step, answers) = run("one", "mesh.dp=1");
    // Judging models are in memory during steps too.
    let [with, found_with] = peaks("one", &step);
    assert!(with > planned && with - planned == found_with - found, "{with} {planned} {found_with} {found}");
    let metric = |name: &str| step["metrics"][name].as_f64().unwrap();
    assert_eq!(metric("rewards/judge/failed"), 16.0, "{step}");
    assert!(metric("rewards/score/std") > 0.0 && metric("reward") == metric("rewards/score/mean"), "{step}");
    // The last bits of a model's score depend on the batch.
    let near = |(a, b): (&(Value, f64), &(Value, f64))| a.0 == b.0 && (a.1 - b.1).abs() < 1e-5;
    let found = run("dp", "mesh.dp=2").1;
    assert!(found.len() == answers.len() && found.iter().zip(&answers).all(near), "{found:?} {answers:?}");
    for (rule, said) in [
        ("rule = \"model\"\nmodel = \"run\"", "is a language model"),
        ("rule = \"judge\"\nmodel = \"scorer\"\ntemplate = \"{answer}\"", "is a reward model"),
        ("rule = \"model\"", "needs a `model`"),
        ("rule = \"model\"\nmodel = \"scorer\"\noutput = 1", "output is 1"),
        ("rule = \"judge\"\nmodel = \"run\"\ntemplate = \"rate it\"", "needs a `template`"),
        ("rule = \"judge\"\nmodel = \"run\"\ntemplate = \"{answer}{absent}\"", "{absent}"),
    ] {
        fs::write(&reward, format!("[[reward]]\nname = \"m\"\n{rule}\n")).unwrap();
        let job = job(folder, "bad", &more);
        let error = train(&job, &Order::default(), &Silent).err().unwrap().to_string();
        assert!(error.contains(said), "{rule}: {error}");
    }
}

/// Returns the settings of a run with several turns per episode, whose model has learned to end its answers.
fn with_turns(folder: &Path) -> Vec<String> {
    prepare(folder);
    let at = |name: &str| folder.join(name).display().to_string();
    let row = |n: usize| format!("{{\"prompt\": \"What is {n}?\", \"completion\": \" e\"}}\n");
    fs::write(folder.join("short.jsonl"), (0..12).map(row).collect::<String>()).unwrap();
    let settings = [
        "machine.kind=cpu".into(),
        "machine.threads=1".into(),
        format!("model.from={}", at("run")),
        format!("data.paths=[{:?}]", at("short.jsonl")),
        format!("run.out={}", at("ends")),
        "model.precision=f32".into(),
        "optimizer.lr=1e-2".into(),
        "data.held_out_share=0".into(),
        "eval.enabled=false".into(),
        "stage.0.seq_tokens=128".into(),
        "stage.0.max_docs=32".into(),
        "stage.0.micro_batches=1".into(),
        "stage.0.epochs=none".into(),
        "stage.0.steps=40".into(),
    ];
    let lesson = Job::new(library::load(library::layers("sft", &settings)).unwrap(), &Silent).unwrap();
    train(&lesson, &Order::default(), &Silent).unwrap();
    // The environment replies twice, crashes on one prompt, and gives rewards that depend on the turn.
    let script = "while read -r line; do case $line in *'What is 3?'*) exit 1;; *'\"turn\":2'*) echo '{\"end\":true,\"reward\":2}';; \
        *'\"turn\":1'*) echo '{\"text\":\" on\",\"reward\":1}';; *) echo '{\"text\":\" go\"}';; esac; done";
    vec![
        format!("model.from={}", at("ends")),
        format!("environment.command={:?}", ["sh", "-c", script]),
        "rl.turns=4".into(),
        "rl.shown=24".into(),
        "rl.prompts=6".into(),
        "stage.0.seq_tokens=96".into(),
        "stage.0.samples_per_micro_batch=2".into(),
        "stage.0.steps=4".into(),
        "rl.minibatches=3".into(),
    ]
}

fn leave() -> Order {
    Order { allow_processes: true, ..Order::default() }
}

/// Episodes of several turns with a process: on policy the ratio is one, replies of the process count nowhere, an
/// episode in which it crashes is left out, and a run stopped within a rollout, or on two replicas, gives the same.
#[test]
fn episodes_have_turns() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let turns = with_turns(folder);
    let job = |out: &str, more: &[&str]| {
        let turns: Vec<&str> = turns.iter().map(String::as_str).chain(more.iter().copied()).collect();
        job(folder, out, &turns)
    };
    assert_eq!(train(&job("whole", &[]), &leave(), &Silent).unwrap().outcome, Outcome::Finished);
    let want = bits(&folder.join("whole"));
    let first = events(&folder.join("whole"), "step").remove(0);
    let metric = |name: &str| first["metrics"][name].as_f64().unwrap_or(f64::NAN);
    assert_eq!([metric("token_mult_prob_error"), metric("probs_ratio")], [1.0, 1.0]);
    let ends = ["environment", "failed", "turns", "room", "truncated"]
        .map(|end| metric(&format!("episodes/end/{end}")));
    assert!((ends.iter().sum::<f64>() - 1.0).abs() < 1e-9 && ends[0] > 0.3, "{ends:?} {first}");
    assert_eq!(metric("num_valid_samples"), 24.0 * (1.0 - ends[1]));
    assert!(metric("episodes/turns/mean") > 1.5 && metric("episodes/turns/max") == 3.0, "{first}");
    // An answer has at most twelve tokens, and an episode has three answers.
    assert!(metric("completions/max_length") <= 36.0, "{first}");
    let shown = &events(&folder.join("whole"), "rollout").remove(0)["answers"];
    let shown: Vec<&Value> = shown.as_array().unwrap().iter().collect();
    let full = shown.iter().find(|it| it["rewards"]["environment"] == 3.0).unwrap();
    let text = full["text"].as_str().unwrap();
    assert!(text.contains("[tool]  go") && text.contains("[tool]  on"), "{text}");
    let cut = job("cut", &["machine.fault=\"term rank 0 at step 2\""]);
    let outcome = || train(&cut, &leave(), &Silent).unwrap().outcome;
    assert_eq!([outcome(), outcome()], [Outcome::Interrupted, Outcome::Finished]);
    assert_eq!(bits(&folder.join("cut")), want);
    // The batch of generation and the number of processes change no bit.
    let few = ["rl.sequences=3", "environment.processes=4"];
    train(&job("few", &few), &leave(), &Silent).unwrap();
    assert_eq!(bits(&folder.join("few")), want);
    // Two replicas have the same episodes.
    train(&job("dp", &["mesh.dp=2"]), &leave(), &Silent).unwrap();
    let texts = |out: &str| events(&folder.join(out), "rollout").remove(0)["answers"].clone();
    assert_eq!(texts("dp"), texts("whole"));
    let given = job("given", &["environment.failed_reward=-1", "stage.0.steps=1"]);
    train(&given, &leave(), &Silent).unwrap();
    let first = events(&folder.join("given"), "step").remove(0);
    assert_eq!(first["metrics"]["num_valid_samples"], 24.0);
    // The environment is the only reward, and a value head estimates it.
    let ppo = ["rl.reward=none", "rl.loss=ppo", "rl.advantage=gae", "stage.0.steps=3"];
    train(&job("ppo", &ppo), &leave(), &Silent).unwrap();
    let steps = events(&folder.join("ppo"), "step");
    assert!(steps.iter().all(|step| step["grad_norm"].as_f64().is_some_and(f64::is_finite)), "{steps:?}");
    for (more, said) in [
        (&["environment.command=[]"][..], "rl.turns"),
        (&["rl.overlong_tokens=4"], "rl.overlong_tokens"),
        (&["environment.command=[\"no-such-program\"]"], "cannot start no-such-program"),
    ] {
        let error = train(&job("bad", more), &leave(), &Silent).err().unwrap().to_string();
        assert!(error.contains(said), "{more:?}: {error}");
    }
    let error = train(&job("bad", &[]), &Order::default(), &Silent).err().unwrap().to_string();
    assert!(error.contains("--allow-processes") && error.contains("environment.command"), "{error}");
}

/// Refusals of a run, by key.
#[test]
fn what_cannot_be_learned_from_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    let refused = |more: &[&str]| {
        let error =
            asked(folder, "bad", more).and_then(|job| train(&job, &Order::default(), &Silent).map(drop));
        error.err().unwrap().to_string()
    };
    for (more, said) in [
        (&["rl.reward=none"][..], "rl.reward"),
        (&["rl.advantage=gae"], "rl.advantage"),
        (&["rl.max_answer_tokens=64"], "stage.0.seq_tokens"),
        (&["rl.max_answer_tokens=60"], "prompts.jsonl:1"),
        (&["rl.keep=9"], "rl.keep"),
    ] {
        let error = refused(more);
        assert!(error.contains(said), "{more:?}: {error}");
    }
    let reward = folder.join("reward.toml");
    fs::write(&reward, "[[reward]]\nname = \"right\"\nkey = \"solution\"\n").unwrap();
    let error = refused(&[]);
    assert!(error.contains("`right`") && error.contains("`solution`"), "{error}");
    fs::write(&reward, "[[reward]]\nname = \"p\"\nrule = \"process\"\ncommand = [\"cat\"]\n").unwrap();
    assert!(refused(&[]).contains("--allow-processes"));
}
