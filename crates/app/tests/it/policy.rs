//! Learning from rewards: sampler and trainer are the same program.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use fathom_app::train::Order;
use fathom_app::{Job, Silent, library, train};
use fathom_base::metrics::read_events;
use fathom_cpu::Cpu;
use fathom_engine::Writer;
use fathom_grad::{AdamWSettings, OnDisk, Places};
use fathom_model::{Asked, Caps, Model, Rollout, RopeSpec, Weights, load, open};
use fathom_tensor::{DType, Device};
use fathom_text::Tokenizer;
use fathom_train::parallel::Ranks;
use fathom_train::policy::pack::{Doc, Room, bins, stream};
use fathom_train::recipe::{PolicyName, RlTable};
use fathom_train::{Goal, InStep, MicroBatch, Outcome, Trainer, Weigh};
use serde_json::Value;

/// Prompts of a test.
const PROMPTS: usize = 4;

/// Answers of a model to some of four prompts, as documents.
fn written(
    trainer: &Trainer,
    of: Range<usize>,
    temperature: f64,
    chunk_tokens: usize,
    sequences: usize,
) -> Vec<Doc> {
    let tokenizer = Tokenizer::train_bpe(std::iter::once("a b".to_string()), 256, &[]).unwrap();
    let writer = Writer { tokenizer: Rc::new(tokenizer), chunk_tokens, sequences };
    let vocab = trainer.model.spec.vocab as u32;
    let prompt = |index: u32| (0..5 + 9 * index).map(|at| (at * 7919 + index * 31 + 13) % vocab).collect();
    let prompts: Vec<Vec<u32>> = of.clone().map(|index| prompt(index as u32)).collect();
    let asked = Asked {
        seeds: of.map(|index| 3 + index as u64).collect(),
        answers: 2,
        max_tokens: 20,
        temperature,
        top_p: 1.0,
        prompts: prompts.clone(),
        ..Asked::default()
    };
    let weights = Weights { device: &trainer.device, model: &trainer.model, params: &trainer.params };
    let groups = writer.rollout(weights, &asked).unwrap();
    let doc = |(prompt, written): (&Vec<u32>, fathom_model::Written)| Doc {
        ids: [&prompt[..], &written.ids].concat(),
        prompt: prompt.len(),
        advantages: vec![1.0; written.ids.len()],
        logps: written.logps,
        ..Doc::default()
    };
    prompts
        .iter()
        .zip(groups)
        .flat_map(|(prompt, group)| group.into_iter().map(move |it| doc((prompt, it))))
        .collect()
}

/// The metrics of a step that changes nothing over these documents, by name.
fn measured(
    trainer: &mut Trainer,
    docs: &[Doc],
    temperature: f64,
    tokens: usize,
) -> Vec<(&'static str, f64)> {
    let policy = RlTable { loss: PolicyName::Dapo, temperature, ..RlTable::default() }.policy().unwrap();
    let docs: Vec<&Doc> = docs.iter().collect();
    let grid = *trainer.device.mesh.grid();
    let of = |bin: &Vec<usize>| {
        let mut micro = stream(&bin.iter().map(|at| docs[*at]).collect::<Vec<_>>(), true);
        if grid.tp > 1 {
            fill(&mut micro, tokens);
        }
        micro
    };
    let micro_batches: Vec<_> = bins(&docs, Room { tokens, docs: 8 }).iter().map(of).collect();
    let how = InStep {
        places: Places::linear().with_tiles(Some(128)),
        on_disk: OnDisk::default(),
        caps: Caps { docs: 9, seq_tokens: 512 },
        ranks: Ranks { grid, ..Ranks::default() },
        narrow: None,
        round_to: None,
        z_loss: 0.0,
        goal: Goal { objective: Arc::new(policy), ..Goal::default() },
        adamw: AdamWSettings { lr: 0.0, ..AdamWSettings::default() },
    };
    let result = trainer.step(&micro_batches, &how).unwrap();
    let bytes = result.metrics.unwrap().wait();
    let numbers: Vec<f64> = bytes.as_chunks().0.iter().map(|x| f64::from(f32::from_le_bytes(*x))).collect();
    Weigh::metrics(&policy).iter().copied().zip(numbers.chunks(2).map(|of| of[0] / of[1])).collect()
}

