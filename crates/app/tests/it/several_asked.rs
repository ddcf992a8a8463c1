//! Several adapters in one run with other models, rewards or a time limit: each still equals its own run, bit for bit.

use std::borrow::Cow;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use fathom_app::plan::PlanOptions;
use fathom_app::several::jobs;
use fathom_app::train::Order;
use fathom_app::{Job, Silent, library, plan, train};
use fathom_base::metrics::read_events;
use fathom_cpu::Cpu;
use fathom_model::{Init, Model, ModelView, adapt, initialise, open, share_untrained};
use fathom_tensor::{DType, Device};
use fathom_train::policy::planned;
use fathom_train::recipe::{AdapterName, NamedAdapter, Recipe};
use fathom_train::{Outcome, Trainer, Workload, adapted, frozen, stage};

use crate::TextSink;
use crate::policy::{bits, prepare};
use crate::policy_mesh::{Length, SMALL, family, rolled, writer};
use crate::several::warned;

/// Returns a recipe with two adapters in tables, each with its own lines.
fn tables(common: &str, folder: &Path, [first, second]: [(&str, &str); 2]) -> String {
    let one = |name: &str, (rows, more): (&str, &str)| {
        let path = folder.join(rows).display().to_string();
        format!("[[adapters]]\nname = \"{name}\"\npaths = [{path:?}]\n{more}\n")
    };
    format!(
        "{common}\n[adapter]\nmethod = \"lora\"\nrank = 4\n{}{}",
        one("first", first),
        one("second", second)
    )
}

/// Makes the job of a recipe file over the model of `small`.
fn job(folder: &Path, (recipe, out): (&str, &str), more: &[String]) -> Job {
    let at = |name: &str| folder.join(name).display().to_string();
    let mut settings = vec![format!("model.from={}", at("run")), format!("run.out={}", at(out))];
    let small = [
        "machine.kind=cpu",
        "machine.threads=1",
        "model.precision=f32",
        "optimizer.lr=3e-3",
        "activations.tile_rows=128",
        "checkpoint.every_s=none",
        "eval.enabled=false",
    ];
    settings.extend(small.into_iter().map(str::to_string).chain(more.iter().cloned()));
    Job::new(library::load(library::layers(&at(recipe), &settings)).unwrap(), &Silent).unwrap()
}

fn texts(settings: &[&str]) -> Vec<String> {
    settings.iter().map(ToString::to_string).collect()
}

/// Returns the bits of all steps in a folder.
fn steps(folder: &Path) -> Vec<String> {
    let events = read_events(folder.join("metrics.jsonl")).unwrap();
    let steps = events.iter().filter(|event| event["event"] == "step");
    steps.map(|step| format!("{} {} {}", step["step"], step["loss_bits"], step["grad_norm"])).collect()
}

/// Trains both adapters of `two.toml`, and each alone by `one.toml`: the steps are equal, and no peak gives a warning.
fn as_alone(folder: &Path, what: &str, common: &[String], alone: [Vec<String>; 2]) {
    let heard = TextSink::default();
    let both = job(folder, ("two.toml", &format!("both {what}")), common);
    assert_eq!(train(&both, &Order::default(), &heard).unwrap().outcome, Outcome::Finished, "{what}");
    let others = heard.all().matches("went back to step").count();
    assert_eq!(warned(&heard.all()), others, "{what} {}", heard.all());
    for (name, own) in ["first", "second"].into_iter().zip(alone) {
        let out = format!("{name} {what}");
        let one = job(folder, ("one.toml", &out), &[common, &own[..]].concat());
        train(&one, &Order::default(), &Silent).unwrap();
        let found = steps(&both.folder.join("each").join(name));
        assert!(found.len() > 3 && found == steps(&folder.join(&out)), "{what} {name}");
        let weights = |folder: &Path| fs::read(folder.join("adapter_model.safetensors")).unwrap();
        let own = weights(&folder.join(&out).join("adapter"));
        assert!(weights(&both.folder.join("adapter").join(name)) == own, "{what} {name}");
    }
}

