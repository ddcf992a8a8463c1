//! Models whose experts stay as in their files: a GGUF file's blocks, gpt-oss's MXFP4, a folder's quantized weights.

use std::path::Path;
use std::sync::Arc;

use fathom_base::{Flow, GenerateRequest};
use fathom_cpu::Cpu;
use fathom_engine::{Engine, Limits, Scheduler};
use fathom_grad::Params;
use fathom_model::{
    FileWriter, GgufType, HfFolder, Model, ModelView, RoundTo, Source, TensorInfo, load, open, save_gguf,
};
use fathom_tensor::ggml::Kind;
use fathom_tensor::mesh::{Grid, Mesh, Seat, ThreadsOptions, threads};
use fathom_tensor::{BlockFormat, DType, Device, Machine, Meta, Packing};
use fathom_text::Tokenizer;

use crate::batch::{WAYS, steady};
use crate::few_bits::{answers, rounded};
use crate::packed::{BUDGET, bed, held, random, text};

const EXPERTS: usize = 4;

/// A folder of a model with experts whose rows are whole blocks of every type, with random weights.
fn folder(at: &Path, case: &str) -> HfFolder {
    let sizes = [
        ("hidden_size", 256),
        ("intermediate_size", 256),
        ("moe_intermediate_size", 256),
        ("shared_expert_intermediate_size", 256),
        ("head_dim", 64),
        ("num_local_experts", EXPERTS),
        ("num_experts", EXPERTS),
        ("vocab_size", 99),
    ];
    // Each family has some of these keys.
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case);
    let text = std::fs::read(golden.join("config.json")).unwrap();
    let known: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let sizes = sizes.into_iter().filter(|(key, _)| known.get(key).is_some());
    let values = sizes.map(|(key, value)| (key, value.into()));
    // llama.cpp has no windows in Mixtral.
    let window = (case == "mixtral").then_some(("sliding_window", serde_json::Value::Null));
    // llama.cpp also has no dense layers among those with experts.
    let dense = known.get("mlp_only_layers").map(|_| ("mlp_only_layers", serde_json::json!([])));
    random(at, case, values.chain(window).chain(dense), DType::F32);
    open(at).unwrap()
}

fn gguf(plain: &HfFolder, at: &Path, how: GgufType) -> HfFolder {
    let file = at.join("model.gguf");
    save_gguf((&plain.spec, &plain.source), &file, how, Vec::new()).unwrap();
    open(&file).unwrap()
}

/// Packing of a model's experts, two per layer.
fn experts(opened: &HfFolder) -> Vec<Packing> {
    let model = held(opened, DType::Bf16, true);
    let packing = |id| model.params.get(id).value.as_blocked()?.packing().cloned();
    let ids = model.model.linears().into_iter().filter(|linear| linear.role.starts_with("experts."));
    ids.filter_map(|linear| packing(linear.params.weight)).collect()
}

/// Peak bytes of a step that reads a part of a prompt.
fn peak(device: &Device, model: &Model, params: &Params) -> u64 {
    let tokenizer = Tokenizer::train_bpe(std::iter::once("a b".to_string()), 256, &[]).unwrap();
    let limits = Limits { context_tokens: 4096, chunk_tokens: 50, ..Limits::default() };
    let engine = Engine::new(ModelView { device, model, params }, &tokenizer, limits);
    let mut scheduler = Scheduler::new(&engine, engine.capacity(1, 64));
    device.pool.reset_peak();
    let prompt: Vec<u32> = (0..60).map(|at| at * 7 % 40).collect();
    scheduler.submit(GenerateRequest::greedy(prompt, 1), Box::new(|_| Flow::Continue)).unwrap();
    scheduler.step();
    device.pool.usage().peak_live
}

/// A plan's step needs the same memory as a run's, to the byte.
fn planned(opened: &HfFolder) {
    let run = held(opened, DType::Bf16, true);
    let meta = Device::new(Arc::new(Meta::new(Cpu::new(1, None).profile().clone())), BUDGET);
    let (model, params) = Model::declare_stored(&meta, &opened.spec, DType::Bf16, &opened.source);
    assert_eq!(peak(&meta, &model, &params), peak(&run.device, &run.model, &run.params));
}

