//! Adapters of encoders and encoder-decoders: PEFT's folders compute, have the gradients and merge as in PEFT, plans are
//! peaks, and several ranks give the results of one.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{Counters, Eval, Memory, Params, Places, Scope};
use fathom_model::{
    Adapter, AdapterMethod, Caps, Model, PackedTokens, SafeTensors, Size, Source, Spec, Targets,
    TrainableWeights, adapt, initialise, load_peft, merge, open_any, open_any_config, open_peft, read_f32,
    save_peft,
};
use fathom_tensor::mesh::{CountingLink, Grid, Mesh};
use fathom_tensor::{DType, Device, Machine, Meta};
use fathom_text::pack::{Facts, IGNORE};
use fathom_train::encoder::{Contrast, LabelLoss, LabelObjective, Pooling};
use fathom_train::parallel::Sharding;
use fathom_train::seq2seq::{Seq2seq, SpanSizes};
use fathom_train::{CrossEntropy, InStep, MicroBatch, Objective, SourceTokens, Trainer, frozen};
use serde_json::{Value, json};

use crate::adapters::{LORA, train_spec};
use crate::mesh::{ADAMW, Case, ONE, every_rank};
use crate::seq2seq::check_plan;

fn tests(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(path)
}

fn golden(name: &str) -> PathBuf {
    tests("golden_adapters/encoders").join(name)
}

const CASES: [&str; 18] = [
    "bert_vectors",
    "modernbert_vectors",
    "bert_texts",
    "bert_texts_saved",
    "bert_ranks",
    "roberta_texts",
    "deberta_texts",
    "modernbert_texts",
    "electra_texts",
    "distilbert_tokens",
    "bert_masked",
    "bert_ia3",
    "t5_lora",
    "t5_v10_lora",
    "t5_dora",
    "t5_served",
    "t5_served_dora",
    "t5_ia3",
];
const CAPS: Caps = Caps { docs: 4, seq_tokens: 64 };
const SPANS: Seq2seq = Seq2seq { spans: Some(SpanSizes { share: 0.15, mean: 3.0 }) };

/// A golden case.
struct Peft {
    name: &'static str,
    expected: Value,
    tensors: SafeTensors,
}

impl Peft {
    fn open(name: &'static str) -> Peft {
        let text = std::fs::read_to_string(golden(name).join("expected.json")).unwrap();
        let tensors = SafeTensors::open_file(&golden(name).join("expected.safetensors")).unwrap();
        Peft { name, expected: serde_json::from_str(&text).unwrap(), tensors }
    }

    fn loss(&self) -> &str {
        self.expected["loss"].as_str().unwrap()
    }

    fn base(&self) -> PathBuf {
        tests(self.expected["base"].as_str().unwrap())
    }

    /// Modules that PEFT trains with the adapter.
    fn trained(&self) -> TrainableWeights {
        let config = std::fs::read_to_string(golden(self.name).join("before/adapter_config.json")).unwrap();
        let config: Value = serde_json::from_str(&config).unwrap();
        let saved = config["modules_to_save"].as_array().cloned().unwrap_or_default();
        let pattern = |module: Value| format!(r"(^|\.)(pre_)?{}\.", module.as_str().unwrap());
        let saved = saved.into_iter().filter(|module| module != "score").map(pattern);
        TrainableWeights::adapter(&saved.collect::<Vec<String>>()).unwrap()
    }

    fn model(&self, device: &Device) -> (Model, Params) {
        let base = open_any(&self.base()).unwrap();
        let (spec, tensors) = open_peft(&golden(self.name).join("before"), base.spec).unwrap();
        let (model, mut params) = Model::declare(device, &spec, DType::F32);
        load_peft(device, &model, &mut params, (&base.source, &tensors)).unwrap();
        (model, params)
    }