/// Makes a base with two key heads, and a wider model with the same tokenizer.
fn models(folder: &Path) -> String {
    let plain = ["eval.enabled=false", "model.precision=f32", "model.kv_heads=2"];
    train(&crate::small(folder, &plain), &Order::default(), &Silent).unwrap();
    let other = folder.join("other");
    fs::create_dir(&other).unwrap();
    let tokenizer = format!("data.tokenizer={}", folder.join("run/model").display());
    let more = ["model.ffn=192", "run.seed=11", tokenizer.as_str()];
    let other = crate::small(&other, &[&plain[..], &more].concat());
    train(&other, &Order::default(), &Silent).unwrap();
    other.folder.display().to_string()
}

const LESSONS: [&str; 7] = [
    "data.held_out_share=0",
    "stage.0.seq_tokens=128",
    "stage.0.samples_per_micro_batch=1",
    "stage.0.max_docs=16",
    "stage.0.micro_batches=2",
    "stage.0.epochs=none",
    "stage.0.steps=4",
];

/// Settings of the second adapter.
const DORA: &str = "method = \"dora\"\ntargets = [\"q_proj\", \"down_proj\"]";

#[test]
fn adapters_share_a_teacher_and_a_copy() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let teacher = models(folder);
    for (name, word) in [("a", "stone"), ("b", "river")] {
        let row =
            |n: usize| format!("{{\"prompt\": \"What is {n}?\", \"completion\": \" the {word} {n}\"}}\n");
        fs::write(folder.join(format!("{name}.jsonl")), (0..32).map(row).collect::<String>()).unwrap();
        let pair = |n: usize| {
            format!("{{\"prompt\": \"Is {n}?\", \"chosen\": \" {word} {n}.\", \"rejected\": \" No.\"}}\n")
        };
        fs::write(folder.join(format!("{name}-pairs.jsonl")), (0..32).map(pair).collect::<String>()).unwrap();
    }
    let alone = |rows: [&str; 2]| {
        let paths = rows.map(|rows| format!("data.paths=[{:?}]", folder.join(rows).display().to_string()));
        let [first, second] = paths;
        let dora = ["adapter.method=dora", "adapter.targets=q_proj,down_proj"].map(str::to_string);
        [vec![first], [vec![second], dora.to_vec()].concat()]
    };
    let recipes = |extends: &str, rows: [&str; 2]| {
        let common = format!("extends = \"{extends}\"");
        let two = tables(&common, folder, [(rows[0], ""), (rows[1], DORA)]);
        fs::write(folder.join("two.toml"), two).unwrap();
        let one = format!("{common}\n[adapter]\nmethod = \"lora\"\nrank = 4\n");
        fs::write(folder.join("one.toml"), one).unwrap();
    };
    let rows = ["a.jsonl", "b.jsonl"];
    recipes("distill", rows);
    let teacher = format!("objective.teacher={teacher}");
    for (what, more) in [
        ("taught", &[][..]),
        ("best", &["objective.top_k=4"]),
        (
            "failed",
            &[
                "mesh.dp=2",
                "mesh.sharding=optim_grads_params",
                "mesh.restarts=2",
                "machine.fault=\"kill rank 1 at step 3\"",
                "checkpoint.memory_every_steps=2",
            ],
        ),
    ] {
        let common = [texts(&LESSONS), vec![teacher.clone()], texts(more)].concat();
        as_alone(folder, what, &common, alone(rows));
    }
    let rows = ["a-pairs.jsonl", "b-pairs.jsonl"];
    recipes("dpo", rows);
    let common = [texts(&LESSONS), texts(&["objective.reference=copy"])].concat();
    as_alone(folder, "compared", &common, alone(rows));
    // Each has the head of its own reward model.
    recipes("reward", rows);
    as_alone(folder, "judges", &texts(&LESSONS), alone(rows));
    recipes("dpo", rows);
    // The teacher is in memory once: both adapters together need only the second one's own memory in addition.
    let loaded =
        |more: &[&str]| job(folder, ("two.toml", "plan"), &[texts(&LESSONS), texts(more)].concat()).loaded;
    let peak = |job: &Job| plan(job, None).unwrap().draft(0).plan().unwrap().usage.peak_live;
    let of = |more: &[&str], which: &[usize]| peak(&jobs(&loaded(more), which, &Silent).unwrap()[0]);
    let [copied, column] = [["objective.reference=copy"], ["objective.reference=column"]]
        .map(|more| of(&more, &[0, 1]) - of(&more, &[0]));
    assert_eq!(copied, column);
}

