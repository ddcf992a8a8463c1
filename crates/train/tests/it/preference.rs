//! Preference learning with a tiny model against TRL (`tests/golden_preferences`, by `oracle/preferences.py`).

use std::{path::PathBuf, sync::Arc};

use fathom_cpu::Cpu;
use fathom_grad::{Counters, Eval, Labels, LossTerm, Moments, Params, Places, Scope};
use fathom_model::{Adapter, AdapterMethod, Caps, Model, PackedTokens, Size};
use fathom_model::{TrainableWeights, adapt, load, open};
use fathom_tensor::mesh::{Axis, Grid, Mesh, Seat, ThreadsOptions, threads};
use fathom_tensor::{Category, DType, Device};
use fathom_text::pack::Facts;
use fathom_train::parallel::{Ranks, Sharding};
use fathom_train::preference::{Divergence, KtoObjective, PairLoss, Pairs, Reward, Settings};
use fathom_train::{
    Goal, InStep, MicroBatch, Objective, Reference, Refers, StepTotals, Sync, Trainer, frozen,
};
use serde_json::Value;

const CAPS: Caps = Caps { docs: 32, seq_tokens: 64 };

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_preferences")
}

fn golden(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(root().join(format!("{name}.json"))).unwrap()).unwrap()
}

fn list(value: &Value) -> Vec<i32> {
    value.as_array().unwrap().iter().map(|id| id.as_i64().unwrap() as i32).collect()
}

/// A document: its tokens, the beginning of its answer, further facts, and whether its prompt is trained on too.
struct Document {
    ids: Vec<i32>,
    start: usize,
    known: Vec<f32>,
}

/// Packs documents into a stream.
fn stream(documents: &[Document], prompts: bool) -> MicroBatch {
    let mut micro = MicroBatch::default();
    for Document { ids, start, known } in documents {
        let from = micro.ids.len();
        let learned = |at: usize| prompts || at >= *start;
        let label = |at: usize| ids.get(at + 1).filter(|_| learned(at + 1)).copied().unwrap_or(-100);
        micro.labels.extend((0..ids.len()).map(label));
        micro.positions.extend(0..ids.len() as i32);
        micro.ids.extend(ids);
        micro.docs.push(from..micro.ids.len());
        let values = [*start as f32].into_iter().chain(known.iter().copied()).collect::<Vec<_>>();
        micro.facts.extend(&Facts { width: values.len(), values });
    }
    micro
}

fn alone() -> Device {
    Device::new(Arc::new(Cpu::new(1, None)), 1 << 28)
}

/// Adds the reference model's log-probabilities to the micro-batches.
fn refer(micros: &mut [MicroBatch]) {
    let device = alone();
    let opened = open(&root().join("reference")).unwrap();
    let (model, mut params) = Model::declare(&device, &opened.spec, DType::F32);
    load(&device, &model, &mut params, &opened.source).unwrap();
    for micro in micros {
        let packed = PackedTokens { ids: &micro.ids, positions: &micro.positions, docs: &micro.docs };
        let batch = model.batch(&device, packed, CAPS);
        let counters = Counters::default();
        let scope =
            || Scope { device: &device, params: &params, batch: (&batch).into(), counters: &counters };
        let hidden = model.forward(&mut Eval::new(scope(), None, None));
        let labels = Labels::plain(device.from_i32(&micro.labels, Category::Data));
        let losses = device.empty(1, batch.tokens, DType::F32, Category::Data);
        model.head(0.0).losses(&scope(), &hidden, &labels, &[LossTerm::cross_entropy(&losses)]);
        micro.reference = device.to_f32(&losses).into_iter().map(|loss| -loss).collect();
    }
}