    fn micro(&self) -> MicroBatch {
        let (mut micro, mut source) = (MicroBatch::default(), SourceTokens::default());
        let ints = |value: &Value| serde_json::from_value::<Vec<i32>>(value.clone()).unwrap();
        for doc in self.expected["docs"].as_array().unwrap() {
            let parts = doc.as_array().unwrap();
            let ids = ints(&parts[usize::from(parts.len() > 2)]);
            let (start, len) = (micro.ids.len(), ids.len());
            micro.docs.push(start..start + len);
            micro.positions.extend(0..len as i32);
            micro.ids.extend(ids);
            match self.loss() {
                "texts" => {
                    micro.labels.extend(vec![IGNORE; len]);
                    micro.facts.values.extend([len as f32, parts[1].as_f64().unwrap() as f32]);
                }
                "tokens" => {
                    micro.labels.extend(vec![IGNORE; len]);
                    micro.facts.values.push(len as f32);
                    // A label is the weight of the token before.
                    let labels = ints(&parts[1]);
                    micro.weights.extend(labels[1..].iter().map(|label| (label + 1).max(0) as f32));
                    micro.weights.push(0.0);
                }
                _ => {
                    micro.labels.extend(ints(&parts[parts.len() - 1]));
                    micro.facts.values.extend((self.loss() == "vectors").then_some(len as f32));
                }
            }
            if parts.len() > 2 {
                let (ids, start) = (ints(&parts[0]), source.ids.len());
                source.docs.push(start..start + ids.len());
                source.positions.extend(0..ids.len() as i32);
                source.ids.extend(ids);
            }
        }
        let width = micro.facts.values.len() / micro.docs.len();
        micro.facts = Facts { width, ..micro.facts };
        micro.source = (self.loss() == "pairs").then_some(source);
        micro
    }

    fn how(&self) -> InStep {
        let temperature = self.expected["temperature"].as_f64().unwrap();
        let labelled = |loss| LabelObjective { name: "classify", loss, group: 1 };
        let contrast = Contrast { group: 2, pooling: Pooling::Mean, temperature, widths: vec![] };
        let objective: Arc<dyn Objective> = match self.loss() {
            "vectors" => Arc::new(contrast),
            "texts" => Arc::new(labelled(LabelLoss::OneOf)),
            "tokens" => Arc::new(labelled(LabelLoss::Tokens)),
            "pairs" => Arc::new(SPANS),
            _ => Arc::new(CrossEntropy),
        };
        let mut how = InStep::plain(Places::linear(), CAPS);
        (how.goal.objective, how.goal.trained) = (objective, self.trained());
        how
    }

    /// Hidden states, or logits of texts or tokens.
    fn outputs(&self, device: &Device, model: &Model, params: &Params) -> Vec<f32> {
        let (micro, counters) = (self.micro(), Counters::default());
        let main = PackedTokens { ids: &micro.ids, positions: &micro.positions, docs: &micro.docs };
        let scope = |batch| Scope { device, params, batch, counters: &counters };
        let [source, batch] = match &micro.source {
            None => [None, Some(model.batch(device, main, CAPS))],
            Some(SourceTokens { ids, positions, docs }) => {
                model.batches(device, [PackedTokens { ids, positions, docs }, main], CAPS).map(Some)
            }
        };
        let batch = batch.unwrap();
        let run = |batch| Eval::new(scope(batch), None, None);
        let hidden = match &source {
            None => model.forward(&mut run((&batch).into())),
            Some(source) => {
                let runs = [&mut run(source.into()), &mut run((&batch).into())];
                model.forward_streams(runs, 0, None, &|value| Memory { value, gradient: None }).main
            }
        };
        if self.loss() == "vectors" {
            return device.to_f32(&hidden);
        }
        let all = device.to_f32(&model.head(0.0).logits(&scope((&batch).into()), &hidden));
        if self.loss() != "texts" {
            return all;
        }
        let width = all.len() / micro.ids.len();
        micro.docs.iter().flat_map(|doc| all[doc.start * width..][..width].to_vec()).collect()
    }

    fn wanted(&self, tensor: &str) -> Vec<f32> {
        read_f32(&self.tensors, tensor, 0..self.tensors.shape(tensor).unwrap()[0]).unwrap()
    }
}

/// The largest distance, and the largest number.
fn apart(found: &[f32], wanted: &[f32]) -> [f32; 2] {
    assert_eq!(found.len(), wanted.len());
    let top = wanted.iter().fold(0.0f32, |top, x| top.max(x.abs()));
    [found.iter().zip(wanted).fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs())), top]
}

fn cpu() -> Device {
    Device::new(Arc::new(Cpu::new(1, None)), 1 << 28)
}

#[test]
fn every_case_is_read() {
    let folders = std::fs::read_dir(golden("")).unwrap().map(|entry| entry.unwrap().file_name());
    let cases: BTreeSet<String> = folders.map(|name| name.into_string().unwrap()).collect();
    assert_eq!(cases, CASES.map(String::from).into());
}