#[test]
fn adapters_have_a_time_together() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let plain = ["eval.enabled=false", "model.precision=f32"];
    train(&crate::small(folder, &plain), &Order::default(), &Silent).unwrap();
    let row = |n: usize| format!("{{\"prompt\": \"What is {n}?\", \"completion\": \" the stone {n}\"}}\n");
    fs::write(folder.join("a.jsonl"), (0..32).map(row).collect::<String>()).unwrap();
    let two = tables("extends = \"lora\"", folder, [("a.jsonl", ""), ("a.jsonl", DORA)]);
    fs::write(folder.join("two.toml"), two).unwrap();
    let more = ["stage.0.steps=none", "run.minutes=0.05", "machine.fault=\"term rank 0 at step 6\""];
    let timed = job(folder, ("two.toml", "timed"), &[texts(&LESSONS), texts(&more)].concat());
    // Both are asked to stop once, after their first steps, and resume with the number of steps that was decided.
    let ends: Vec<Outcome> =
        (0..4).map(|_| train(&timed, &Order::default(), &Silent).unwrap().outcome).collect();
    assert_eq!((ends[0], ends[3]), (Outcome::Interrupted, Outcome::Finished), "{ends:?}");
    for name in ["first", "second"] {
        let own = timed.folder.join("each").join(name);
        let decided: Vec<usize> =
            serde_json::from_str(&fs::read_to_string(own.join("steps.json")).unwrap()).unwrap();
        assert_eq!(decided, [steps(&own).len()], "{name}");
        assert!(timed.folder.join("adapter").join(name).is_dir());
    }
}

