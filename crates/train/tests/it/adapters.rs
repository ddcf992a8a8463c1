//! Adapters: a step has the same bits for all places of activations, its plan is its peak, and several ranks give the
//! results of one; PEFT's folders compute, train and merge to PEFT's figures.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{AdamWSettings, Counters, Eval, Params, Places, Scope, VIRTUAL};
use fathom_model::{
    Adapter, AdapterMethod, Caps, Init, Model, PackedTokens, PromptEncoder, Quantization, SafeTensors, Size,
    Source, Spec, Targets, TrainableWeights, adapt, initialise, load, load_peft, merge, open, open_peft,
    read_f32, save_peft,
};
use fathom_tensor::mesh::{CountingLink, Grid, Mesh};
use fathom_tensor::{BlockFormat, DType, Device, Machine, Meta};
use fathom_text::pack;
use fathom_train::parallel::{Ranks, Sharding};
use fathom_train::{Goal, InStep, MicroBatch, Trainer, frozen};
use serde_json::{Value, json};

use crate::mesh::{ADAMW, Case, ONE, batches, every_rank, in_step, spec};

/// Virtual tokens of all five kinds.
pub const LEADING: [AdapterMethod; 5] = [
    AdapterMethod::Prompt { tokens: 3, encoder: None },
    AdapterMethod::Prompt { tokens: 3, encoder: Some(PromptEncoder { hidden: 8, lstm: false }) },
    AdapterMethod::Prompt { tokens: 3, encoder: Some(PromptEncoder { hidden: 8, lstm: true }) },
    AdapterMethod::Prefix { tokens: 3, encoder: None },
    AdapterMethod::Prefix { tokens: 3, encoder: Some(8) },
];
pub const LORA: AdapterMethod =
    AdapterMethod::Lora { rank_stabilised: false, lengths: false, singular: false };
const DORA: AdapterMethod = AdapterMethod::Lora { rank_stabilised: false, lengths: true, singular: false };

/// The model with an adapter on some parts of fused weights, and on the last weights of sub-layers.
fn adapted(method: AdapterMethod, case: &Case) -> Spec {
    let spec = (case.spec)(case.tied);
    let ends = ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
    let ends = match method {
        AdapterMethod::Factors => vec!["k_proj", "v_proj", "o_proj", "down_proj"],
        _ => ends.to_vec(),
    };
    if let AdapterMethod::Networks(_) | AdapterMethod::Prompt { .. } | AdapterMethod::Prefix { .. } = method {
        return spec.with_adapter(Adapter::leading(method)).unwrap();
    }
    let targets = Targets::Ends(ends.into_iter().map(String::from).collect());
    let names = spec.targeted(&targets).unwrap();
    let inputs = if method == AdapterMethod::Factors { spec.ways_out(&names) } else { Default::default() };
    let modules = names.into_iter().map(|name| (name, Size { rank: 4, alpha: 6.0 })).collect();
    spec.with_adapter(Adapter::of(method, modules, inputs)).unwrap()
}

#[derive(Debug, PartialEq)]
pub struct AdapterResults {
    pub losses: Vec<[f32; 2]>,
    pub peak: u64,
}

pub fn train(device: &Device, case: &Case, method: AdapterMethod, places: Places) -> AdapterResults {
    train_spec(device, case, adapted(method, case), places)
}

/// Four steps that train only the adapter of `spec`.
pub fn train_spec(device: &Device, case: &Case, spec: Spec, places: Places) -> AdapterResults {
    let how = in_step(case);
    let ranks = Ranks { rank: device.mesh.rank(), ..how.ranks };
    let lead = spec.virtual_tokens();
    let trained = TrainableWeights::adapter(&[]).unwrap();
    let quantized = (case.dtype == DType::Bf16).then(|| Quantization {
        format: BlockFormat::Nf4,
        double: true,
        trained: trained.clone(),
    });
    let portion = ranks.portion(&spec, &device.mesh);
    let (mut model, mut params) =
        Model::declare_quantized(device, &spec, case.dtype, None, (portion, quantized.as_ref()));
    initialise(device, &model, &mut params, Init { deviation: 0.05, seed: 3 });
    adapt(device, &model, &mut params, 5).unwrap();
    frozen(&mut model, &mut params, &trained).unwrap();
    let mut trainer = Trainer::sharded(device, model, params, case.sharding, ADAMW);
    let drops = trainer.model.spec.drops().then_some(9);
    let goal = Goal { trained, quantized, drops, ..Goal::default() };
    let adamw = AdamWSettings { lr: 1e-2, ..how.adamw };
    let how = InStep { goal, adamw, places: places.with_tiles(case.tile_rows), ..how };
    let mut batches = batches(device, case, 4);
    for micro in &mut batches {
        for at in micro.docs.iter().flat_map(|doc| (0..lead).map(|token| [doc.start + token, token])) {
            (micro.ids[at[0]], micro.labels[at[0]]) = ((VIRTUAL + at[1]) as i32, -100);
        }
    }
    let step = |_| {
        let result = trainer.step(&batches, &how).unwrap();
        [result.loss.wait_f32() / result.count.wait_f32(), result.norm.wait_f32()]
    };
    let losses = (0..4).map(step).collect();
    AdapterResults { losses, peak: device.pool.usage().peak_reserved }
}

