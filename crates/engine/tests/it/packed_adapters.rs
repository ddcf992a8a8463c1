//! Adapters over weights that stay packed, as in a file or as in a QLoRA run: their answers, and unchanged answers of
//! requests without an adapter.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_base::GenerateRequest;
use fathom_cpu::Cpu;
use fathom_grad::Param;
use fathom_model::{
    Adapter, AdapterMethod, GgufType, HfFolder, Model, Quantization, Size, TrainableWeights, fix_lengths,
    keep_packed, load, load_adapted, load_peft, open, open_peft, save_gguf, save_peft, unpack,
};
use fathom_tensor::{BlockFormat, DType, Device, Machine, Meta};

use crate::batch::{AnswerBits, Bed, WAYS, steady, together};
use crate::packed::{BUDGET, bed, cpu, folder, folder_of, held, text};

const LORA: AdapterMethod = AdapterMethod::Lora { rank_stabilised: false, lengths: false, singular: false };
const METHODS: [(&str, AdapterMethod); 3] = [
    ("lora", LORA),
    ("dora", AdapterMethod::Lora { rank_stabilised: true, lengths: true, singular: false }),
    ("ia3", AdapterMethod::Factors),
];

/// Writes an adapter of every projection, with random rather than initial values.
fn adapter(at: &Path, base: &HfFolder, method: AdapterMethod) -> PathBuf {
    let size = Size { rank: 4, alpha: 8.0 };
    let names = base.spec.adaptable().into_iter().filter(|name| name.contains("layers."));
    let modules: BTreeMap<String, Size> = names.map(|name| (name, size)).collect();
    let is_input = |name: &&String| method == AdapterMethod::Factors && name.ends_with("down_proj");
    let inputs: BTreeSet<String> = modules.keys().filter(is_input).cloned().collect();
    let spec = base.spec.clone().with_adapter(Adapter::of(method, modules, inputs)).unwrap();
    let device = cpu();
    let (model, mut params) = Model::declare(&device, &spec, DType::F32);
    load_adapted(&device, &model, &mut params, &base.source, 1).unwrap();
    for (id, Param { name, value, .. }) in params.iter() {
        let (least, spread) = match name {
            name if name.ends_with(".lora_B.weight") => (0.0, 0.05),
            name if name.ends_with(".lora_magnitude_vector") => (1.0, 0.3),
            name if name.ends_with(".ia3_l") => (1.0, 0.3),
            _ => continue,
        };
        let old = device.to_f32(&value.tensor());
        value.fill(|range, tensor| {
            let number = |at: usize| {
                let own = spread * ((at + 13 * id.index()) as f32 * 0.7).sin();
                if least == 0.0 { own } else { old[at] * (least + own) }
            };
            let bytes: Vec<u8> = range.flat_map(|at| number(at).to_le_bytes()).collect();
            device.machine.write(tensor, &bytes);
        });
    }
    save_peft(&device, &model, &params, at, ("base", &TrainableWeights::adapter(&[]).unwrap())).unwrap();
    at.to_path_buf()
}

/// The model that `fathom chat --adapter` uses, or the same unpacked.
fn adapted(opened: &HfFolder, adapter: &Path, dtype: DType, stored: bool) -> Bed {
    let device = cpu();
    let (spec, tensors) = open_peft(adapter, opened.spec.clone()).unwrap();
    if !stored {
        let (model, mut params) = Model::declare(&device, &spec, dtype);
        load_peft(&device, &model, &mut params, (&opened.source, &tensors)).unwrap();
        return bed(device, model, params);
    }
    let (model, mut params) = Model::declare_stored(&device, &spec.fixing_lengths(), dtype, &opened.source);
    load_peft(&device, &model, &mut params, (&opened.source, &tensors)).unwrap();
    let params = fix_lengths(&device, &model, params);
    bed(device, model, params)
}

fn losses(bed: &Bed) -> Vec<f32> {
    let documents: Vec<Vec<u32>> = (1..7).map(|seed| text(seed, 5 + 9 * seed)).collect();
    bed.engine(64).losses_of(&documents).unwrap().concat()
}

/// Root mean square of the differences.
fn apart(x: &[f32], y: &[f32]) -> f32 {
    (x.iter().zip(y).map(|(x, y)| (x - y).powi(2)).sum::<f32>() / x.len() as f32).sqrt()
}