/// Returns the common settings of two adapters with their own prompts and rewards, and the settings of each alone.
fn of_rewards(folder: &Path, short: &str) -> (Vec<String>, [(&'static str, Vec<String>); 2]) {
    prepare(folder);
    let rows: String = (0..9).map(|n| format!("{{\"prompt\": \"Say {n}:\"}}\n")).collect();
    fs::write(folder.join("other.jsonl"), rows).unwrap();
    fs::write(folder.join("short.toml"), short).unwrap();
    let at = |name: &str| folder.join(name).display().to_string();
    let reward = |file: &str| format!("reward = {:?}\n", at(file));
    let own = format!("{}{DORA}", reward("short.toml"));
    let common = format!("extends = \"grpo\"\n[rl]\nreward = {:?}", at("reward.toml"));
    let two = tables(&common, folder, [("prompts.jsonl", ""), ("other.jsonl", &own)]);
    fs::write(folder.join("two.toml"), &two).unwrap();
    fs::write(folder.join("one.toml"), "extends = \"grpo\"\n[adapter]\nmethod = \"lora\"\nrank = 4\n")
        .unwrap();
    let small = texts(&[
        "rl.prompts=3",
        "rl.answers=4",
        "rl.max_answer_tokens=12",
        "rl.minibatches=2",
        "rl.beta=0.02",
        "stage.0.seq_tokens=64",
        "stage.0.samples_per_micro_batch=2",
        "stage.0.max_docs=4",
        "stage.0.steps=4",
        "optimizer.lr=1e-3",
    ]);
    let [prompts, other] =
        ["prompts.jsonl", "other.jsonl"].map(|name| format!("data.paths=[{:?}]", at(name)));
    let [first, second] = ["reward.toml", "short.toml"].map(|name| format!("rl.reward={}", at(name)));
    let dora = texts(&["adapter.method=dora", "adapter.targets=q_proj,down_proj"]);
    (small, [("first", vec![prompts, first]), ("second", [vec![other, second], dora].concat())])
}

/// A reward for short answers.
const SHORT: &str = "[[reward]]\nname = \"short\"\nrule = \"length\"\nmax_tokens = 4\n";

/// Each adapter has the answers, steps and tensors of its own run.
fn answer_as_alone(folder: &Path, what: &str, common: &[String], alone: &[(&str, Vec<String>); 2]) {
    let both = job(folder, ("two.toml", &format!("both {what}")), common);
    let heard = TextSink::default();
    assert_eq!(train(&both, &Order::default(), &heard).unwrap().outcome, Outcome::Finished);
    let went_back = heard.all().matches("went back to step").count();
    assert_eq!(warned(&heard.all()), went_back, "{what} {}", heard.all());
    for (name, own) in alone {
        let one = job(folder, ("one.toml", &format!("{name} {what}")), &[common, own].concat());
        train(&one, &Order::default(), &Silent).unwrap();
        let wanted = bits(&one.folder);
        assert_eq!(wanted.len(), 4);
        assert_eq!(bits(&both.folder.join("each").join(name)), wanted, "{what} {name}");
        let weights = |folder: &Path| fs::read(folder.join("adapter_model.safetensors")).unwrap();
        let found = weights(&both.folder.join("adapter").join(name));
        assert!(found == weights(&one.folder.join("adapter")), "{what} {name}");
    }
}

/// Interrupted at a step of each adapter within a rollout and resumed, each has the bits of the run `whole`.
fn go_on(folder: &Path, (what, whole): (&str, &str), common: &[String]) {
    let fault = texts(&["machine.fault=\"term rank 0 at step 3\""]);
    let cut = job(folder, ("two.toml", what), &[common, &fault].concat());
    let ends: Vec<Outcome> =
        (0..4).map(|_| train(&cut, &Order::default(), &Silent).unwrap().outcome).collect();
    assert_eq!((ends[0], ends[3]), (Outcome::Interrupted, Outcome::Finished), "{ends:?}");
    for name in ["first", "second"] {
        let each = |out: &str| bits(&folder.join(out).join("each").join(name));
        assert_eq!(each(what), each(whole), "{name}");
    }
}

/// Each adapter has its own prompts and rewards, and the answers and steps of its own run.
#[test]
fn adapters_learn_from_rewards_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (small, alone) = of_rewards(folder, SHORT);
    for mesh in ["mesh.dp=1", "mesh.dp=2"] {
        answer_as_alone(folder, mesh, &[&small[..], &texts(&[mesh])].concat(), &alone);
    }
    go_on(folder, ("cut", "both mesh.dp=1"), &small);
    judges_are_planned(folder, &small, SHORT);
}

/// Each adapter's value head equals that of its own run, and is included in the plan.
#[test]
fn adapters_have_value_heads_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (small, alone) = of_rewards(folder, SHORT);
    let ppo = texts(&["rl.loss=ppo", "rl.advantage=gae", "rl.kl=k1", "rl.kl_in=reward"]);
    let common = [&small[..], &ppo].concat();
    for (what, more) in [
        ("one", &[][..]),
        ("dp", &["mesh.dp=2", "mesh.sharding=optim_grads_params"]),
        ("pp", &["mesh.pp=2"]),
        ("disk", &["machine.offload_optimizer=true", "activations.offload_modules=all"]),
        (
            "failed",
            &[
                "mesh.dp=2",
                "mesh.restarts=2",
                "machine.fault=\"kill rank 1 at step 3\"",
                "checkpoint.memory_every_steps=2",
            ],
        ),
    ] {
        answer_as_alone(folder, what, &[&common[..], &texts(more)].concat(), &alone);
    }
    go_on(folder, ("cut", "both one"), &common);
}