#[test]
fn placements_do_not_change_a_bit_and_plans_are_peaks() {
    let methods = [LORA, DORA, AdapterMethod::Factors, AdapterMethod::Networks(8)].into_iter().chain(LEADING);
    for (index, method) in methods.enumerate() {
        // In f32 and over NF4 in turns; the first method in both.
        let dtypes = [DType::F32, DType::Bf16];
        for dtype in if index == 0 { &dtypes[..] } else { &dtypes[index % 2..][..1] }.iter().copied() {
            let case = Case { dtype, ..ONE };
            let run = |case: Case, places: &(dyn Fn() -> Places + Sync)| {
                let seen = every_rank(case, &|device| train(device, &case, method, places())).remove(0);
                let device = Device::new(Arc::new(Meta::new(Cpu::new(1, None).profile().clone())), 1 << 28);
                assert_eq!(train(&device, &case, method, places()).peak, seen.peak, "{method:?} {dtype:?}");
                seen.losses
            };
            let kept = run(case, &Places::none);
            assert!(kept[0][0] - kept[3][0] > 0.01, "{method:?}: it learns: {kept:?}");
            assert_eq!(run(case, &Places::linear), kept, "{method:?}");
            assert_eq!(run(Case { tile_rows: Some(128), ..case }, &Places::full), kept, "{method:?}");
        }
    }
}

#[test]
fn ranks_give_what_one_gives() {
    let grid = Grid::default();
    for method in [LORA, DORA, AdapterMethod::Factors, AdapterMethod::Networks(8)].into_iter().chain(LEADING)
    {
        if matches!(method, AdapterMethod::Prefix { encoder: Some(_), .. }) {
            // This is refused: the encoder shared by all layers is not summed over ranks.
            continue;
        }
        let one = every_rank(ONE, &|device| train(device, &ONE, method, Places::linear())).remove(0);
        for (grid, sharding) in [
            (Grid { dp: 2, ..grid }, Sharding::OptimGradsParams),
            (Grid { pp: 2, ..grid }, Sharding::Optim),
            (Grid { tp: 2, ..grid }, Sharding::Optim),
            (Grid { tp: 2, sequence_parallel: true, ..grid }, Sharding::Optim),
            (Grid { cp: 2, ..grid }, Sharding::Optim),
        ] {
            // This is refused: each rank would have only some of the heads of a prefix, or some rows of the embedding.
            let refused = grid.sequence_parallel || matches!(method, AdapterMethod::Prefix { .. });
            if grid.tp > 1 && refused && LEADING.contains(&method) {
                continue;
            }
            let case = Case { grid, sharding, ..ONE };
            let ranks = every_rank(case, &|device| train(device, &case, method, Places::linear()));
            for (rank, found) in ranks.iter().enumerate() {
                for (a, b) in found.losses.iter().flatten().zip(one.losses.iter().flatten()) {
                    let apart = (a - b).abs() > 2e-5 * b.abs().max(1.0);
                    assert!(!apart, "{method:?} {grid}: {:?} {:?}", found.losses, one.losses);
                }
                let machine = Meta::new(Cpu::new(1, None).profile().clone());
                let mesh = Mesh::new(grid, Box::new(CountingLink::new(rank, grid.ranks())));
                let device = Device::on_mesh(Arc::new(machine), 1 << 28, mesh);
                let planned = train(&device, &case, method, Places::linear()).peak;
                assert_eq!(planned, found.peak, "{method:?} {grid}: rank {rank}");
            }
        }
    }
}

pub fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_adapters").join(path)
}

