//! Answers that ranks write which have parts of a model each: the trainer on the same mesh says the same of them.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fathom_app::generate::{Request, SplitModel};
use fathom_app::spread::AskedMesh;
use fathom_app::train::Order;
use fathom_app::{Machine, Silent, library, train};
use fathom_base::{Flow, Sampling};
use fathom_cpu::Cpu;
use fathom_engine::Writer;
use fathom_model::{Model, RopeSpec, load, open};
use fathom_tensor::mesh::{Axis, Grid, Mesh, Seat, ThreadsOptions, threads};
use fathom_tensor::{DType, Device};
use fathom_text::Tokenizer;
use fathom_text::lessons::Prompt;
use fathom_train::parallel::Ranks;
use fathom_train::policy::reward::{Answered, Reward, WeightedReward};
use fathom_train::policy::{Rolling, Rollouts, planned};
use fathom_train::recipe::{MachineKind, Recipe};
use fathom_train::{Outcome, Share, Source, Sources, Trainer, Workload, stage};
use serde_json::Value;

use crate::policy::{PROMPTS, bits, events, job, off_policy, prepare_with, written};
use crate::policy_values::with_values;

/// What a rank saw: log-probabilities that are not those of the trainer, and tokens of greedy answers.
type Seen = (Vec<String>, Vec<Vec<u32>>);

/// How answers are written and packed: temperature, tokens read at once with sequences, two turns, tokens of a stream.
type How = (f64, (usize, usize), bool, usize);

const PLAIN: How = (1.0, (1024, 0), false, 512);
const CHUNKED: How = (0.7, (7, 3), true, 128);

/// The models that are compared.
fn families() -> Vec<PathBuf> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let mut all: Vec<PathBuf> =
        std::fs::read_dir(golden).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

pub(crate) fn family(name: &str) -> PathBuf {
    families().into_iter().find(|folder| folder.ends_with(name)).unwrap()
}

/// A rank's part of a model, if it can be cut like that.
fn part(device: &Device, folder: &Path, dtype: DType) -> Option<Trainer> {
    let opened = open(folder).unwrap();
    let ranks = Ranks { grid: *device.mesh.grid(), rank: device.mesh.rank(), ..Ranks::default() };
    // Rotary embeddings by a sequence's length are those of a text as it grows, and in training of the whole.
    if opened.spec.ropes.iter().any(RopeSpec::looks_at_length) || ranks.check(&opened.spec).is_err() {
        return None;
    }
    let (model, mut params) = Model::declare(device, &opened.spec, dtype);
    load(device, &model, &mut params, &opened.source).unwrap();
    Some(Trainer::new(device, model, params))
}

fn seen(device: &Device, folder: &Path, (dtype, how): (DType, How)) -> Option<Seen> {
    let mut trainer = part(device, folder, dtype)?;
    let (temperature, batching, turns, tokens) = how;
    let greedy = written(&trainer, 0..PROMPTS, 0.0, batching, false).into_iter().map(|doc| doc.ids).collect();
    // Data parallel ranks learn from answers of their own; others share the stream.
    let (dp, at) = (device.mesh.size(Axis::Dp), device.mesh.index(Axis::Dp));
    let own = PROMPTS * at / dp..PROMPTS * (at + 1) / dp;
    let docs = written(&trainer, own, temperature, batching, turns);
    Some((off_policy(&mut trainer, &docs, temperature, tokens).collect(), greedy))
}