/// A judge of the second adapter is in memory while the first generates, and a judge that both use is there once.
fn judges_are_planned(folder: &Path, small: &[String], short: &str) {
    let judge = "[[reward]]\nname = \"j\"\nrule = \"judge\"\nmodel = \"run\"\nmax_tokens = 4\nextract = '<(\\d+)>'\n\
        template = \"{prompt} {answer}: \"\n";
    let rollout = |which: &[usize]| {
        let loaded = job(folder, ("two.toml", "plan"), small).loaded;
        let first = jobs(&loaded, which, &Silent).unwrap().remove(0);
        let plans = plan(&first, None).unwrap();
        let planned = plans.stages(PlanOptions::default(), &Silent).next().unwrap().unwrap();
        planned.figures.rollout.as_ref().unwrap().peak_live
    };
    let write = |[first, second]: [&str; 2]| {
        fs::write(folder.join("reward.toml"), first).unwrap();
        fs::write(folder.join("short.toml"), second).unwrap();
        rollout(&[0, 1])
    };
    let plain = write([short, short]);
    assert!(plain > rollout(&[0]));
    assert!(write([short, judge]) > plain + (64 << 10));
    assert_eq!(write([judge, short]), write([judge, judge]));
    let judged = job(folder, ("two.toml", "judged"), &[small, &texts(&["stage.0.steps=1"])].concat());
    assert_eq!(train(&judged, &Order::default(), &Silent).unwrap().outcome, Outcome::Finished);
}

/// The planned peak of a rollout next to the weights and state of another adapter equals the measured one, to the byte.
#[test]
fn rollouts_of_adapters_need_what_is_planned() {
    let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 30);
    let folder = family("llama31");
    let from = format!("model.from={}", folder.display());
    let settings = SMALL.iter().copied().chain(["adapter.method=lora", "adapter.rank=4", from.as_str()]);
    let settings: Vec<String> = settings.map(str::to_string).collect();
    let mut recipe = library::load(library::layers("grpo", &settings)).unwrap().value;
    let (name, method) = ("other".into(), Some(AdapterName::Dora));
    recipe.adapters = vec![NamedAdapter { name, method, rank: Some(8), ..NamedAdapter::default() }];
    let base = open(&folder).unwrap().spec;
    let (plain, mut params) = Model::declare(&device, &base, DType::F32);
    initialise(&device, &plain, &mut params, Init { deviation: 0.05, seed: 3 });
    let trainer = |recipe: &Recipe| {
        let spec = adapted(recipe, base.clone()).unwrap();
        let (mut model, mut params) =
            share_untrained(ModelView { device: &device, model: &plain, params: &params }, &spec);
        adapt(&device, &model, &mut params, 5).unwrap();
        frozen(&mut model, &mut params, &stage::trained(recipe).unwrap()).unwrap();
        let sharding = stage::ranks(recipe, 0).unwrap().sharding;
        let mut trainer = Trainer::sharded(&device, model, params, sharding, stage::moments(recipe));
        trainer.make_sums(&stage::in_step(recipe, 0).unwrap());
        trainer
    };
    let first = trainer(&recipe);
    let peak = || {
        let mut source = rolled(&recipe, Box::new(Length));
        source.step(&first).unwrap();
        source.reported().metrics["rollout_peak_bytes"] as u64
    };
    let planned = |recipe: &Recipe| {
        let how = stage::in_step_among(recipe, 0, &first.model.spec).unwrap();
        let (profile, spec) = (&device.machine.profile().clone(), Cow::Owned(first.model.spec.clone()));
        let work = Workload { profile, spec, dtype: DType::F32, how, micro_batches: 1, tokens: 128 };
        planned(&work, &recipe.rl, 64, &writer(), &|_| Ok(Vec::new())).unwrap().peak_live
    };
    let alone = Recipe { adapters: Vec::new(), ..recipe.clone() };
    assert_eq!(peak(), planned(&alone));
    let others: Vec<Trainer> = recipe.over_same_base().map(|other| trainer(&other)).collect();
    assert_eq!(peak(), planned(&recipe));
    assert!(others.len() == 1 && planned(&recipe) > planned(&alone));
}