/// Results of a step: the loss, the norm, the metrics by name.
type StepResults = (f32, f32, Vec<(&'static str, f64)>);

/// This rank's part of a model in the folder.
fn part(device: &Device, model: &str, adapter: Option<&Adapter>, sharding: Sharding) -> (Model, Params) {
    let opened = open(&root().join(model)).unwrap();
    let spec = adapter.map_or(Ok(opened.spec.clone()), |adapter| opened.spec.with_adapter(adapter.clone()));
    let (spec, ranks) = (spec.unwrap(), Ranks { grid: *device.mesh.grid(), sharding, ..Ranks::default() });
    let portion = ranks.portion(&spec, &device.mesh);
    let (model, mut params) = Model::declare_part(device, &spec, DType::F32, None, portion);
    load(device, &model, &mut params, &opened.source).unwrap();
    (model, params)
}

/// Three steps over these micro-batches.
fn train(
    device: &Device,
    model: &str,
    steps: &[Vec<MicroBatch>],
    objective: &Arc<dyn Objective>,
    rate: f32,
) -> Vec<StepResults> {
    let (model, params) = part(device, model, None, Sharding::default());
    train_on(&mut Trainer::new(device, model, params), steps, objective, rate)
}

/// Three steps of an existing trainer.
fn train_on(
    trainer: &mut Trainer,
    steps: &[Vec<MicroBatch>],
    objective: &Arc<dyn Objective>,
    rate: f32,
) -> Vec<StepResults> {
    let adamw = crate::sft::adamw(rate);
    let how = InStep {
        caps: CAPS,
        ranks: Ranks { grid: *trainer.device.mesh.grid(), ..Ranks::default() },
        goal: Goal { objective: objective.clone(), ..Goal::default() },
        adamw,
        ..crate::step::how(Places::none(), 64)
    };
    let names = objective.weigh().unwrap().metrics();
    let step = |(at, micros): (usize, &Vec<MicroBatch>)| {
        let result = trainer.step(micros, &how).unwrap();
        trainer.move_reference(at as u64 + 1);
        let sums = result.metrics.unwrap().wait();
        let float = |at: usize| f32::from_le_bytes(sums[4 * at..][..4].try_into().unwrap());
        let means =
            names.iter().enumerate().map(|(at, name)| (*name, f64::from(float(2 * at) / float(2 * at + 1))));
        (result.loss.wait_f32() / result.count.wait_f32(), result.norm.wait_f32(), means.collect())
    };
    steps.iter().enumerate().map(step).collect()
}

/// Compares steps with TRL's: losses, norms and all common metrics. Numbers below 1 are differences of larger ones.
fn check(name: &str, found: &[StepResults], case: &Value, most: f64) {
    let mut far = Vec::new();
    for (step, (loss, norm, metrics)) in found.iter().enumerate() {
        let mut near = |what: &str, found: f64, expected: &Value| {
            let Some(expected) = expected.as_f64() else { return };
            if (found - expected).abs() > most * expected.abs().max(1.0) {
                far.push(format!("{name}, step {step}: {what} is {found} and {expected}"));
            }
        };
        near("the loss", f64::from(*loss), &case["losses"][step]);
        near("the norm", f64::from(*norm), &case["grad_norms"][step]);
        for (metric, value) in metrics {
            near(metric, *value, &case["metrics"][metric][step]);
        }
    }
    assert!(far.is_empty() && found.len() == 3, "{}", far.join("\n"));
}

fn number(case: &Value, key: &str, otherwise: f64) -> f64 {
    case[key].as_f64().unwrap_or(otherwise)
}

fn loss(name: &str) -> PairLoss {
    match name {
        "sigmoid" => PairLoss::Sigmoid,
        "hinge" => PairLoss::Hinge,
        "ipo" => PairLoss::Ipo,
        "exo_pair" => PairLoss::ExoPair,
        "nca_pair" => PairLoss::NcaPair,
        "robust" => PairLoss::Robust,
        "bco_pair" => PairLoss::BcoPair,
        "sppo_hard" => PairLoss::SppoHard,
        "aot" => PairLoss::Aot,
        "aot_unpaired" => PairLoss::AotUnpaired,
        "apo_zero" => PairLoss::ApoZero,
        "apo_down" => PairLoss::ApoDown,
        "discopop" => PairLoss::Discopop,
        "sigmoid_norm" => PairLoss::SigmoidNorm,
        "sft" => PairLoss::Sft,
        other => panic!("{other}"),
    }
}

/// The settings for TRL's options.
fn dpo(case: &Value) -> Settings {
    let names: Vec<&str> = match case["loss_type"].as_array() {
        Some(names) => names.iter().map(|name| name.as_str().unwrap()).collect(),
        None => vec!["sigmoid"],
    };
    let weight = |at: usize| case["loss_weights"][at].as_f64().unwrap_or(1.0);
    let losses: Vec<(PairLoss, f64)> =
        names.iter().enumerate().map(|(at, name)| (loss(name), weight(at))).collect();
    let sft_weight = losses.iter().filter(|(loss, _)| *loss == PairLoss::Sft).map(|(_, weight)| weight).sum();
    Settings {
        losses,
        sft_weight,
        beta: number(case, "beta", 0.1),
        label_smoothing: number(case, "label_smoothing", 0.0),
        divergence: match case["f_divergence_type"].as_str() {
            Some("forward_kl") => Divergence::ForwardKl,
            Some("js_divergence") => Divergence::JensenShannon,
            Some("alpha_divergence") => Divergence::Alpha,
            _ => Divergence::ReverseKl,
        },
        f_alpha: number(case, "f_alpha_divergence_coef", 0.5),
        ld_alpha: case["ld_alpha"].as_f64(),
        discopop_tau: number(case, "discopop_tau", 0.05),
        weighting: case["use_weighting"] == true,
        ..Settings::default()
    }
}

/// DPO's rows as pairs of documents of at most `most` tokens.
fn pairs(golden: &Value, most: usize) -> Vec<Vec<Document>> {
    let pair = |row: &Value| {
        let (prompt, nan) = (list(&row["prompt_ids"]), f32::NAN);
        ["chosen_ids", "rejected_ids"]
            .map(|key| {
                let mut ids = [prompt.clone(), list(&row[key])].concat();
                ids.truncate(most);
                Document { ids, start: prompt.len(), known: vec![nan, nan] }
            })
            .into_iter()
            .collect()
    };
    golden["rows"].as_array().unwrap().iter().map(pair).collect()
}

/// Steps of four rows, with `of_micro` rows per micro-batch and the totals of their step.
fn steps(rows: &[Vec<Document>], of_micro: usize, prompts: bool, refers: bool) -> Vec<Vec<MicroBatch>> {
    let micro = |rows: &[Vec<Document>]| {
        let documents = rows.iter().flatten();
        let copy = |it: &Document| Document { ids: it.ids.clone(), start: it.start, known: it.known.clone() };
        stream(&documents.map(copy).collect::<Vec<_>>(), prompts)
    };
    let step = |rows: &[Vec<Document>]| {
        let mut micros: Vec<MicroBatch> = rows.chunks(of_micro).map(micro).collect();
        let add = |all: StepTotals, micro: &MicroBatch| {
            let own = micro.totals();
            StepTotals {
                documents: all.documents + own.documents,
                labels: all.labels + own.labels,
                ahead: None,
            }
        };
        let all = micros.iter().fold(StepTotals::default(), add);
        micros.iter_mut().for_each(|micro| micro.step = Some(all));
        if refers {
            refer(&mut micros);
        }
        micros
    };
    rows.chunks(4).map(step).collect()
}

fn rate(golden: &Value) -> f32 {
    golden["rate"].as_f64().unwrap() as f32
}

#[test]
fn dpo_is_trls() {
    let golden = golden("dpo");
    for (name, case) in golden["cases"].as_object().unwrap() {
        let rows = pairs(&golden, number(case, "max_length", 1024.0) as usize);
        let of_micro = number(case, "per_device_train_batch_size", 4.0) as usize;
        let objective: Arc<dyn Objective> = Arc::new(Pairs(dpo(case)));
        let device = alone();
        let moves = case["sync_ref_model"] == true;
        let steps = steps(&rows, of_micro, false, !moves);
        let (model, params) = part(&device, "model", None, Sharding::default());
        let mut trainer = Trainer::new(&device, model, params);
        if moves {
            let alpha = number(case, "ref_model_mixup_alpha", 0.6) as f32;
            let every = number(case, "ref_model_sync_steps", 512.0) as u64;
            let (model, params) = part(&device, "reference", None, Sharding::default());
            trainer.refer_to(Reference::copy(model, params, Some(Sync { alpha, steps: every })));
        }
        check(name, &train_on(&mut trainer, &steps, &objective, rate(&golden)), case, 1e-5);
    }
}

/// A column of log-probabilities, a copy of the reference's weights, and an adapter's base give the same bits. A copy
/// that follows the policy fully equals the policy.
#[test]
fn a_reference_is_a_column_or_a_copy_or_an_adapter_switched_off() {
    let golden = golden("dpo");
    let rows = pairs(&golden, 64);
    let objective: Arc<dyn Objective> = Arc::new(Pairs(Settings::default()));
    let bits = |found: &[StepResults]| -> Vec<(u32, u32)> {
        found.iter().map(|(loss, norm, _)| (loss.to_bits(), norm.to_bits())).collect()
    };
    let run = |model: &str, adapter: Option<&Adapter>, refers: Refers, sync: Option<Sync>| {
        let device = alone();
        let (mut model, mut params) = part(&device, model, adapter, Sharding::default());
        if adapter.is_some() {
            adapt(&device, &model, &mut params, 3).unwrap();
            frozen(&mut model, &mut params, &TrainableWeights::adapter(&[]).unwrap()).unwrap();
        }
        let mut trainer = Trainer::new(&device, model, params);
        match refers {
            Refers::Not => {}
            Refers::AdapterOff => trainer.refer_to(Reference::adapter_off(&trainer.model)),
            Refers::Copy => {
                let (model, params) = part(&device, "reference", None, Sharding::default());
                trainer.refer_to(Reference::copy(model, params, sync));
            }
        }
        let steps = steps(&rows, 2, false, refers == Refers::Not);
        train_on(&mut trainer, &steps, &objective, 3e-3)
    };
    let whole = run("model", None, Refers::Not, None);
    assert_eq!(bits(&run("model", None, Refers::Copy, None)), bits(&whole));
    let size = Size { rank: 4, alpha: 8.0 };
    let modules = [0, 1].map(|layer| (format!("model.layers.{layer}.self_attn.q_proj"), size)).into();
    let method = AdapterMethod::Lora { rank_stabilised: false, lengths: false, singular: false };
    let lora = Adapter::of(method, modules, Default::default());
    let adapted = run("reference", Some(&lora), Refers::Not, None);
    assert!(adapted[0].0 != adapted[2].0, "{adapted:?}");
    for refers in [Refers::Copy, Refers::AdapterOff] {
        assert_eq!(bits(&run("reference", Some(&lora), refers, None)), bits(&adapted), "{refers:?}");
    }
    // Compared with itself, every loss is that of no preference.
    let moved = run("reference", None, Refers::Copy, Some(Sync { alpha: 1.0, steps: 1 }));
    let none = std::f32::consts::LN_2;
    assert!(moved.iter().all(|said| (said.0 - none).abs() < 1e-6), "{moved:?}");
}

/// Over ranks (weights whole or sharded) and stages, a copy equals the column, and KTO's divergence is the whole step's.
#[test]
fn a_copy_and_a_divergence_are_the_same_over_ranks() {
    let golden = golden("dpo");
    let rows = pairs(&golden, 64);
    // Rejected answers stand for mismatched ones.
    let kto = KtoObjective { beta: 0.1, desirable: 1.0, undesirable: 1.3, zero: false, of_step: true };
    let objectives: [Arc<dyn Objective>; 2] = [Arc::new(Pairs(Settings::default())), Arc::new(kto)];
    for objective in &objectives {
        let expected = train(&alone(), "model", &steps(&rows, 4, false, true), objective, 3e-3);
        let same = |name: &str, found: &[StepResults]| {
            for (found, expected) in found.iter().zip(&expected) {
                let near = |a: f64, b: f64| {
                    let far = (a - b).abs() > 2e-6 * b.abs().max(1.0);
                    assert!(!far, "{} on {name}: {a} and {b}", objective.name());
                };
                near(found.0.into(), expected.0.into());
                near(found.1.into(), expected.1.into());
                found.2.iter().zip(&expected.2).for_each(|(a, b)| near(a.1, b.1));
            }
        };
        same("parts", &train(&alone(), "model", &steps(&rows, 1, false, true), objective, 3e-3));
        let grid = Grid::default();
        for (name, grid, sharding) in [
            ("tp 2", Grid { tp: 2, ..grid }, Sharding::NoShard),
            ("dp 2", Grid { dp: 2, ..grid }, Sharding::NoShard),
            ("pp 2", Grid { pp: 2, ..grid }, Sharding::NoShard),
            ("dp 2, whose weights are in parts", Grid { dp: 2, ..grid }, Sharding::OptimGradsParams),
        ] {
            let all = filled(&steps(&rows, 2, false, false));
            let rank = |seat: Seat| {
                let mesh = Mesh::new(grid, Box::new(seat.take()));
                let device = Device::on_mesh(Arc::new(Cpu::new(1, None)), 1 << 28, mesh);
                let (model, params) = part(&device, "model", None, sharding);
                let mut trainer = Trainer::sharded(&device, model, params, sharding, Moments::default());
                let (model, params) = part(&device, "reference", None, sharding);
                trainer.refer_to(Reference::copy(model, params, None));
                let at = device.mesh.index(Axis::Dp);
                let own = |micros: &Vec<MicroBatch>| {
                    if grid.dp == 2 { vec![micros[at].clone()] } else { micros.clone() }
                };
                let steps: Vec<Vec<MicroBatch>> = all.iter().map(own).collect();
                train_on(&mut trainer, &steps, objective, 3e-3)
            };
            std::thread::scope(|scope| {
                let rank = &rank;
                let seats = threads(2, ThreadsOptions::default());
                let ranks: Vec<_> = seats.into_iter().map(|seat| scope.spawn(move || rank(seat))).collect();
                ranks.into_iter().for_each(|rank| same(name, &rank.join().unwrap()));
            });
        }
    }
}

/// In a pipeline, an adapter is switched off on all stages at once, and a copy moves as on one rank.
#[test]
fn stages_ask_their_reference_together() {
    let golden = golden("dpo");
    let rows = pairs(&golden, 64);
    let objective: Arc<dyn Objective> = Arc::new(Pairs(Settings::default()));
    let all = filled(&steps(&rows, 2, false, false));
    let size = Size { rank: 4, alpha: 8.0 };
    let modules = [0, 1].map(|layer| (format!("model.layers.{layer}.self_attn.q_proj"), size)).into();
    let method = AdapterMethod::Lora { rank_stabilised: false, lengths: false, singular: false };
    let lora = Adapter::of(method, modules, Default::default());
    for sync in [None, Some(Sync { alpha: 0.6, steps: 1 })] {
        let run = |device: &Device| {
            let adapter = sync.is_none().then_some(&lora);
            let (mut model, mut params) = part(device, "model", adapter, Sharding::default());
            if adapter.is_some() {
                adapt(device, &model, &mut params, 3).unwrap();
                frozen(&mut model, &mut params, &TrainableWeights::adapter(&[]).unwrap()).unwrap();
            }
            let mut trainer = Trainer::new(device, model, params);
            let reference = match sync {
                None => Reference::adapter_off(&trainer.model),
                Some(_) => {
                    let (model, params) = part(device, "reference", None, Sharding::default());
                    Reference::copy(model, params, sync)
                }
            };
            trainer.refer_to(reference);
            train_on(&mut trainer, &all, &objective, 3e-3)
        };
        let expected = run(&alone());
        std::thread::scope(|scope| {
            let run = &run;
            let rank = |seat: Seat| {
                let mesh = Mesh::new(Grid { pp: 2, ..Grid::default() }, Box::new(seat.take()));
                run(&Device::on_mesh(Arc::new(Cpu::new(1, None)), 1 << 28, mesh))
            };
            let seats = threads(2, ThreadsOptions::default());
            let ranks: Vec<_> = seats.into_iter().map(|seat| scope.spawn(move || rank(seat))).collect();
            for found in ranks.into_iter().map(|rank| rank.join().unwrap()) {
                for (found, expected) in found.iter().zip(&expected) {
                    let near = |a: f64, b: f64| (a - b).abs() <= 2e-6 * b.abs().max(1.0);
                    let metrics = found.2.iter().zip(&expected.2).all(|(a, b)| near(a.1, b.1));
                    let own = [(found.0, expected.0), (found.1, expected.1)];
                    let own = own.iter().all(|(a, b)| near((*a).into(), (*b).into()));
                    assert!(own && metrics, "{found:?} {expected:?}");
                }
            }
        });
    }
}

#[test]
fn kto_is_trls() {
    let golden = golden("kto");
    for (name, case) in golden["cases"].as_object().unwrap() {
        let of_micro = number(case, "per_device_train_batch_size", 4.0) as usize;
        let mismatched = &golden[if of_micro == 4 { "mismatched" } else { "mismatched_accumulated" }];
        let rows = golden["rows"].as_array().unwrap().iter().zip(mismatched.as_array().unwrap());
        let documents = |(row, other): (&Value, &Value)| {
            let prompt = list(&row["prompt_ids"]);
            let label = f32::from(u8::from(row["label"] == true));
            [(&row["completion_ids"], label), (&other["KL_completion_ids"], f32::NAN)]
                .map(|(answer, label)| {
                    let ids = [prompt.clone(), list(answer)].concat();
                    Document { ids, start: prompt.len(), known: vec![label] }
                })
                .into_iter()
                .collect::<Vec<_>>()
        };
        let rows: Vec<Vec<Document>> = rows.map(documents).collect();
        let objective: Arc<dyn Objective> = Arc::new(KtoObjective {
            beta: number(case, "beta", 0.1),
            desirable: number(case, "desirable_weight", 1.0),
            undesirable: number(case, "undesirable_weight", 1.0),
            zero: case["loss_type"] == "apo_zero_unpaired",
            of_step: false,
        });
        let mut found =
            train(&alone(), "model", &steps(&rows, of_micro, false, true), &objective, rate(&golden));
        // TRL averages the means of micro-batches, which have different numbers of answers of each kind.
        found
            .iter_mut()
            .filter(|_| of_micro < 4)
            .for_each(|said| said.2.retain(|(metric, _)| *metric == "kl"));
        check(name, &found, case, 1e-5);
    }
}

/// Rows tokenised for ORPO and CPO.
fn labelled(golden: &Value) -> Vec<Vec<Document>> {
    let pair = |row: &Value| {
        ["chosen", "rejected"]
            .map(|key| {
                let labels = list(&row[format!("{key}_labels")]);
                let start = labels.iter().filter(|label| **label < 0).count();
                Document { ids: list(&row[format!("{key}_input_ids")]), start, known: vec![f32::NAN; 2] }
            })
            .into_iter()
            .collect()
    };
    golden["rows"].as_array().unwrap().iter().map(pair).collect()
}

#[test]
fn orpo_and_cpo_are_trls() {
    for name in ["orpo", "cpo"] {
        let golden = golden(name);
        let rows = labelled(&golden);
        for (case_name, case) in golden["cases"].as_object().unwrap() {
            let simpo = ["simpo", "alphapo"].contains(&case["loss_type"].as_str().unwrap_or_default());
            let (loss, averages) = match case["loss_type"].as_str() {
                _ if name == "orpo" => (PairLoss::OddsRatio, true),
                Some("hinge") => (PairLoss::Hinge, false),
                Some("ipo") => (PairLoss::IpoSum, true),
                _ if simpo => (PairLoss::Simpo, true),
                _ => (PairLoss::Sigmoid, false),
            };
            // TRL's special rule for alphapo.
            let imitates = if case["loss_type"] == "alphapo" { 0.0 } else { 1.0 };
            let settings = Settings {
                losses: vec![(loss, 1.0)],
                averages,
                beta: number(case, "beta", 0.1),
                label_smoothing: number(case, "label_smoothing", 0.0),
                sft_weight: number(case, "cpo_alpha", imitates),
                gamma: number(case, "simpo_gamma", 0.5),
                alpha: number(case, "alpha", 0.0),
                ..Settings::default()
            };
            let objective: Arc<dyn Objective> = Arc::new(Pairs(settings));
            let steps = steps(&rows, 4, name == "orpo", false);
            check(case_name, &train(&alone(), "model", &steps, &objective, rate(&golden)), case, 1e-5);
        }
    }
}

#[test]
fn reward_models_are_trls() {
    let golden = golden("reward");
    for (name, case) in golden["cases"].as_object().unwrap() {
        let pair = |row: &Value| {
            let margin =
                if case["margin"] == true { row["margin"].as_f64().unwrap() as f32 } else { f32::NAN };
            ["chosen_ids", "rejected_ids"]
                .map(|key| Document { ids: list(&row[key]), start: 0, known: vec![f32::NAN, margin] })
                .into_iter()
                .collect()
        };
        let rows: Vec<Vec<Document>> = golden["rows"].as_array().unwrap().iter().map(pair).collect();
        let center = number(case, "center_rewards_coefficient", 0.0);
        let objective: Arc<dyn Objective> = Arc::new(Reward { center, ..Reward::default() });
        let found = train(&alone(), "reward", &steps(&rows, 4, false, false), &objective, rate(&golden));
        check(name, &found, case, 1e-5);
    }
}

/// Pads all streams to one length.
fn filled(steps: &[Vec<MicroBatch>]) -> Vec<Vec<MicroBatch>> {
    let fill = |micro: &MicroBatch| {
        let (mut micro, from) = (micro.clone(), micro.ids.len());
        micro.ids.resize(128, 0);
        micro.labels.resize(128, -100);
        micro.reference.resize(if micro.reference.is_empty() { 0 } else { 128 }, 0.0);
        micro.positions.extend(0..(128 - from) as i32);
        micro.docs.push(from..128);
        micro
    };
    steps.iter().map(|micros| micros.iter().map(fill).collect()).collect()
}

/// Pairs in one stream, one after the other, and over ranks give the same steps.
#[test]
fn packing_accumulation_and_ranks_change_nothing() {
    let golden = golden("dpo");
    let rows = pairs(&golden, 64);
    let objectives: [Arc<dyn Objective>; 2] =
        [Arc::new(Pairs(Settings { sft_weight: 0.3, ..Settings::default() })), Arc::new(Reward::default())];
    for (objective, model) in objectives.iter().zip(["model", "reward"]) {
        let whole = steps(&rows, 4, false, true);
        let expected = train(&alone(), model, &whole, objective, 3e-3);
        let same = |name: &str, found: &[StepResults]| {
            for (found, expected) in found.iter().zip(&expected) {
                let near =
                    |a: f64, b: f64| assert!((a - b).abs() <= 2e-6 * b.abs().max(1.0), "{name}: {a} and {b}");
                near(found.0.into(), expected.0.into());
                near(found.1.into(), expected.1.into());
                found.2.iter().zip(&expected.2).for_each(|(a, b)| near(a.1, b.1));
            }
        };
        let single = steps(&rows, 1, false, true);
        same("accumulated", &train(&alone(), model, &single, objective, 3e-3));
        let grid = Grid::default();
        for (name, grid, steps) in [
            ("cp 2", Grid { cp: 2, ..grid }, filled(&whole)),
            ("tp 2", Grid { tp: 2, ..grid }, filled(&whole)),
            ("dp 2", Grid { dp: 2, ..grid }, filled(&steps(&rows, 2, false, true))),
        ] {
            let seats = threads(2, ThreadsOptions::default());
            std::thread::scope(|scope| {
                let rank = |(at, seat): (usize, Seat)| {
                    let own = |micros: &Vec<MicroBatch>| {
                        if grid.dp == 2 { vec![micros[at].clone()] } else { micros.clone() }
                    };
                    let steps: Vec<Vec<MicroBatch>> = steps.iter().map(own).collect();
                    scope.spawn(move || {
                        let device = Device::on_mesh(
                            Arc::new(Cpu::new(1, None)),
                            1 << 28,
                            Mesh::new(grid, Box::new(seat.take())),
                        );
                        train(&device, model, &steps, objective, 3e-3)
                    })
                };
                let ranks: Vec<_> = seats.into_iter().enumerate().map(rank).collect();
                for rank in ranks {
                    same(name, &rank.join().unwrap());
                }
            });
        }
    }
}