fn packed(bed: &Bed) -> usize {
    bed.params.iter().filter(|(_, param)| param.value.as_blocked().is_some()).count()
}

/// A file in blocks of two types, and its source.
fn blocks(at: &Path) -> (HfFolder, HfFolder) {
    folder(at, false);
    let (plain, file) = (open(at).unwrap(), at.join("model.gguf"));
    save_gguf((&plain.spec, &plain.source), &file, GgufType::Q4KM, Vec::new()).unwrap();
    (open(&file).unwrap(), plain)
}

#[test]
fn adapters_over_blocks_answer_as_over_their_elements() {
    let at = tempfile::tempdir().unwrap();
    let (opened, plain) = blocks(at.path());
    let base = losses(&held(&opened, DType::F32, true));
    for (name, method) in METHODS {
        let adapter = adapter(&at.path().join(name), &plain, method);
        let unpacked = |dtype| losses(&adapted(&opened, &adapter, dtype, false));
        let (elements, rounded) = (unpacked(DType::F32), unpacked(DType::Bf16));
        let by_bf16 = apart(&rounded, &elements);
        assert!(apart(&base, &elements) > 3.0 * by_bf16, "{name}: it changes what is answered");
        for (dtype, share) in [(DType::F32, 0.125), (DType::Bf16, 1.5)] {
            let blocks = adapted(&opened, &adapter, dtype, true);
            assert_eq!(packed(&blocks), 4 * 3 + 2, "{name}");
            let off = apart(&losses(&blocks), &elements);
            println!("{name}, {dtype:?}: losses are off by {off}, unpacked in bf16 by {by_bf16}");
            assert!(off < share * by_bf16, "{name}, {dtype:?}: off by {off}, in bf16 by {by_bf16}");
        }
    }
}

/// Weights stored as bf16 are interleaved under an adapter too, and change no bit.
#[test]
fn adapters_over_numbers_answer_to_the_bit() {
    let at = tempfile::tempdir().unwrap();
    folder_of(at.path(), false, 104, DType::Bf16);
    let opened = open(at.path()).unwrap();
    for (name, method) in METHODS {
        let adapter = adapter(&at.path().join(name), &opened, method);
        for dtype in [DType::Bf16, DType::F32] {
            let [stored, plain] = [true, false].map(|stored| adapted(&opened, &adapter, dtype, stored));
            assert_eq!(losses(&stored), losses(&plain), "{name}, {dtype:?}");
            let interleaves =
                stored.device.machine.multiplies(BlockFormat::Octets(fathom_tensor::ggml::Kind::Bf16));
            assert_eq!(packed(&stored), if interleaves { 4 * 3 + 2 } else { 0 }, "{name}, {dtype:?}");
        }
    }
}

/// Requests to the base and to adapters in turn, with common prefixes.
fn requests(names: &[&str]) -> Vec<GenerateRequest> {
    let request = |index: usize| {
        let ids: Vec<u32> = (0..40 + 11 * index).map(|at| (at * 7 + at / 40 * index) as u32 % 96).collect();
        let adapter = names.get(index % (names.len() + 1)).map(ToString::to_string);
        GenerateRequest { adapter, logprobs: Some(0), ..GenerateRequest::greedy(ids, 12) }
    };
    (0..2 * names.len() + 2).map(request).collect()
}

fn alone(bed: &Bed, request: &GenerateRequest) -> AnswerBits {
    let (engine, request) = (bed.engine(4096), GenerateRequest { adapter: None, ..request.clone() });
    together(&engine, engine.capacity(1, 300), &[request], 0).swap_remove(0)
}