#[test]
fn pefts_folders_compute_and_merge_as_in_peft() {
    for name in CASES {
        let (device, case) = (cpu(), Peft::open(name));
        let (model, params) = case.model(&device);
        let [worst, top] = apart(&case.outputs(&device, &model, &params), &case.wanted("outputs"));
        assert!(worst <= 1e-5 * top.max(1.0), "{name}: outputs apart by {worst} of {top}");
        let folder = tempfile::tempdir().unwrap();
        save_peft(&device, &model, &params, folder.path(), ("base", &case.trained())).unwrap();
        let [ours, theirs] = [folder.path().to_path_buf(), golden(name).join("before")]
            .map(|folder| SafeTensors::open_file(&folder.join("adapter_model.safetensors")).unwrap());
        let names = |tensors: &SafeTensors| {
            // PEFT adapts the pooler, which vectors do not use.
            let used = |name: &&str| case.loss() != "vectors" || !name.contains(".pooler.");
            tensors.names().into_iter().filter(used).map(String::from).collect::<BTreeSet<String>>()
        };
        assert_eq!(names(&ours), names(&theirs), "{name}");
        for tensor in names(&theirs) {
            let shape = theirs.shape(&tensor).unwrap();
            assert_eq!(ours.shape(&tensor), Some(shape), "{name}: {tensor}");
            let bits = |from: &SafeTensors| read_f32(from, &tensor, 0..shape[0]).unwrap();
            assert!(bits(&ours) == bits(&theirs), "{name}: {tensor}");
        }
        // The written configuration is read as the same adapter.
        let again = open_peft(folder.path(), open_any(&case.base()).unwrap().spec).unwrap().0;
        assert_eq!(again, model.spec, "{name}");
        let (merged, params) = merge(&device, &model, params, 1.0);
        let [worst, top] = apart(&case.outputs(&device, &merged, &params), &case.wanted("merged.outputs"));
        assert!(worst <= 1e-5 * top.max(1.0), "{name}: merged, apart by {worst} of {top}");
    }
}

#[test]
fn losses_and_gradients_are_those_of_peft() {
    for name in CASES {
        let (device, case) = (cpu(), Peft::open(name));
        let (mut model, mut params) = case.model(&device);
        frozen(&mut model, &mut params, &case.trained()).unwrap();
        let mut trainer = Trainer::sharded(&device, model, params, Sharding::Optim, ADAMW);
        trainer.accumulate(&[case.micro()], &case.how());
        let (found, wanted) = (f64::from(trainer.loss_sum()), case.expected["summed"].as_f64().unwrap());
        assert!((found / wanted - 1.0).abs() < 1e-5, "{name}: {found} {wanted}");
        let base = trainer.model.spec.family.names.base;
        let grads: Vec<&str> =
            case.tensors.names().into_iter().filter(|name| name.starts_with("grad.")).collect();
        let all = grads.iter().flat_map(|grad| case.wanted(grad)).fold(0f32, |top, x| top.max(x.abs()));
        let mut met = 0;
        for (id, pieces) in trainer.model.pieces().iter().enumerate() {
            let id = fathom_grad::ParamId(id as u32);
            let Some(own) = trainer.grads().get(id).map(|grad| device.to_f32(grad)) else { continue };
            let width = trainer.params.shape(id)[1];
            for piece in pieces {
                let bare = piece.name.strip_prefix(base).unwrap_or(&piece.name);
                let named = [&piece.name, bare].map(|name| format!("grad.base_model.model.{name}"));
                let Some(grad) = named.iter().find(|name| case.tensors.shape(name).is_some()) else {
                    panic!("{name}: PEFT has no gradient of {}", piece.name)
                };
                met += 1;
                let wanted = case.wanted(grad);
                let rows: Range<usize> = match piece.shape.len() {
                    1 => 0..1,
                    _ => piece.param_row..piece.param_row + piece.rows.len(),
                };
                let columns = match piece.shape.len() {
                    1 => piece.param_row..piece.param_row + piece.rows.len(),
                    _ => 0..width,
                };
                let found: Vec<f32> =
                    rows.flat_map(|row| own[row * width..][columns.clone()].to_vec()).collect();
                let found = if found.len() == wanted.len() {
                    found
                } else {
                    // Terms of a lower rank than others of the same weight are padded.
                    let shape = case.tensors.shape(grad).unwrap();
                    (0..shape[0]).flat_map(|row| found[row * width..][..shape[1]].to_vec()).collect()
                };
                let [worst, _] = apart(&found, &wanted);
                assert!(worst <= 1e-5 * all, "{name}: {grad} apart by {worst} of {all}");
            }
        }
        // The pooler has no gradient in vectors.
        assert_eq!(met, grads.len(), "{name}");
    }
}