/// A golden case of PEFT.
pub struct Peft {
    pub name: &'static str,
    pub expected: Value,
    pub tensors: SafeTensors,
}

impl Peft {
    pub fn open(name: &'static str) -> Peft {
        let text = std::fs::read_to_string(golden(name).join("expected.json")).unwrap();
        let tensors = SafeTensors::open_file(&golden(name).join("expected.safetensors")).unwrap();
        Peft { name, expected: serde_json::from_str(&text).unwrap(), tensors }
    }

    pub fn list(&self, key: &str) -> Vec<f64> {
        self.expected[key].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    }

    /// The weights trained in PEFT's case.
    fn trained(&self) -> TrainableWeights {
        let patterns = match self.name {
            "modules_to_save" => vec![r"norm\.weight$".into(), "lm_head".into()],
            "gpt2_bias" | "qwen2_all" => vec![r"\.bias$".into()],
            "qwen2_lora_only" => vec![r"[qv]_proj\.bias$".into()],
            "tied_head" => vec!["lm_head".into()],
            "tied_embedding" | "tied_ensured" => vec!["embed_tokens".into()],
            "router" => vec![r"\.gate\.".into()],
            _ => vec![],
        };
        TrainableWeights::adapter(&patterns).unwrap()
    }

    /// The documents, each after `lead` virtual tokens.
    pub fn micro(&self, lead: usize) -> MicroBatch {
        let ints = |key| self.list(key).into_iter().map(|x| x as i32).collect::<Vec<i32>>();
        let starts = self.list("document_starts");
        let docs: Vec<_> = starts.windows(2).map(|pair| (pair[0] as u32, pair[1] as u32)).collect();
        let tokens = ints("input_ids").into_iter().map(|id| id as u32).collect();
        let positions = docs.iter().flat_map(|(start, end)| 0..(end - start) as i32).collect();
        let packed = pack::PackedSample {
            tokens,
            labels: ints("labels"),
            positions,
            docs,
            ..pack::PackedSample::default()
        };
        let pack::PackedSample { tokens, labels, positions, docs, .. } = packed.led(lead);
        MicroBatch {
            ids: tokens.into_iter().map(|id| id as i32).collect(),
            labels,
            positions,
            docs: docs.into_iter().map(|(start, end)| start as usize..end as usize).collect(),
            ..MicroBatch::default()
        }
    }

    pub fn model(&self, device: &Device) -> (Model, Params) {
        let base = open(&golden(self.expected["base"].as_str().unwrap())).unwrap();
        let (spec, tensors) = open_peft(&golden(self.name).join("before"), base.spec).unwrap();
        let (model, mut params) = Model::declare(device, &spec, DType::F32);
        load_peft(device, &model, &mut params, (&base.source, &tensors)).unwrap();
        (model, params)
    }

    pub fn logits(&self, device: &Device, model: &Model, params: &Params) -> Vec<f32> {
        let micro = self.micro(model.spec.virtual_tokens());
        let packed = PackedTokens { ids: &micro.ids, positions: &micro.positions, docs: &micro.docs };
        let batch = model.batch(device, packed, CAPS);
        let counters = Counters::default();
        let scope = Scope { device, params, batch: (&batch).into(), counters: &counters };
        let hidden = model.forward(&mut Eval::new(scope.clone(), None, None));
        let logits = device.to_f32(&model.head(0.0).logits(&scope, &hidden));
        let rows = logits.chunks_exact(model.spec.vocab).zip(&micro.ids);
        rows.filter(|(_, id)| (**id as usize) < VIRTUAL).flat_map(|(row, _)| row.to_vec()).collect()
    }

    #[track_caller]
    pub fn close(&self, what: &str, found: &[f32], tensor: &str, tolerance: f32) {
        let shape = self.tensors.shape(tensor).unwrap();
        let wanted = read_f32(&self.tensors, tensor, 0..shape[0]).unwrap();
        let top = wanted.iter().fold(0.0f32, |top, x| top.max(x.abs()));
        let worst = found.iter().zip(&wanted).fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs()));
        assert_eq!(found.len(), wanted.len());
        assert!(worst <= tolerance * top, "{} {what}: apart by {worst} of {top}", self.name);
    }
}

pub const CAPS: Caps = Caps { docs: 4, seq_tokens: 33 };