/// Each request of a batch has the bits that its own model gives it alone; for requests without an adapter that is the
/// base.
fn check(base: &Bed, adapters: &[(&str, PathBuf, Bed)], what: &str) {
    let names: Vec<&str> = adapters.iter().map(|(name, ..)| *name).collect();
    let requests = requests(&names);
    let of = |request: &GenerateRequest| {
        let own = adapters.iter().find(|(name, ..)| request.adapter.as_deref() == Some(name));
        own.map_or(base, |(.., bed)| bed)
    };
    let wanted: Vec<AnswerBits> = requests.iter().map(|request| alone(of(request), request)).collect();
    assert!((1..=names.len()).all(|at| alone(base, &requests[at - 1]) != wanted[at - 1]), "{what}");
    for (chunk_tokens, apart) in [(4096, 0), (37, 1)] {
        let engine = base.engine(chunk_tokens);
        adapters.iter().for_each(|(name, folder, _)| engine.load_adapter(name, folder).unwrap());
        let heard = together(&engine, engine.capacity(requests.len(), 300), &requests, apart);
        assert_eq!(heard, wanted, "{what}, chunks of {chunk_tokens}");
    }
}

#[test]
fn requests_have_the_bits_that_they_have_alone() {
    let at = tempfile::tempdir().unwrap();
    let (opened, plain) = blocks(at.path());
    let folders = METHODS.map(|(name, method)| (name, adapter(&at.path().join(name), &plain, method)));
    for dtype in [DType::F32, DType::Bf16] {
        let beds = folders.clone().map(|(name, folder)| {
            let bed = adapted(&opened, &folder, dtype, true);
            (name, folder, bed)
        });
        check(&held(&opened, dtype, true), &beds, &format!("{dtype:?}"));
    }
}

/// The projections of a QLoRA run are multiplied in their format, and planned to the byte.
#[test]
fn a_base_in_the_format_of_a_run_answers_as_its_elements_do() {
    let at = tempfile::tempdir().unwrap();
    folder(at.path(), false);
    let opened = open(at.path()).unwrap();
    let lora = adapter(&at.path().join("lora"), &opened, LORA);
    for format in [BlockFormat::Nf4, BlockFormat::Int8] {
        let double = format == BlockFormat::Nf4;
        let quantized = Quantization { format, double, trained: TrainableWeights::adapter(&[]).unwrap() };
        let base = |dtype: DType, kept: bool| {
            let device = cpu();
            let source = &opened.source;
            let (model, mut params) =
                Model::declare_stored_as(&device, &opened.spec, dtype, source, Some(&quantized));
            load(&device, &model, &mut params, source).unwrap();
            let (model, params) =
                if kept { keep_packed(&device, &model, &params) } else { unpack(&device, &model, &params) };
            bed(device, model, params)
        };
        let name = format.name();
        let (elements, rounded) = (losses(&base(DType::F32, false)), losses(&base(DType::Bf16, false)));
        let by_bf16 = apart(&rounded, &elements);
        for (dtype, share) in [(DType::F32, 0.125), (DType::Bf16, 1.5)] {
            let kept = base(dtype, true);
            assert_eq!(packed(&kept), 4 * 3, "{name}");
            let off = apart(&losses(&kept), &elements);
            println!("{name}, {dtype:?}: losses are off by {off}, unpacked in bf16 by {by_bf16}");
            assert!(off < share * by_bf16, "{name}, {dtype:?}: off by {off}, in bf16 by {by_bf16}");
            let live = |bed: &Bed| bed.device.pool.usage().live;
            assert!(live(&kept) < live(&base(dtype, false)), "{name}");
            let meta = Device::new(Arc::new(Meta::new(Cpu::new(1, None).profile().clone())), BUDGET);
            let declared =
                Model::declare_stored_as(&meta, &opened.spec, dtype, &opened.source, Some(&quantized));
            let planned = keep_packed(&meta, &declared.0, &declared.1);
            drop(declared);
            assert_eq!(meta.pool.usage().live, live(&kept), "{name}, {dtype:?}");
            drop(planned);
        }
        let kept = base(DType::F32, true);
        steady(&kept, name, &WAYS[1..2]);
        // The model that `fathom chat --adapter` makes of the run's base and its adapter.
        let device = cpu();
        let (spec, tensors) = open_peft(&lora, opened.spec.clone()).unwrap();
        let (model, mut params) =
            Model::declare_stored_as(&device, &spec, DType::F32, &opened.source, Some(&quantized));
        load_peft(&device, &model, &mut params, (&opened.source, &tensors)).unwrap();
        let (model, params) = keep_packed(&device, &model, &params);
        check(&kept, &[("lora", lora.clone(), bed(device, model, params))], name);
    }
}
