//! Quantized weights against bitsandbytes (`oracle/nf4.py`), and models that compute with them against models with
//! the dequantized values.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{Counters, Eval, Params, Scope};
use fathom_model::{
    Caps, FolderOptions, Init, Model, PackedTokens, Portion, QuantisedSave, Quantization, SafeTensors,
    SaveOptions, Source, TrainableWeights, initialise, load, open, read_f32, save, save_hf_quantised,
};
use fathom_tensor::mesh::{CountingLink, Grid, Mesh};
use fathom_tensor::{BlockFormat, DType, Device, Meta};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_nf4")
}

fn device() -> Device {
    Device::new(Arc::new(Cpu::new(1, None)), 1 << 28)
}

fn bytes(source: &SafeTensors, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    source.read_rows(name, 0..source.shape(name).unwrap()[0], &mut bytes).unwrap();
    bytes
}

fn floats(source: &SafeTensors, name: &str) -> Vec<f32> {
    read_f32(source, name, 0..source.shape(name).unwrap()[0]).unwrap()
}

fn words(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// Rounds as the type in a golden tensor's name stores it.
fn rounded(value: f32, name: &str) -> f32 {
    match name.split('.').next() {
        Some("bf16") => half::bf16::from_f32(value).to_f32(),
        Some("f16") => half::f16::from_f32(value).to_f32(),
        _ => value,
    }
}

#[test]
fn blocks_are_those_of_bitsandbytes() {
    let golden = SafeTensors::open_file(&golden().join("tensors.safetensors")).unwrap();
    let cases: Vec<String> =
        golden.names().into_iter().filter_map(|name| name.strip_suffix(".x").map(str::to_string)).collect();
    assert_eq!(cases.len(), 13);
    for case in cases.iter().filter(|case| !case.starts_with("int8")) {
        let x = floats(&golden, &format!("{case}.x"));
        let format = BlockFormat::Nf4;
        let mut packed = vec![0; format.row_bytes(x.len())];
        format.pack_row(&x, &mut packed);
        assert!(packed[..format.code_bytes(x.len())] == bytes(&golden, &format!("{case}.packed")), "{case}");
        assert!(packed[format.scales_at(x.len())..] == bytes(&golden, &format!("{case}.absmax")), "{case}");
        let mut out = vec![0.0; x.len()];
        format.unpack_row(&packed, &mut out);
        let out: Vec<f32> = out.into_iter().map(|value| rounded(value, case)).collect();
        assert!(out == floats(&golden, &format!("{case}.out")), "{case}");
    }
    let (x, scales) = (floats(&golden, "int8.x"), floats(&golden, "int8.scales"));
    let (codes, expected, width) = (bytes(&golden, "int8.codes"), words(&bytes(&golden, "int8.out")), 100);
    for (row, scale) in scales.iter().enumerate() {
        let mut packed = vec![0; BlockFormat::Int8.row_bytes(width)];
        BlockFormat::Int8.pack_row(&x[row * width..][..width], &mut packed);
        assert_eq!(packed[..width], codes[row * width..][..width]);
        assert_eq!(packed[width..], scale.to_le_bytes());
        let mut out = vec![0.0; width];
        BlockFormat::Int8.unpack_row(&packed, &mut out);
        assert_eq!(out, expected[row * width..][..width]);
    }
}

/// A folder's model with packed projections.
fn packed(device: &Device, folder: &str, format: BlockFormat, double: bool) -> (Model, Params) {
    let opened = open(&golden().join(folder)).unwrap();
    let how = Quantization { format, double, trained: TrainableWeights::all() };
    let portion = Portion::of(&opened.spec, &device.mesh, 1);
    let (model, mut params) =
        Model::declare_quantized(device, &opened.spec, DType::Bf16, None, (portion, Some(&how)));
    load(device, &model, &mut params, &opened.source).unwrap();
    (model, params)
}

fn plain(device: &Device, folder: &Path) -> (Model, Params) {
    let opened = open(folder).unwrap();
    let (model, mut params) = Model::declare(device, &opened.spec, DType::Bf16);
    load(device, &model, &mut params, &opened.source).unwrap();
    (model, params)
}

fn hidden(device: &Device, model: &Model, params: &Params) -> Vec<u8> {
    let ids: Vec<i32> = (0..150).map(|at| at * 31 % 96).collect();
    let positions: Vec<i32> = (0..150).collect();
    let counters = Counters::default();
    let docs: &[Range<usize>] = &[0..100, 100..150];
    let packed = PackedTokens { ids: &ids, positions: &positions, docs };
    let batch = model.batch(device, packed, Caps { docs: 4, seq_tokens: 150 });
    let scope = Scope { device, params, batch: (&batch).into(), counters: &counters };
    let out = model.forward(&mut Eval::new(scope, Some(128), None));
    device.machine.read(&out).wait()
}

/// Contents of every weight, as bf16.
fn all_bytes(device: &Device, params: &Params) -> Vec<(String, Vec<u8>)> {
    params.iter().map(|(_, param)| (param.name.clone(), param.value.bytes(device))).collect()
}

const FOLDERS: [(&str, BlockFormat); 3] =
    [("nf4", BlockFormat::Nf4), ("plain", BlockFormat::Nf4), ("int8", BlockFormat::Int8)];

#[test]
fn folders_of_bitsandbytes_are_read_both_ways() {
    let expected = SafeTensors::open_file(&golden().join("expected.safetensors")).unwrap();
    for (kind, format) in [FOLDERS[0], FOLDERS[2]] {
        let device = device();
        let folder = golden().join(format!("model_{kind}"));
        let opened = open(&folder).unwrap();
        let mut count = 0;
        for name in opened.source.names() {
            let Some(stored) = opened.source.quantised(name) else { continue };
            assert_eq!(stored.format, format);
            let key = format!("{kind}.{name}");
            let found = floats(&opened.source, name).into_iter().map(|x| half::bf16::from_f32(x).to_f32());
            // int8 is read as f16, and was rounded once.
            let same = found
                .zip(floats(&expected, &key))
                .all(|(a, b)| if kind == "int8" { (a - b).abs() <= a.abs() / 128.0 } else { a == b });
            assert!(same, "{key}");
            count += 1;
        }
        assert_eq!(count, 7, "{kind}");
        let (model, params) = packed(&device, &format!("model_{kind}"), format, true);
        let out = tempfile::tempdir().unwrap();
        save(&device, &model, &params, out.path(), SaveOptions::new(DType::Bf16)).unwrap();
        let saved = SafeTensors::open_folder(out.path()).unwrap();
        let names = expected.names();
        for name in names.iter().filter_map(|name| name.strip_prefix(&format!("{kind}."))) {
            assert!(bytes(&saved, name) == bytes(&expected, &format!("{kind}.{name}")), "{kind} {name}");
        }
        std::fs::copy(golden().join("model/config.json"), out.path().join("config.json")).unwrap();
        let (twin, twins) = plain(&device, out.path());
        assert!(all_bytes(&device, &params) == all_bytes(&device, &twins), "{kind}");
        assert!(hidden(&device, &model, &params) == hidden(&device, &twin, &twins), "{kind}: hidden states");
    }
}

/// Weights quantized while loading equal bitsandbytes', bit for bit except for the second level.
#[test]
fn weights_are_quantised_while_they_are_loaded() {
    for (kind, format) in FOLDERS {
        let device = device();
        let here = packed(&device, "model", format, kind == "nf4").1;
        let theirs = packed(&device, &format!("model_{kind}"), format, false).1;
        for ((_, here), (_, theirs)) in here.iter().zip(theirs.iter()) {
            let (a, b) = (here.value.bytes(&device), theirs.value.bytes(&device));
            if kind != "nf4" {
                assert!(a == b, "{kind}: {}", here.name);
                continue;
            }
            let wide = |bytes: &[u8]| -> Vec<f32> {
                bytes.as_chunks::<2>().0.iter().map(|x| half::bf16::from_le_bytes(*x).to_f32()).collect()
            };
            let off = wide(&a).iter().zip(wide(&b)).filter(|(a, b)| **a != *b).count();
            assert!(off * 50 <= a.len() / 2, "{}: {off} of {}", here.name, a.len() / 2);
        }
    }
}

/// Ranks' parts are parts of the same whole, including quantized scales.
#[test]
fn ranks_hold_parts_of_the_same_weights() {
    for (folder, double) in [("model", true), ("model", false), ("model_nf4", false)] {
        let whole = packed(&device(), folder, BlockFormat::Nf4, double).1;
        let whole_device = device();
        for rank in 0..2 {
            let machine = Arc::new(Cpu::new(1, None));
            let grid = Grid { tp: 2, ..Grid::default() };
            let mesh = Mesh::new(grid, Box::new(CountingLink::new(rank, 2)));
            let device = Device::on_mesh(machine, 1 << 28, mesh);
            let (model, params) = packed(&device, folder, BlockFormat::Nf4, double);
            for ((held, (_, part)), (_, whole)) in model.holdings.iter().zip(params.iter()).zip(whole.iter())
            {
                let (all, own) = (whole.value.bytes(&whole_device), part.value.bytes(&device));
                for (here, there, len) in held.shard.runs() {
                    assert!(
                        own[2 * here..][..2 * len] == all[2 * there..][..2 * len],
                        "{folder} {} on {rank}",
                        part.name
                    );
                }
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let spec = open(&golden().join("model")).unwrap().spec;
    let grid = Grid { tp: 2, ..Grid::default() };
    let mesh = Mesh::new(grid, Box::new(CountingLink::new(0, 2)));
    let portion = Portion::of(&spec, &mesh, 1);
    let int8 = Quantization { format: BlockFormat::Int8, double: false, trained: TrainableWeights::all() };
    let refused = int8.check(&spec, &portion).unwrap_err();
    assert!(refused.contains("blocks.0.attn") || refused.contains("blocks.0."), "{refused}");
    assert!(refused.contains("int8 has one scale"), "{refused}");
}

/// Random weights are packed as they are generated, wherever they are; a plan charges the same.
#[test]
fn random_weights_are_packed() {
    let spec = open(&golden().join("model")).unwrap().spec;
    let how = Quantization {
        format: BlockFormat::Nf4,
        double: false,
        trained: TrainableWeights::matching(&["down_proj".into()]).unwrap(),
    };
    let device = device();
    let portion = Portion::of(&spec, &device.mesh, 1);
    let declare = |device: &Device| {
        Model::declare_quantized(device, &spec, DType::Bf16, None, (portion.clone(), Some(&how)))
    };
    let (model, mut params) = declare(&device);
    initialise(&device, &model, &mut params, Init::new(5));
    let names: Vec<&str> = params
        .iter()
        .filter(|(_, param)| param.value.as_packed().is_some())
        .map(|(_, param)| param.name.as_str())
        .collect();
    assert!(names.len() == 3 && names.iter().all(|name| !name.contains("down")), "{names:?}");
    assert!(params.iter().all(|(_, param)| param.trainable == param.value.as_packed().is_none()));
    let before = device.pool.usage().live;
    let meta = Device::new(Arc::new(Meta::new(device.machine.profile().clone())), 1 << 28);
    let _planned = declare(&meta);
    assert_eq!(meta.pool.usage().live, before);
}

/// Written quantized folders equal bitsandbytes' tensor by tensor; a quantized folder is written unchanged.
#[test]
fn folders_are_written_as_bitsandbytes_writes_them() {
    let device = device();
    for (kind, format) in FOLDERS {
        let theirs = open(&golden().join(format!("model_{kind}"))).unwrap();
        for from in ["model".to_string(), format!("model_{kind}")] {
            let opened = open(&golden().join(&from)).unwrap();
            // Double scales in the source become 32-bit scales.
            let double = kind == "nf4" && from == "model";
            let out = tempfile::tempdir().unwrap();
            let options = FolderOptions {
                weights: SaveOptions::new(DType::Bf16),
                generation: &opened.generation,
                copy: &[],
            };
            let how = QuantisedSave { format, double };
            save_hf_quantised(&device, (&opened.spec, &opened.source), out.path(), (how, options)).unwrap();
            let ours = open(out.path()).unwrap();
            assert_eq!(ours.spec, theirs.spec);
            let (mut a, mut b) = (ours.source.names(), theirs.source.names());
            a.sort_unstable();
            b.sort_unstable();
            assert_eq!(a, b, "{kind} from {from}");
            for name in a {
                assert_eq!(
                    ours.source.quantised(name).is_some(),
                    theirs.source.quantised(name).is_some(),
                    "{name}"
                );
                let (x, y) = (bytes(&ours.source, name), bytes(&theirs.source, name));
                let off = x.iter().zip(&y).filter(|(x, y)| x != y).count();
                let least = if double { x.len() / 50 } else { 0 };
                assert!(
                    x.len() == y.len() && off <= least,
                    "{kind} {name} from {from}: {off} of {}",
                    x.len()
                );
            }
        }
    }
}