/// A specification with an adapter on some projections.
fn adapted(spec: Spec, method: AdapterMethod, ends: &[&str]) -> Spec {
    if let AdapterMethod::Networks(_) = method {
        return spec.with_adapter(Adapter::leading(method)).unwrap();
    }
    let names = match method {
        AdapterMethod::Factors => spec.factored(),
        _ => {
            let ends = ends.iter().map(|end| end.to_string()).collect();
            spec.targeted(&Targets::Ends(ends)).unwrap()
        }
    };
    let inputs = if method == AdapterMethod::Factors { spec.ways_out(&names) } else { BTreeSet::new() };
    let modules = names.into_iter().map(|name| (name, Size { rank: 4, alpha: 6.0 })).collect();
    spec.with_adapter(Adapter::of(method, modules, inputs)).unwrap()
}

const DORA: AdapterMethod = AdapterMethod::Lora { rank_stabilised: false, lengths: true, singular: false };
const METHODS: [AdapterMethod; 4] = [LORA, DORA, AdapterMethod::Factors, AdapterMethod::Networks(8)];
const T5: [&str; 7] = ["q", "k", "v", "o", "wi_0", "wi_1", "wo"];

#[test]
fn the_plan_of_a_step_with_an_adapter_is_its_peak() {
    for name in ["bert_vectors", "bert_texts", "modernbert_texts", "distilbert_tokens", "bert_masked"] {
        let case = Peft::open(name);
        let peaks = [false, true].map(|plans| {
            let cpu = Cpu::new(1, None);
            let machine: Arc<dyn Machine> =
                if plans { Arc::new(Meta::new(cpu.profile().clone())) } else { Arc::new(cpu) };
            let device = Device::new(machine, 1 << 28);
            let (mut model, mut params) = case.model(&device);
            let trained = TrainableWeights::adapter(&[]).unwrap().with_scores();
            frozen(&mut model, &mut params, &trained).unwrap();
            let mut trainer = Trainer::sharded(&device, model, params, Sharding::Optim, ADAMW);
            let mut how = case.how();
            how.goal.trained = trained;
            for _ in 0..3 {
                trainer.step(&[case.micro(), case.micro()], &how).unwrap();
            }
            device.pool.usage().peak_reserved
        });
        assert_eq!(peaks[0], peaks[1], "{name}");
    }
    for (base, method) in ["t5_v11", "t5_v10", "umt5", "t5_v11"].into_iter().zip(METHODS) {
        let device = cpu();
        let spec = adapted(
            open_any_config(&tests("golden_t5").join(base)).unwrap().0,
            method,
            &["q", "k", "v", "wo"],
        );
        let (mut model, mut params) = Model::declare(&device, &spec, DType::F32);
        initialise(&device, &model, &mut params, fathom_model::Init { deviation: 0.05, seed: 3 });
        adapt(&device, &model, &mut params, 5).unwrap();
        let trained = TrainableWeights::adapter(&[]).unwrap();
        frozen(&mut model, &mut params, &trained).unwrap();
        let trainer = Trainer::sharded(&device, model, params, Sharding::Optim, ADAMW);
        let mut how = crate::seq2seq::how(SPANS, Some(256));
        how.goal.trained = trained;
        check_plan(base, trainer, &how, &|shape| shape);
    }
}

fn modern(method: AdapterMethod) -> Spec {
    adapted(open_any_config(&tests("masked/modernbert")).unwrap().0, method, &["Wqkv", "Wo", "Wi"])
}

fn t5(method: AdapterMethod) -> Spec {
    let spec = open_any_config(&tests("golden_t5/t5_v11")).unwrap().0;
    adapted(Spec { hidden: 128, ..spec }, method, &T5)
}