/// The cases whose folders PEFT wrote.
const READ: [&str; 36] = [
    "lora_attention",
    "lora_all_linear",
    "lora_regex",
    "lora_layers",
    "lora_alphas",
    "rslora",
    "dora",
    "pissa",
    "ia3",
    "gpt2_lora",
    "gpt2_ia3",
    "modules_to_save",
    "prompt",
    "p_tuning",
    "p_tuning_lstm",
    "prefix",
    "prefix_projection",
    "lora_patterns",
    "lora_bias",
    "lora_wide",
    "lora_plus",
    "lora_embeddings",
    "lora_head",
    "token_rows",
    "gpt2_bias",
    "qwen3_next_lora",
    "mamba2_lora",
    "qwen2_lora_only",
    "qwen2_all",
    "experts_each",
    "experts_stacked",
    "experts_stacked_018",
    "tied_head",
    "tied_embedding",
    "tied_ensured",
    "router",
];

#[test]
fn every_case_is_read() {
    let folders = std::fs::read_dir(golden("")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut cases: Vec<String> = folders.map(|name| name.into_string().unwrap()).collect();
    cases.retain(|name| golden(name).join("before").exists());
    cases.sort();
    let mut read = READ.map(String::from);
    read.sort();
    assert_eq!(cases, read);
}

#[test]
fn pefts_folders_compute_and_merge_as_in_peft() {
    for name in READ {
        let (device, case) = (Device::new(Arc::new(Cpu::new(1, None)), 1 << 28), Peft::open(name));
        let (model, params) = case.model(&device);
        // PEFT decomposes projections in f32, and its subtraction has that error.
        let bar = if name == "pissa" { 2e-5 } else { 3e-6 };
        case.close("logits", &case.logits(&device, &model, &params), "logits", bar);
        // Written files equal the read ones byte for byte.
        let folder = tempfile::tempdir().unwrap();
        save_peft(&device, &model, &params, folder.path(), ("llama", &case.trained())).unwrap();
        let [ours, theirs] = [folder.path().to_path_buf(), golden(name).join("before")]
            .map(|folder| SafeTensors::open_file(&folder.join("adapter_model.safetensors")).unwrap());
        let names = |tensors: &SafeTensors| {
            let mut names: Vec<String> = tensors.names().into_iter().map(String::from).collect();
            names.sort();
            names
        };
        assert_eq!(names(&ours), names(&theirs), "{name}");
        for tensor in theirs.names() {
            let shape = theirs.shape(tensor).unwrap();
            assert_eq!(ours.shape(tensor), Some(shape), "{name}: {tensor}");
            let bits = |from: &SafeTensors| read_f32(from, tensor, 0..shape[0]).unwrap();
            assert!(bits(&ours) == bits(&theirs), "{name}: {tensor}");
        }
        let base = open(&golden(case.expected["base"].as_str().unwrap())).unwrap();
        let again = open_peft(folder.path(), base.spec).unwrap().0;
        assert_eq!(again.adapter, model.spec.adapter, "{name}: our configuration says the same");
        assert_eq!(again.tied, model.spec.tied, "{name}: our configuration says the same of the head");
        if model.spec.merges().is_err() {
            assert!(case.tensors.shape("merged.logits").is_none(), "{name}: PEFT merges it");
            continue;
        }
        let (merged, params) = merge(&device, &model, params, 1.0);
        case.close("merged", &case.logits(&device, &merged, &params), "merged.logits", 2e-5);
    }
}

#[test]
fn three_steps_are_pefts() {
    for name in READ {
        let (device, case) = (Device::new(Arc::new(Cpu::new(1, None)), 1 << 28), Peft::open(name));
        let (mut model, mut params) = case.model(&device);
        if super::leading::ENCODED.contains(&name) {
            (model, params) = super::leading::with_encoder(&case, &device);
        }
        let (trained, lead) = (case.trained(), model.spec.virtual_tokens());
        if name == "qwen2_lora_only" {
            // Here the biases of queries, keys and values are one weight; PEFT leaves those of keys unchanged.
            let error = frozen(&mut model, &mut params, &trained).unwrap_err().to_string();
            assert!(error.contains("are one weight here"), "{error}");
            continue;
        }
        frozen(&mut model, &mut params, &trained).unwrap();
        let lr = match &case.expected["lora_plus"] {
            Value::Null => 1e-2,
            plus => {
                let of = |key: &str| plus[key].as_f64().unwrap();
                model.scale_rates(&mut params, of("loraplus_lr_ratio") as f32);
                let ratio = of("loraplus_lr_embedding") / of("lr");
                model.scale_embedding_rates(&mut params, ratio as f32);
                of("lr") as f32
            }
        };
        let mut trainer = Trainer::sharded(&device, model, params, Sharding::Optim, ADAMW);
        let adamw = AdamWSettings {
            lr,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
            max_norm: 0.0,
            ..AdamWSettings::default()
        };
        let goal = Goal { trained, ..Goal::default() };
        let how = InStep { goal, adamw, caps: CAPS, z_loss: 0.0, places: Places::none(), ..in_step(&ONE) };
        let (micro, losses, norms) = (case.micro(lead), case.list("losses"), case.list("grad_norms"));
        for (step, (loss, norm)) in losses.iter().zip(norms).enumerate() {
            if step == 3 && (lead > 0 || case.expected["moves"]["after"].as_object().unwrap().is_empty()) {
                let logits = case.logits(&device, &trainer.model, &trainer.params);
                case.close("after", &logits, "after.logits", 2e-5);
            }
            let result = trainer.step(std::slice::from_ref(&micro), &how).unwrap();
            let found = f64::from(result.loss.wait_f32() / result.count.wait_f32());
            assert!((found - loss).abs() < 1e-5 * loss, "{name}: loss {found}, not {loss}");
            let found = f64::from(result.norm.wait_f32());
            assert!((found - norm).abs() < 5e-5 * norm, "{name}: norm {found}, not {norm}");
        }
    }
}

/// A saved model with low-rank terms on `targets` whose weights matching `trained` were changed: its folder,
/// configuration, and logits before and after.
fn moved(base: &str, targets: &[&str], trained: &str) -> (tempfile::TempDir, Value, [Vec<f32>; 2]) {
    let (device, case) = (Device::new(Arc::new(Cpu::new(1, None)), 1 << 28), Peft::open("lora_attention"));
    let base = open(&golden(base)).unwrap();
    let ends = Targets::Ends(targets.iter().map(|end| end.to_string()).collect());
    let names = base.spec.targeted(&ends).unwrap();
    let modules = names.into_iter().map(|name| (name, Size { rank: 2, alpha: 4.0 })).collect();
    let spec = base.spec.clone().with_adapter(Adapter::of(LORA, modules, Default::default())).unwrap();
    let (mut model, mut params) = Model::declare(&device, &spec, DType::F32);
    load(&device, &model, &mut params, &base.source).unwrap();
    adapt(&device, &model, &mut params, 5).unwrap();
    let trained = TrainableWeights::adapter(&[trained.into()]).unwrap();
    frozen(&mut model, &mut params, &trained).unwrap();
    for (_, param) in params.iter().filter(|(_, param)| param.trainable) {
        param.value.read(|range, tensor| {
            let own = device.to_f32(tensor).into_iter().enumerate();
            let moved = own.map(|(at, x)| x + 0.05 * ((range.start + at) as f32).sin());
            let bytes: Vec<u8> = moved.flat_map(f32::to_le_bytes).collect();
            device.machine.write(tensor, &bytes);
        });
    }
    let folder = tempfile::tempdir().unwrap();
    save_peft(&device, &model, &params, folder.path(), ("base", &trained)).unwrap();
    let text = std::fs::read_to_string(folder.path().join("adapter_config.json")).unwrap();
    let before = case.logits(&device, &model, &params);
    let (spec, tensors) = open_peft(folder.path(), base.spec).unwrap();
    let (model, mut params) = Model::declare(&device, &spec, DType::F32);
    load_peft(&device, &model, &mut params, (&base.source, &tensors)).unwrap();
    let after = case.logits(&device, &model, &params);
    (folder, serde_json::from_str(&text).unwrap(), [before, after])
}

/// PEFT refuses to save a module with terms, and reads its weight from below them.
#[test]
fn what_is_trained_under_terms_is_no_saved_module() {
    for (base, targets, trained, under) in [
        ("llama", vec!["q_proj"], r"layers\.1\.", "model.layers.1.self_attn.q_proj"),
        ("llama", vec!["lm_head", "q_proj"], "lm_head", "lm_head"),
        ("tied", vec!["lm_head", "q_proj"], "embed_tokens", "lm_head"),
        ("tied", vec!["embed_tokens", "q_proj"], "embed_tokens", "model.embed_tokens"),
        ("gpt2", vec!["c_attn"], r"h\.1\..*weight", "transformer.h.1.attn.c_attn"),
    ] {
        let (folder, config, [before, after]) = moved(base, &targets, trained);
        assert!(before == after, "{base} {trained}: it is read as it was");
        let saved = config["modules_to_save"].to_string();
        assert!(!saved.contains(&format!("\"{under}\"")), "{base} {trained}: {saved}");
        let tensors = SafeTensors::open_file(&folder.path().join("adapter_model.safetensors")).unwrap();
        let name = format!("base_model.model.{under}.base_layer.weight");
        assert!(tensors.shape(&name).is_some(), "{base} {trained}: {:?}", tensors.names());
    }
    // PEFT gives a tied head the embedding's new weights only if the head is saved as well.
    let (folder, config, [before, after]) = moved("tied", &["q_proj"], "embed_tokens");
    assert!(before == after);
    assert_eq!(config["modules_to_save"], json!(["lm_head", "model.embed_tokens"]));
    assert_eq!(config["ensure_weight_tying"], json!(true));
    let tensors = SafeTensors::open_file(&folder.path().join("adapter_model.safetensors")).unwrap();
    assert!(tensors.shape("base_model.model.lm_head.weight").is_some());
    // The pattern is a module's name, not a name in files.
    let (_, config, [before, after]) = moved("mixtral", &["q_proj"], r"\.gate\.");
    assert!(before == after);
    assert_eq!(config["modules_to_save"], json!(["model.layers.0.mlp.gate", "model.layers.1.mlp.gate"]));
}

#[test]
fn weights_that_no_folder_of_an_adapter_has_are_not_trained_with_it() {
    let refused = |base: &str, tokens: &[u32], trained: &str| {
        let device = Device::new(Arc::new(Meta::new(Cpu::new(1, None).profile().clone())), 1 << 28);
        let spec = open(&golden(base)).unwrap().spec;
        let names = spec.targeted(&Targets::Ends(vec!["q_proj".into()])).unwrap();
        let modules = names.into_iter().map(|name| (name, Size { rank: 2, alpha: 4.0 })).collect();
        let adapter = Adapter { tokens: tokens.to_vec(), ..Adapter::of(LORA, modules, Default::default()) };
        let spec = spec.with_adapter(adapter).unwrap();
        let (mut model, mut params) = Model::declare(&device, &spec, DType::F32);
        let trained = TrainableWeights::adapter(&[trained.into()]).unwrap();
        frozen(&mut model, &mut params, &trained).unwrap_err().to_string()
    };
    let why = refused("mixtral", &[], "experts");
    assert!(why.contains("model.trained") && why.contains("experts.0.w1.weight is of experts"), "{why}");
    let why = refused("llama", &[3], "embed_tokens");
    assert!(why.contains("adapter.token_rows"), "{why}");
}

#[test]
fn what_is_not_understood_is_refused() {
    for (name, key, value, said) in [
        (
            "experts_stacked",
            "target_parameters",
            json!(["mlp.gate.weight"]),
            "`target_parameters` has mlp.gate.weight",
        ),
        ("lora_attention", "target_parameters", json!(["experts.down_proj"]), "is of experts"),
        ("token_rows", "trainable_token_indices", json!([3, 17, 400]), "token 400"),
        ("token_rows", "trainable_token_indices", json!({ "lm_head": [3] }), "embed_tokens"),
        ("lora_embeddings", "use_dora", json!(true), "embed_tokens"),
        ("experts_each", "lora_dropout", json!(0.1), "dropout"),
        ("lora_attention", "ensure_weight_tying", json!(true), "ensure_weight_tying"),
    ] {
        let case = Peft::open(name);
        let base = open(&golden(case.expected["base"].as_str().unwrap())).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (golden(name).join("before"), |file: &str| folder.path().join(file));
        std::fs::copy(from.join("adapter_model.safetensors"), to("adapter_model.safetensors")).unwrap();
        let text = std::fs::read_to_string(from.join("adapter_config.json")).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config[key] = value;
        std::fs::write(to("adapter_config.json"), config.to_string()).unwrap();
        let message = open_peft(folder.path(), base.spec).err().expect(name).to_string();
        assert!(message.contains(said), "{name}: {message}");
    }
    let other = open_peft(&golden("lora_attention/before"), spec(false)).err().unwrap().to_string();
    assert!(other.contains("not of this model") || other.contains("has shape"), "{other}");
    let none = spec(false).targeted(&Targets::Ends(vec!["q".into()])).unwrap_err();
    assert!(none.contains("`q`") && none.contains("q_proj"), "{none}");
}
