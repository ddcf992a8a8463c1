//! Several adapters in one run: each equals its own run, bit for bit.

use std::fs;
use std::path::Path;

use fathom_app::several::planned;
use fathom_app::train::Order;
use fathom_app::{Job, Silent, library, plan, train};
use fathom_base::metrics::read_events;
use fathom_train::Outcome;

use crate::TextSink;

/// Makes the job of a small run of a recipe file over the model of `small`.
pub fn job(folder: &Path, recipe: &str, out: &str, more: &[&str]) -> fathom_app::Result<Job> {
    let at = |name: &str| folder.join(name).display().to_string();
    let own = [format!("model.from={}", at("run")), format!("run.out={}", at(out))];
    let small = [
        "machine.kind=cpu",
        "machine.threads=1",
        "model.precision=f32",
        "data.held_out_share=0",
        "optimizer.lr=3e-3",
        "stage.0.seq_tokens=128",
        "stage.0.max_docs=16",
        "stage.0.micro_batches=2",
        "stage.0.epochs=none",
        "stage.0.steps=4",
        "checkpoint.every_s=none",
        "eval.enabled=false",
    ];
    let settings = own.into_iter().chain(small.iter().chain(more).map(ToString::to_string));
    let name = if recipe == "lora" { recipe.to_string() } else { at(recipe) };
    Job::new(library::load(library::layers(&name, &settings.collect::<Vec<String>>()))?, &Silent)
}

#[test]
fn two_adapters_are_what_each_is_alone() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    train(
        &crate::small(folder, &["eval.enabled=false", "model.precision=f32", "model.kv_heads=2"]),
        &Order::default(),
        &Silent,
    )
    .unwrap();
    for (name, word, rows) in [("a", "stone", 24), ("b", "river", 40)] {
        let row =
            |n: usize| format!("{{\"prompt\": \"What is {n}?\", \"completion\": \" the {word} {n}\"}}\n");
        fs::write(folder.join(format!("{name}.jsonl")), (0..rows).map(row).collect::<String>()).unwrap();
    }
    let paths = |name: &str| format!("[{:?}]", folder.join(format!("{name}.jsonl")).display().to_string());
    let text = format!(
        "extends = \"lora\"\n[[adapters]]\nname = \"first\"\npaths = {}\nrank = 4\nalpha = 12\n[[adapters]]\nname = \"second\"\n\
         paths = {}\nmethod = \"dora\"\ntargets = [\"q_proj\", \"down_proj\"]\n",
        paths("a"),
        paths("b")
    );
    fs::write(folder.join("two.toml"), text).unwrap();
    let heard = TextSink::default();
    let both = job(folder, "two.toml", "both", &[]).unwrap();
    assert_eq!(train(&both, &Order::default(), &heard).unwrap().outcome, Outcome::Finished);
    // Each step uses the planned memory, including the other adapter's weights and state.
    assert!(!heard.all().contains("warning: "), "{}", heard.all());
    assert_eq!(heard.count("step: "), 8, "{}", heard.all());
    assert_eq!(heard.count("step: 1 ") + heard.count("step: 4 "), 4);
    let again = TextSink::default();
    train(&both, &Order::default(), &again).unwrap();
    assert_eq!(again.all().matches("finished already").count(), 2, "{}", again.all());

    // Interrupted once at a step of each adapter, and resumed.
    let fault = ["machine.fault=\"term rank 0 at step 2\""];
    let cut = job(folder, "two.toml", "cut", &fault).unwrap();
    let ends: Vec<Outcome> =
        (0..4).map(|_| train(&cut, &Order::default(), &Silent).unwrap().outcome).collect();
    assert_eq!((ends[0], ends[3]), (Outcome::Interrupted, Outcome::Finished), "{ends:?}");

    let alone = [
        ("first", "a", vec!["adapter.rank=4", "adapter.alpha=12"]),
        ("second", "b", vec!["adapter.method=dora", "adapter.targets=q_proj,down_proj"]),
    ];
    for (name, rows, more) in &alone {
        let data = format!("data.paths={}", paths(rows));
        let one = job(folder, "lora", name, &[&more[..], &[data.as_str()]].concat()).unwrap();
        train(&one, &Order::default(), &Silent).unwrap();
        let read = |folder: &Path, file: &str| fs::read(folder.join(file)).unwrap();
        let steps = |folder: &Path| -> Vec<String> {
            let events = read_events(folder.join("metrics.jsonl")).unwrap();
            let steps = events.iter().filter(|event| event["event"] == "step");
            steps.map(|step| format!("{} {}", step["loss_bits"], step["grad_norm"])).collect()
        };
        assert_eq!(steps(&folder.join(name)).len(), 4);
        for out in ["both", "cut"] {
            let own = folder.join(out).join("adapter").join(name);
            for file in ["adapter_model.safetensors", "adapter_config.json"] {
                assert!(
                    read(&own, file) == read(&folder.join(name).join("adapter"), file),
                    "{out} {name} {file}"
                );
            }
            assert_eq!(
                steps(&folder.join(out).join("each").join(name)),
                steps(&folder.join(name)),
                "{out} {name}"
            );
        }
    }
    over_ranks(folder, &alone.map(|(name, rows, more)| (name, paths(rows), more)));
    plans_and_refusals(folder, &paths("b"));
}