#[test]
fn ranks_give_what_one_gives() {
    let grid = Grid::default();
    for (model, specs) in [
        ("modernbert", METHODS.map(|method| (method, modern as fn(AdapterMethod) -> Spec))),
        ("t5", METHODS.map(|method| (method, t5 as fn(AdapterMethod) -> Spec))),
    ] {
        for (method, spec) in specs {
            // Batches follow the model without an adapter.
            let plain: fn(bool) -> Spec = if model == "t5" { |_| t5(LORA) } else { |_| modern(LORA) };
            let one = Case { spec: plain, ..ONE };
            let train =
                |case: &Case, device: &Device| train_spec(device, case, spec(method), Places::linear());
            let alone = every_rank(one, &|device| train(&one, device)).remove(0);
            assert!(
                alone.losses[0][0] - alone.losses[3][0] > 1e-4,
                "{model} {method:?}: it learns: {alone:?}"
            );
            for (grid, sharding) in [
                (Grid { dp: 2, ..grid }, Sharding::OptimGradsParams),
                (Grid { pp: 2, ..grid }, Sharding::Optim),
                (Grid { tp: 2, ..grid }, Sharding::Optim),
                (Grid { tp: 2, sequence_parallel: true, ..grid }, Sharding::Optim),
            ] {
                let case = Case { grid, sharding, ..one };
                let ranks = every_rank(case, &|device| train(&case, device));
                for (rank, found) in ranks.iter().enumerate() {
                    for (a, b) in found.losses.iter().flatten().zip(alone.losses.iter().flatten()) {
                        let close = (a - b).abs() <= 2e-5 * b.abs().max(1.0);
                        assert!(close, "{model} {method:?} {grid}: {:?} {:?}", found.losses, alone.losses);
                    }
                    let machine = Meta::new(Cpu::new(1, None).profile().clone());
                    let mesh = Mesh::new(grid, Box::new(CountingLink::new(rank, grid.ranks())));
                    let device = Device::on_mesh(Arc::new(machine), 1 << 28, mesh);
                    let planned = train(&case, &device).peak;
                    assert_eq!(planned, found.peak, "{model} {method:?} {grid}: rank {rank}");
                }
            }
        }
    }
}

#[test]
fn folders_name_the_task_and_the_modules_of_transformers() {
    let config = |name: &'static str, trained: TrainableWeights| {
        let (device, case, folder) = (cpu(), Peft::open(name), tempfile::tempdir().unwrap());
        let (model, params) = case.model(&device);
        save_peft(&device, &model, &params, folder.path(), ("base", &trained)).unwrap();
        let text = std::fs::read_to_string(folder.path().join("adapter_config.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let alone = || TrainableWeights::adapter(&[]).unwrap();
    let vectors = config("bert_vectors", alone());
    assert_eq!(vectors["task_type"], "FEATURE_EXTRACTION");
    let targets: Vec<&str> =
        vectors["target_modules"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    // `dense` alone would add terms to the pooler.
    assert!(targets.contains(&"query") && targets.contains(&"encoder.layer.0.output.dense"), "{targets:?}");
    let texts = config("roberta_texts", alone().with_scores());
    assert_eq!(texts["task_type"], "SEQ_CLS");
    assert_eq!(texts["modules_to_save"], json!(["classifier"]));
    let texts = config("bert_texts_saved", alone().with_scores());
    assert_eq!(texts["modules_to_save"], json!(["bert.pooler.dense", "classifier"]));
    assert_eq!(config("distilbert_tokens", alone())["task_type"], "TOKEN_CLS");
    assert_eq!(config("bert_masked", alone())["task_type"], Value::Null);
    assert_eq!(config("t5_lora", alone())["task_type"], "SEQ_2_SEQ_LM");
}

#[test]
fn what_these_models_cannot_have_is_refused() {
    let spec = |path: &str| open_any_config(&tests(path)).unwrap().0;
    for (path, model) in [("masked/bert", "an encoder"), ("golden_t5/t5_v11", "an encoder-decoder")] {
        let prompt = Adapter::leading(AdapterMethod::Prompt { tokens: 3, encoder: None });
        let why = spec(path).with_adapter(prompt).unwrap_err();
        assert!(why.contains("virtual tokens") && why.contains(model), "{why}");
        let tokens = Adapter { tokens: vec![3], ..Adapter::of(LORA, Default::default(), Default::default()) };
        let why = spec(path).with_adapter(tokens).unwrap_err();
        assert!(why.contains("rows of tokens") && why.contains(model), "{why}");
    }
    let why = spec("golden_t5/t5_v11").targeted(&Targets::Ends(vec!["shared".into()])).unwrap_err();
    assert!(why.contains("no projection is called `shared`") && why.contains("wi_0"), "{why}");
    let why = spec("masked/bert").targeted(&Targets::Ends(vec!["q_proj".into()])).unwrap_err();
    assert!(why.contains("query"), "{why}");
    // A folder of another model.
    let other = open_peft(&golden("t5_lora/before"), spec("masked/bert")).err().unwrap().to_string();
    assert!(other.contains("not of this model"), "{other}");
}