/// Fills a stream up, as ranks that share its tokens want it.
fn fill(micro: &mut MicroBatch, tokens: usize) {
    let from = micro.ids.len();
    micro.ids.resize(tokens, 0);
    micro.labels.resize(tokens, -100);
    micro.positions.extend(0..(tokens - from) as i32);
    micro.docs.push(from..tokens);
}

/// What of these metrics is not as it is on policy.
fn off_policy(
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

/// What the engine said of each token that it sampled is what the trainer says of it, bit for bit: whatever was written beside it, in
/// whatever chunks, and however it is packed.
#[test]
fn on_policy_the_ratio_is_one() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let (mut families, mut misses) = (0, Vec::new());
    for entry in fs::read_dir(golden).unwrap() {
        let folder = entry.unwrap().path();
        let opened = open(&folder).unwrap();
        // Rotary embeddings by a sequence's length are those of a text as it grows, and in training of the whole.
        if opened.spec.ropes.iter().any(RopeSpec::looks_at_length) {
            continue;
        }
        for dtype in [DType::F32, DType::Bf16] {
            let device = Device::new(Arc::new(Cpu::new(2, None)), 1 << 30);
            let (model, mut params) = Model::declare(&device, &opened.spec, dtype);
            load(&device, &model, &mut params, &opened.source).unwrap();
            let mut trainer = Trainer::new(&device, model, params);
            for (temperature, chunk_tokens, sequences, tokens) in [(1.0, 1024, 0, 512), (0.7, 7, 3, 100)] {
                let docs = written(&trainer, 0..PROMPTS, temperature, chunk_tokens, sequences);
                assert!(docs.iter().all(|doc| doc.answer() > 0 && doc.logps.len() == doc.answer()));
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

/// A model, prompts and rewards in a folder.
fn prepare(folder: &Path) {
    let base = crate::small(folder, &["eval.enabled=false", "model.precision=f32"]);
    train(&base, &Order::default(), &Silent).unwrap();
    let rows: String =
        (0..12).map(|n| format!("{{\"prompt\": \"What is {n}?\", \"answer\": \"e\"}}\n")).collect();
    fs::write(folder.join("prompts.jsonl"), rows).unwrap();
    let reward = "[[reward]]\nname = \"has\"\nrule = \"regex\"\npattern = 'e'\n\
        [[reward]]\nname = \"short\"\nrule = \"length\"\nmax_tokens = 6\nweight = 0.5\n";
    fs::write(folder.join("reward.toml"), reward).unwrap();
}

fn job(folder: &Path, out: &str, more: &[&str]) -> Job {
    let at = |name: &str| folder.join(name).display().to_string();
    let mut settings: Vec<String> = vec![
        "machine.kind=cpu".into(),
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
    Job::new(library::load(library::layers("grpo", &settings)).unwrap(), &Silent).unwrap()
}

fn events(folder: &Path, kind: &str) -> Vec<Value> {
    let events = read_events(folder.join("metrics.jsonl")).unwrap();
    events.into_iter().filter(|event| event["event"] == kind).collect()
}

/// Bits of losses and weights' norms of all steps, with what was measured that is not a time.
fn bits(folder: &Path) -> Vec<String> {
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

/// A run that is asked to stop at a step and goes on has the bits of one that was not, also between two steps of one rollout.
#[test]
fn a_run_goes_on_with_the_same_answers() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    let more = ["stage.0.steps=7", "rl.minibatches=3", "rl.epochs=2", "rl.beta=0.02"];
    let whole = job(folder, "whole", &more);
    assert_eq!(train(&whole, &Order::default(), &Silent).unwrap().outcome, Outcome::Finished);
    let want = bits(&folder.join("whole"));
    assert_eq!(want.len(), 7);
    // A first rollout of six steps, and one of a second.
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

/// A run over ranks has the answers, rewards and losses of a run on one.
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
    for (out, mesh) in [("dp", &["mesh.dp=2"][..]), ("zero", &["mesh.dp=2", "mesh.sharding=optim_grads"])] {
        let (found, others) = run(out, mesh);
        assert_eq!(found[0], texts[0], "{out}");
        for (a, b) in others.iter().zip(&numbers) {
            let near = a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 2e-5 * b.abs().max(1.0));
            assert!(near, "{out}: {others:?} {numbers:?}");
        }
    }
    for (mesh, said) in [
        (&["mesh.dp=2", "mesh.sharding=optim_grads_params"][..], "mesh.sharding"),
        (&["mesh.pp=2"], "mesh.pp"),
        (&["mesh.dp=2", "rl.loss=ppo", "rl.advantage=gae"], "mesh.dp"),
    ] {
        let job = job(folder, "bad", &[&more[..], mesh].concat());
        let error = train(&job, &Order::default(), &Silent).err().unwrap().to_string();
        assert!(error.contains(said), "{error}");
    }
}

/// A reward model and a judge as rewards, over one rank and two; a judge that writes no number is counted.
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
    let judges = "[[reward]]\nname = \"score\"\nrule = \"model\"\nmodel = \"scorer\"\n\
        [[reward]]\nname = \"judge\"\nrule = \"judge\"\nmodel = \"run\"\nmax_tokens = 4\nextract = '<(\\d+)>'\n\
        template = \"{prompt} {answer} ({n}): \"\n";
    let reward = folder.join("reward.toml");
    fs::write(&reward, judges).unwrap();
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
    let (step, answers) = run("one", "mesh.dp=1");
    let metric = |name: &str| step["metrics"][name].as_f64().unwrap();
    assert_eq!(metric("rewards/judge/failed"), 16.0, "{step}");
    assert!(metric("rewards/score/std") > 0.0 && metric("reward") == metric("rewards/score/mean"), "{step}");
    // What a model says of an answer depends in its last bits on those that are read beside it.
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

/// What a run refuses, by key.
#[test]
fn what_cannot_be_learned_from_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    let refused = |more: &[&str]| {
        let job = job(folder, "bad", more);
        train(&job, &Order::default(), &Silent).err().unwrap().to_string()
    };
    for (more, said) in [
        (&["rl.reward=none"][..], "rl.reward"),
        (&["rl.top_p=0.9"], "rl.top_p"),
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

/// Every recipe makes steps; rejection learns the best of each group.
#[test]
fn every_method_makes_steps() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    for (name, more) in [
        ("dapo", &["rl.dynamic_sampling=true", "rl.dynamic_rounds=2", "rl.overlong_tokens=4"][..]),
        ("gspo", &["rl.loss=gspo", "rl.beta=0.1", "rl.kl_corrected=true"]),
        (
            "rloo",
            &["rl.loss=rloo", "rl.advantage=leave_one_out", "rl.beta=0.1", "rl.kl=k1", "rl.kl_in=reward"],
        ),
        ("reinforce", &["rl.loss=reinforce", "rl.advantage=reinforce_pp", "rl.mask_truncated=true"]),
        (
            "ppo",
            &["rl.loss=ppo", "rl.advantage=gae", "rl.epochs=2", "rl.beta=0.1", "rl.kl=k1", "rl.kl_in=reward"],
        ),
        ("rejection", &["rl.loss=rejection", "rl.keep=2", "rl.top_p=0.9"]),
    ] {
        let job = job(folder, name, &[&["stage.0.steps=2"], more].concat());
        train(&job, &Order::default(), &Silent).unwrap();
        let steps = events(&folder.join(name), "step");
        assert_eq!(steps.len(), 2, "{name}");
        assert!(steps.iter().all(|step| step["loss"].is_number() && step["grad_norm"].is_number()), "{name}");
    }
}