#[test]
fn blocks_of_experts_answer_as_their_elements_do() {
    for (case, how, name, few) in [
        ("mixtral", GgufType::Q4KM, "mixtral q4_k_m", 10),
        ("qwen3_moe", GgufType::Q5KM, "qwen3_moe q5_k_m", 10),
        ("qwen2_moe", GgufType::Plain(Kind::Q6K), "qwen2_moe q6_k", 20),
        ("qwen3_moe", GgufType::Plain(Kind::Q8_0), "qwen3_moe q8_0", 10),
        ("mixtral", GgufType::Plain(Kind::Q4_0), "mixtral q4_0", 10),
        ("mixtral", GgufType::Plain(Kind::Q5_0), "mixtral q5_0", 10),
    ] {
        let at = tempfile::tempdir().unwrap();
        let opened = gguf(&folder(at.path(), case), at.path(), how);
        answers(name, &opened, (few, 96));
        // Their bytes in the file: three tensors for each expert of each layer.
        let (packings, layers) = (experts(&opened), opened.spec.layers.len());
        assert_eq!(packings.len(), 2 * layers, "{name}");
        let stored = |name: &&str| name.contains(".experts.");
        let bytes = |name: &str| {
            let ([rows, cols], Some(format)) = (opened.source.shape(name)?, opened.source.blocks(name))
            else {
                return None;
            };
            Some(rows * format.row_bytes(*cols))
        };
        let names = opened.source.names();
        let stored: Vec<usize> = names.into_iter().filter(stored).map(|name| bytes(name).unwrap()).collect();
        assert_eq!(stored.len(), 3 * layers * EXPERTS, "{name}");
        assert_eq!(
            packings.iter().map(Packing::bytes).sum::<usize>(),
            stored.iter().sum::<usize>(),
            "{name}"
        );
        if name == "mixtral q4_k_m" {
            let octets = |(format, _): &(BlockFormat, usize)| matches!(format, BlockFormat::Octets(_));
            assert!(packings.iter().all(|packing| packing.runs.iter().all(octets)), "{packings:?}");
            steady(&held(&opened, DType::F32, true), name, &WAYS[1..2]);
            planned(&opened);
        }
    }
}

/// gpt-oss's own files: experts as one transposed tensor, with gate and up interleaved, and biases.
#[test]
fn turned_experts_answer_as_their_elements_do() {
    let opened = open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/mxfp4")).unwrap();
    answers("gpt-oss", &opened, (2, 40));
    let packings = experts(&opened);
    assert!(packings.len() == 2 && packings.iter().all(|packing| packing.turned), "{packings:?}");
    // Four bits, and an f32 per 32 of them: in and out of three experts.
    assert_eq!(packings.iter().map(Packing::bytes).sum::<usize>(), 3 * (2 * 96 * 64 + 64 * 96) * 5 / 8);
    steady(&held(&opened, DType::F32, true), "gpt-oss", &WAYS[1..2]);
    planned(&opened);
}

/// Folders written by `fathom quantize`: each expert is packed in memory, and the router is not.
#[test]
fn experts_of_folders_in_few_bits_answer_as_their_elements_do() {
    let at = tempfile::tempdir().unwrap();
    let plain = folder(at.path(), "qwen3_moe");
    for (name, write) in crate::few_bits::FORMATS {
        let to = at.path().join(name);
        write(&plain, &to);
        let opened = open(&to).unwrap();
        // Two weights of attention and two of experts in each layer.
        answers(name, &opened, (4 * plain.spec.layers.len(), 96));
        assert_eq!(experts(&opened).len(), 2 * plain.spec.layers.len(), "{name}");
    }
}