/// What each rank of a grid saw of a model.
fn on_ranks(grid: Grid, folder: &Path, what: (DType, How)) -> Option<Vec<Seen>> {
    let options = ThreadsOptions { deadline: Duration::from_secs(60), ..ThreadsOptions::default() };
    std::thread::scope(|scope| {
        let rank = |seat: Seat| {
            scope.spawn(move || {
                let mesh = Mesh::new(grid, Box::new(seat.take()));
                seen(&Device::on_mesh(Arc::new(Cpu::new(1, None)), 1 << 30, mesh), folder, what)
            })
        };
        let all: Vec<_> = threads(grid.ranks(), options).into_iter().map(rank).collect();
        all.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Whether the ratio is one on each rank of a grid, and all write the greedy answers of one rank; nothing of models that cannot be
/// cut like that.
fn misses(grid: Grid, folder: &Path, what: (DType, How)) -> Option<Vec<String>> {
    let ranks = on_ranks(grid, folder, what)?;
    let alone = Device::new(Arc::new(Cpu::new(1, None)), 1 << 30);
    let trainer = part(&alone, folder, what.0).unwrap();
    let greedy: Vec<Vec<u32>> =
        written(&trainer, 0..PROMPTS, 0.0, what.1.1, false).into_iter().map(|doc| doc.ids).collect();
    let name = folder.file_name().unwrap().display().to_string();
    let mut misses = Vec::new();
    for (rank, (off, own)) in ranks.into_iter().enumerate() {
        let at = format!("{name} on {grid}, {what:?}, rank {rank}");
        misses.extend(off.into_iter().map(|it| format!("{at}: {it}")));
        // The sum over parts is rounded otherwise than that of one rank, which in bf16 shows.
        if own != greedy && (what.0 == DType::F32 || grid.tp == 1) {
            misses.push(format!("{at}: other greedy tokens"));
        }
    }
    Some(misses)
}

/// Every family of which ranks can have parts: tensor parallel ranks, with and without shared rows in training, and a pipeline's.
#[test]
fn parts_of_a_model_write_what_they_learn() {
    let tp = Grid { tp: 2, ..Grid::default() };
    let shared = Grid { sequence_parallel: true, ..tp };
    let pp = Grid { pp: 2, ..Grid::default() };
    let (mut cut, mut all) = ([0; 3], Vec::new());
    for folder in families() {
        for (at, (grid, what)) in
            [(shared, (DType::Bf16, CHUNKED)), (tp, (DType::F32, PLAIN)), (pp, (DType::F32, CHUNKED))]
                .into_iter()
                .enumerate()
        {
            let found = misses(grid, &folder, what);
            cut[at] += usize::from(found.is_some());
            all.extend(found.into_iter().flatten());
        }
    }
    assert!(all.is_empty(), "{cut:?} {all:#?}");
    assert!(cut.iter().all(|models| *models >= 25), "{cut:?}");
}

/// Dense, with experts, with windows and with latents: over replicas, context parallel ranks, several axes, and experts' owners.
#[test]
fn other_meshes_write_what_they_learn() {
    let one = Grid::default();
    let (mut all, mut cut) = (Vec::new(), 0);
    for name in ["llama31", "mixtral", "gpt_oss", "gemma2", "deepseek_v2"] {
        for grid in [
            Grid { dp: 2, ..one },
            Grid { cp: 2, ..one },
            Grid { tp: 2, pp: 2, sequence_parallel: true, ..one },
            Grid { tp: 2, ep: 2, ..one },
            Grid { tp: 2, etp: 2, sequence_parallel: true, ..one },
        ] {
            let found = misses(grid, &family(name), (DType::F32, PLAIN));
            cut += usize::from(found.is_some());
            all.extend(found.into_iter().flatten());
        }
    }
    assert!(all.is_empty(), "{cut} {all:#?}");
    assert!(cut >= 18, "{cut}");
}

/// What answers are worth here.
pub(crate) struct Length;

impl Reward for Length {
    fn score(&self, answers: &[Answered<'_>]) -> Result<Vec<Option<f64>>, String> {
        Ok(answers.iter().map(|it| Some((it.tokens + it.text.len() % 5) as f64)).collect())
    }
}

pub(crate) fn writer() -> Writer {
    let tokenizer = Tokenizer::train_bpe(std::iter::once("a b".to_string()), 256, &[]).unwrap();
    Writer { tokenizer: Rc::new(tokenizer), chunk_tokens: 16, sequences: 3 }
}

/// A source of answers to prompts that are as long as they may be, of what they are worth.
pub(crate) fn rolled(recipe: &Recipe, reward: Box<dyn Reward>) -> Box<dyn Source> {
    let prompt = |index: u32| Prompt {
        ids: (0..52).map(|at| (at * 7 + index * 3) % 50).collect(),
        text: "p".into(),
        row: serde_json::Map::new(),
        conversation: None,
    };
    let rolling = Rolling {
        prompts: (0..6).map(prompt).collect(),
        fingerprint: "prompts".into(),
        rollout: Box::new(writer()),
        rewards: vec![WeightedReward { name: "length".into(), weight: 1.0, reward }],
        playing: None,
    };
    Rollouts(Rc::new(rolling)).open(recipe, 0, Share { all: 1, own: 0..1 }, None).unwrap()
}

/// Bytes of a rank's first rollout, and of its plan: of prompts and answers that are as long as they may be.
fn peaks(device: &Device, folder: &Path, recipe: &Recipe) -> [u64; 2] {
    let mut how = stage::in_step(recipe, 0).unwrap();
    how.ranks.rank = device.mesh.rank();
    let scores = usize::from(recipe.rl.has_values());
    let mut trainer = with_values(device, folder, scores, (how.ranks.sharding, how.goal.refers));
    trainer.make_sums(&how);
    let mut source = rolled(recipe, Box::new(Length));
    source.step(&trainer).unwrap();
    let peak = source.reported().metrics["rollout_peak_bytes"] as u64;
    let profile = &device.machine.profile().clone();
    let spec = Cow::Owned(trainer.model.spec.clone());
    let work = Workload { profile, spec, dtype: DType::F32, how, micro_batches: 1, tokens: 128 };
    [peak, planned(&work, &recipe.rl, 64, &writer(), &|_| Ok(Vec::new())).unwrap().peak_live]
}

/// Settings of such a run.
pub(crate) const SMALL: [&str; 8] = [
    "model.precision=f32",
    "rl.prompts=4",
    "rl.answers=2",
    "rl.max_answer_tokens=12",
    "rl.beta=0",
    "stage.0.seq_tokens=64",
    "stage.0.samples_per_micro_batch=2",
    "stage.0.max_docs=4",
];

/// A plan of a rollout is the rollout, to the byte, on each rank of a mesh.
#[test]
fn rollouts_need_what_is_planned() {
    let parts = "mesh.sharding=optim_grads_params";
    let values = ["rl.loss=ppo", "rl.advantage=gae", "rl.beta=0.05"];
    for mesh in [
        &["mesh.tp=2"][..],
        &["mesh.pp=2"],
        &["mesh.tp=2", "rl.top_p=0.9"],
        &["mesh.pp=2", "rl.top_k=9"],
        &["mesh.dp=2"],
        &["mesh.cp=2", "mesh.cp_comm_type=a2a"],
        &["mesh.cp=2"],
        &[&values[..], &["mesh.tp=2"]].concat(),
        &[&values[..], &["mesh.pp=2"]].concat(),
        &[&values[..], &["mesh.dp=2", parts]].concat(),
        &["mesh.cp=2", "mesh.cp_comm_type=a2a", parts],
    ] {
        for name in ["llama31", "qwen3_moe"] {
            let folder = family(name);
            let from = format!("model.from={}", folder.display());
            let settings = SMALL.iter().chain(mesh).copied().chain([from.as_str()]);
            let settings: Vec<String> = settings.map(str::to_string).collect();
            let recipe = library::load(library::layers("grpo", &settings)).unwrap().value;
            let grid = stage::ranks(&recipe, 0).unwrap().grid;
            let (folder, recipe) = (&folder, &recipe);
            std::thread::scope(|scope| {
                for seat in threads(grid.ranks(), ThreadsOptions::default()) {
                    scope.spawn(move || {
                        let at = Mesh::new(grid, Box::new(seat.take()));
                        let rank = at.rank();
                        let device = Device::on_mesh(Arc::new(Cpu::new(1, None)), 1 << 30, at);
                        let [found, planned] = peaks(&device, folder, recipe);
                        assert_eq!(found, planned, "{name} {mesh:?}, rank {rank}");
                    });
                }
            });
        }
    }
}

/// Greedy answers of ranks that have parts of a model are those of one; what cannot be cut is refused.
#[test]
fn ranks_generate_together() {
    let folder = tempfile::tempdir().unwrap();
    let base =
        crate::small(folder.path(), &["eval.enabled=false", "model.precision=f32", "model.kv_heads=2"]);
    train(&base, &Order::default(), &Silent).unwrap();
    let run = folder.path().join("run");
    let machine = Machine::of_kind(MachineKind::Cpu, 2, &Silent);
    let request = Request {
        prompt: "the ".into(),
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        max_tokens: Some(24),
        context_tokens: None,
    };
    let over = |tp, pp, flow: Flow| {
        let mesh = AskedMesh { tp, pp, experts: None };
        let parts =
            SplitModel { model: &run, dtype: Some(DType::F32), machine: &machine, mesh, events: &Silent };
        parts.generate(&request, &mut |_| flow)
    };
    let one = over(1, 1, Flow::Continue).unwrap();
    for (tp, pp) in [(2, 1), (1, 2), (2, 2)] {
        let found = over(tp, pp, Flow::Continue).unwrap();
        assert_eq!((&found.ids, &found.text), (&one.ids, &one.text), "tp {tp}, pp {pp}");
    }
    assert!(over(2, 1, Flow::Stop).unwrap().ids.len() < one.ids.len());
    let error = over(1, 64, Flow::Continue).err().unwrap().to_string();
    assert!(error.contains("64 stages"), "{error}");
    let error = fathom_app::serve::settings(None, &["mesh.tp=2".into()]).err().unwrap().to_string();
    assert!(error.contains("--tp N"), "{error}");
}

/// Runs over parts of a model: the ratio is one, a pipeline has the answers of one rank, and a run that is stopped goes on with the
/// same bits.
#[test]
fn runs_over_parts_of_a_model_are_on_policy() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare_with(folder, &["model.kv_heads=2"]);
    let more = ["stage.0.steps=4", "rl.beta=0.02", "rl.kl_in=reward", "rl.minibatches=2"];
    let run = |out: &str, mesh: &[&str]| {
        let job = job(folder, out, &[&more[..], mesh].concat());
        let outcome = train(&job, &Order::default(), &Silent).unwrap().outcome;
        let rollout = events(&folder.join(out), "rollout").remove(0);
        let texts: Vec<Value> =
            rollout["answers"].as_array().unwrap().iter().map(|it| it["text"].clone()).collect();
        (outcome, texts)
    };
    let (_, one) = run("one", &[]);
    for (out, mesh) in [
        ("tp", &["mesh.tp=2"][..]),
        ("pp", &["mesh.pp=2"]),
        ("cp", &["mesh.cp=2", "mesh.cp_comm_type=all_gather"]),
        ("ring", &["mesh.cp=2"]),
        ("dynamic", &["mesh.cp=2", "mesh.cp_dynamic=true"]),
        ("rings", &["mesh.cp=4", "mesh.cp_comm_type=a2a+p2p", "mesh.cp_inner=2"]),
        ("parts", &["mesh.cp=2", "mesh.dp=2", "mesh.sharding=optim_grads_params"]),
    ] {
        let (outcome, texts) = run(out, mesh);
        assert_eq!(outcome, Outcome::Finished, "{out}");
        assert!(texts == one || out == "tp", "{out}: {texts:?} {one:?}");
        let steps = events(&folder.join(out), "step");
        let rings = ["ring", "dynamic", "rings", "parts"].contains(&out);
        // The first step of each rollout has the weights that wrote it.
        for step in [&steps[0], &steps[2]] {
            let metric = |name: &str| step["metrics"][name].as_f64().unwrap();
            assert_eq!(metric("probs_ratio"), 1.0, "{out}");
            // A ring asks them again, and says how far they are from the sampler's: no further than rounding.
            let off = metric("token_mult_prob_error") - 1.0;
            assert!(off == 0.0 || rings && (0.0..1e-5).contains(&off), "{out}: {off}");
        }
    }
    let fault = ["mesh.tp=2", "machine.fault=\"term rank 1 at step 3\""];
    assert_eq!(run("cut", &fault).0, Outcome::Interrupted);
    assert_eq!(run("cut", &fault).0, Outcome::Finished);
    assert_eq!(bits(&folder.join("cut")), bits(&folder.join("tp")));
}