/// On several ranks, each adapter equals its own run on them, for all placements of activations, state and base, and
/// after a failed rank.
fn over_ranks(folder: &Path, alone: &[(&str, String, Vec<&str>)]) {
    let settings: [&[&str]; 5] = [
        &["mesh.dp=2"],
        &["mesh.tp=2"],
        &["machine.offload_optimizer=true", "machine.offload_weights=true", "machine.offload_to=host"],
        &["mesh.dp=2", "mesh.sharding=optim_grads_params", "activations.offload_modules=all"],
        &[
            "mesh.dp=2",
            "machine.offload_optimizer=true",
            "machine.fault=\"kill rank 1 at step 3\"",
            "mesh.restarts=2",
            "checkpoint.memory_every_steps=2",
        ],
    ];
    for (number, how) in settings.into_iter().enumerate() {
        let named = |name: &str| format!("{name} {number}");
        let both = job(folder, "two.toml", &named("both"), how).unwrap();
        let heard = TextSink::default();
        assert_eq!(train(&both, &Order::default(), &heard).unwrap().outcome, Outcome::Finished);
        let warned = warned(&heard.all());
        let went_back = heard.all().matches("went back to step 2").count();
        let expected = if number == 4 { 4 } else { 0 };
        assert_eq!([warned, went_back], [expected; 2], "{how:?} {}", heard.all());
        for (name, rows, more) in alone {
            let data = format!("data.paths={rows}");
            let one =
                job(folder, "lora", &named(name), &[&more[..], how, &[data.as_str()]].concat()).unwrap();
            train(&one, &Order::default(), &Silent).unwrap();
            let read = |folder: &Path| fs::read(folder.join("adapter_model.safetensors")).unwrap();
            let found = read(&folder.join(named("both")).join("adapter").join(name));
            assert!(found == read(&folder.join(named(name)).join("adapter")), "{how:?} {name}");
        }
    }
}

/// Counts the warnings. Peaks below the plan, when lessons do not fill a rank's sample, give none.
pub fn warned(heard: &str) -> usize {
    heard.lines().filter(|line| line.contains("warning: ")).count()
}

/// Subjects of plans, and refusals.
fn plans_and_refusals(folder: &Path, lessons: &str) {
    // The plan covers the adapter that needs most, with the other in memory.
    let peak = |job: &Job| plan(job, None).unwrap().draft(0).plan().unwrap().usage.peak_live;
    let most = planned(job(folder, "two.toml", "both", &[]).unwrap().loaded, &Silent).unwrap();
    let data = format!("data.paths={lessons}");
    let more = ["adapter.method=dora", "adapter.targets=q_proj,down_proj", data.as_str()];
    assert!(peak(&most) > peak(&job(folder, "lora", "plan", &more).unwrap()));
    for (bad, what) in [
        ("adapters.0.method=pissa", "pissa"),
        ("adapters.1.name=first", "give each its own"),
        ("adapters.1.paths=[]", "lessons"),
        ("objective.sync_ref_model=true", "all adapters are compared with"),
        ("adapters.0.reward=x.toml", "learn from rewards"),
        ("data.paths=x.jsonl", "adapters.*.paths"),
    ] {
        let error = job(folder, "two.toml", "bad", &[bad]).err().unwrap().to_string();
        assert!(error.contains(what), "{bad}: {error}");
    }
}