/// Losses of some documents on each rank of a grid, and the number of packed expert weights there.
fn on_ranks(at: &Path, grid: Grid) -> Vec<(Vec<f32>, usize)> {
    let documents: Vec<Vec<u32>> = (1..4).map(|seed| text(seed, 7 + 9 * seed)).collect();
    let rank = |seat: Option<Seat>| {
        let machine = Arc::new(Cpu::new(1, None));
        let device = match seat {
            Some(seat) => Device::on_mesh(machine, BUDGET, Mesh::new(grid, Box::new(seat.take()))),
            None => Device::new(machine, BUDGET),
        };
        let opened = open(at).unwrap();
        let (model, mut params) = Model::declare_stored(&device, &opened.spec, DType::F32, &opened.source);
        load(&device, &model, &mut params, &opened.source).unwrap();
        let ids = model.linears().into_iter().filter(|linear| linear.role.starts_with("experts."));
        let packed =
            ids.filter(|linear| params.get(linear.params.weight).value.as_blocked().is_some()).count();
        (bed(device, model, params).engine(64).losses_of(&documents).unwrap().concat(), packed)
    };
    if grid.ranks() == 1 {
        return vec![rank(None)];
    }
    std::thread::scope(|scope| {
        let seats = threads(grid.ranks(), ThreadsOptions::default()).into_iter();
        let all: Vec<_> = seats.map(|seat| scope.spawn(|| rank(Some(seat)))).collect();
        all.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A gpt-oss folder like the published ones: experts of all layers in MXFP4 with arbitrary codes, everything else f32.
fn mxfp4(at: &Path) {
    let plain = at.join("plain");
    std::fs::create_dir_all(&plain).unwrap();
    let sizes = [("hidden_size", 64), ("intermediate_size", 128), ("num_experts_per_tok", EXPERTS)];
    random(&plain, "gpt_oss", sizes.into_iter().map(|(key, value)| (key, value.into())), DType::F32);
    let HfFolder { source, .. } = open(&plain).unwrap();
    let (mut infos, mut bytes) = (Vec::new(), Vec::new());
    for name in source.names() {
        let shape = source.shape(name).unwrap();
        let [experts, inner, out] = *shape else {
            let mut own = Vec::new();
            source.read_rows(name, 0..shape[0], &mut own).unwrap();
            infos.push(TensorInfo { name: name.into(), dtype: DType::F32, shape: shape.to_vec() });
            bytes.push(own);
            continue;
        };
        for (end, shape) in
            [("blocks", vec![experts, out, inner / 32, 16]), ("scales", vec![experts, out, inner / 32])]
        {
            // Scales around 2^-6.
            let (blocks, len) = (end == "blocks", shape.iter().product::<usize>());
            let byte = |at: usize| {
                let mixed = (at * 2_654_435_761 + infos.len()) >> 7;
                if blocks { mixed as u8 } else { 120 + (mixed % 3) as u8 }
            };
            bytes.push((0..len).map(byte).collect());
            infos.push(TensorInfo { name: format!("{name}_{end}"), dtype: DType::U8, shape });
        }
    }
    let mut file = FileWriter::create(&at.join("model.safetensors"), &infos).unwrap();
    bytes.iter().for_each(|bytes| file.write(bytes).unwrap());
    file.finish().unwrap();
    let text = std::fs::read(plain.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&text).unwrap();
    config["quantization_config"] = serde_json::json!({"quant_method": "mxfp4"});
    std::fs::write(at.join("config.json"), config.to_string()).unwrap();
}

/// Experts stay packed if each rank owns some, and if ranks share the columns of each in whole blocks; ranks with other
/// parts of the model have whole experts. This includes experts in one tensor.
#[test]
fn experts_stay_packed_on_ranks() {
    let at = tempfile::tempdir().unwrap();
    folder(at.path(), "qwen3_moe");
    // Tokens go through all experts: otherwise different rounding could change the routing.
    let config = at.path().join("config.json");
    let mut said: serde_json::Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    said["num_experts_per_tok"] = EXPERTS.into();
    std::fs::write(&config, said.to_string()).unwrap();
    let plain = open(at.path()).unwrap();
    let few = at.path().join("int4");
    rounded(&plain, &few, RoundTo::Int4);
    save_gguf((&plain.spec, &plain.source), &at.path().join("q4_k.gguf"), GgufType::Q4KM, Vec::new())
        .unwrap();
    mxfp4(&at.path().join("gpt-oss"));
    let layers = plain.spec.layers.len();
    let tp = Grid { tp: 2, ..Grid::default() };
    for (from, grid, packed) in [
        ("gpt-oss", tp, 2 * layers),
        ("gpt-oss", Grid { ep: 2, ..tp }, 2 * layers),
        ("gpt-oss", Grid { etp: 2, ..tp }, 2 * layers),
        ("int4", tp, 2 * layers),
        ("int4", Grid { ep: 2, ..tp }, 2 * layers),
        ("int4", Grid { etp: 2, ..tp }, 2 * layers),
        ("q4_k.gguf", Grid { ep: 2, ..tp }, 2 * layers),
        // Half of 256 columns is not a block of the down projection.
        ("q4_k.gguf", Grid { etp: 2, ..tp }, layers),
    ] {
        let from = at.path().join(from);
        let [(alone, _)] = &on_ranks(&from, Grid::default())[..] else { panic!("one rank") };
        for (rank, (losses, found)) in on_ranks(&from, grid).iter().enumerate() {
            let what = format!("{} on {grid}, rank {rank}", from.display());
            assert_eq!(*found, packed, "{what}");
            let apart = losses.iter().zip(alone).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
            println!("{what}: losses are {apart} apart");
            assert!(losses.len() == alone.len() && apart < 2e-3, "{what}: {apart}");
        }
    }
}
