//! Virtual tokens: the same packed, unpacked and accumulated; PEFT's encoder.

use std::path::Path;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{ParamId, Params, Places, VIRTUAL};
use fathom_model::{
    Adapter, AdapterMethod, Model, PromptEncoder, SafeTensors, Source, Trained, begin_as, load_adapted, open,
    open_peft, read_f32, save_peft,
};
use fathom_tensor::{DType, Device};
use fathom_train::parallel::Sharding;
use fathom_train::{Goal, InStep, MicroBatch, Trainer, frozen};

use crate::adapters::{CAPS, Peft, golden};
use crate::mesh::{ADAMW, ONE, in_step};

/// Cases whose virtual tokens are computed by a network.
pub const ENCODED: [&str; 3] = ["p_tuning", "p_tuning_lstm", "prefix_projection"];

/// PEFT's name for a weight of an encoder, and the rows of it that correspond: there, keys and values of a layer of `k`
/// columns are rows of one matrix.
fn of_encoder(name: &str, k: usize) -> Option<(String, Option<std::ops::Range<usize>>)> {
    if let Some((_, name)) = name.split_once("prompt_encoder.") {
        return Some((name.to_string(), None));
    }
    let (at, name) = name.split_once("prefix_encoder.")?;
    let Some((which, term)) = name.split_once('.').filter(|(which, _)| ["keys", "values"].contains(which))
    else {
        return Some((name.to_string(), None));
    };
    let layer: usize = at.split('.').find_map(|part| part.parse().ok())?;
    let first = (2 * layer + usize::from(which == "values")) * k;
    Some((format!("transform.2.{term}"), Some(first..first + k)))
}

/// The base of a case with PEFT's untrained encoder.
pub fn with_encoder(case: &Peft, device: &Device) -> (Model, Params) {
    let base = open(&golden(case.expected["base"].as_str().unwrap())).unwrap();
    let [prefix, lstm] = ["prefix_projection", "p_tuning_lstm"].map(|name| case.expected["case"] == name);
    let method = if prefix {
        AdapterMethod::Prefix { tokens: 5, encoder: Some(24) }
    } else {
        let (hidden, lstm) = if lstm { (16, true) } else { (24, false) };
        AdapterMethod::Prompt { tokens: 5, encoder: Some(PromptEncoder { hidden, lstm }) }
    };
    let spec = base.spec.with_adapter(Adapter::leading(method)).unwrap();
    let (model, mut params) = Model::declare(device, &spec, DType::F32);
    load_adapted(device, &model, &mut params, &base.source, 1).unwrap();
    let mut seen = 0;
    for (index, pieces) in model.pieces().iter().enumerate() {
        let Some((name, rows)) = of_encoder(&pieces[0].name, model.spec.kv_cols()) else { continue };
        // The weight that reads both directions' states is one in PyTorch, with the forward direction first.
        let half = ["forwards", "backwards"].iter().position(|way| name.ends_with(way));
        let name = format!("before.{}", name.trim_end_matches(".forwards").trim_end_matches(".backwards"));
        let shape = case.tensors.shape(&name).unwrap();
        let mut values = read_f32(&case.tensors, &name, rows.unwrap_or(0..shape[0])).unwrap();
        if let Some(half) = half {
            let width = shape[1] / 2;
            let rows =
                values.chunks(2 * width).flat_map(|row| row[half * width..(half + 1) * width].to_vec());
            values = rows.collect();
        }
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        device.machine.write(params.get(ParamId(index as u32)).value.resident().unwrap(), &bytes);
        seen += 1;
    }
    // For an LSTM: 2 cells of 4 weights, 2 of 5, and an MLP of 5.
    let weights = if lstm { 1 + 8 + 10 + 5 } else { 7 };
    assert_eq!(seen, if prefix { 3 + 4 * model.spec.layers.len() } else { weights });
    (model, params)
}

#[test]
fn an_encoder_leaves_pefts_folder() {
    for name in ENCODED {
        leaves_pefts_folder(name);
    }
}

fn leaves_pefts_folder(name: &'static str) {
    let (device, case) = (Device::new(Arc::new(Cpu::new(1, None)), 1 << 28), Peft::open(name));
    let (model, params) = with_encoder(&case, &device);
    case.close("logits", &case.logits(&device, &model, &params), "logits", 3e-6);
    let folder = tempfile::tempdir().unwrap();
    let trained = Trained::adapter(&[]).unwrap();
    save_peft(&device, &model, &params, folder.path(), ("llama", &trained)).unwrap();
    let read = |folder: &Path| {
        let tensors = SafeTensors::open_file(&folder.join("adapter_model.safetensors")).unwrap();
        assert_eq!(tensors.names(), ["prompt_embeddings"]);
        read_f32(&tensors, "prompt_embeddings", 0..5).unwrap()
    };
    let (ours, theirs) = (read(folder.path()), read(&golden(&format!("{name}/before"))));
    let apart = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 1e-6, "{apart}");
    let base = open(&golden("llama")).unwrap();
    let (spec, _) = open_peft(folder.path(), base.spec).unwrap();
    let found = spec.adapter.as_ref().unwrap().method;
    let bare = match model.spec.adapter.as_ref().unwrap().method {
        AdapterMethod::Prefix { tokens, .. } => AdapterMethod::Prefix { tokens, encoder: None },
        _ => AdapterMethod::Prompt { tokens: 5, encoder: None },
    };
    assert_eq!(found, bare);
    let said = std::fs::read_to_string(folder.path().join("adapter_config.json")).unwrap();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["encoder_hidden_size"], if name == "p_tuning_lstm" { 16 } else { 24 }, "{name}");
    match name {
        "prefix_projection" => assert_eq!(said["prefix_projection"], true),
        "p_tuning_lstm" => assert_eq!(said["encoder_reparameterization_type"], "LSTM"),
        _ => assert_eq!(said["encoder_reparameterization_type"], "MLP"),
    }
}

/// Losses and norms of four steps over some micro-batches.
fn steps(name: &'static str, micros: &dyn Fn(MicroBatch) -> Vec<MicroBatch>) -> Vec<[f32; 2]> {
    let (device, case) = (Device::new(Arc::new(Cpu::new(1, None)), 1 << 28), Peft::open(name));
    let (mut model, mut params) =
        if ENCODED.contains(&name) { with_encoder(&case, &device) } else { case.model(&device) };
    let trained = Trained::adapter(&[]).unwrap();
    frozen(&mut model, &mut params, &trained).unwrap();
    let mut trainer = Trainer::sharded(&device, model, params, Sharding::Optim, ADAMW);
    let goal = Goal { trained, ..Goal::default() };
    let how = InStep { goal, caps: CAPS, z_loss: 0.0, places: Places::none(), ..in_step(&ONE) };
    let micros = micros(case.micro(5));
    let step = |_| {
        let result = trainer.step(&micros, &how).unwrap();
        [result.loss.wait_f32() / result.count.wait_f32(), result.norm.wait_f32()]
    };
    (0..4).map(step).collect()
}

/// Some documents of a stream as a stream of their own.
pub fn part(micro: &MicroBatch, docs: std::ops::Range<usize>) -> MicroBatch {
    let rows = micro.docs[docs.start].start..micro.docs[docs.end - 1].end;
    MicroBatch {
        ids: micro.ids[rows.clone()].to_vec(),
        labels: micro.labels[rows.clone()].to_vec(),
        positions: micro.positions[rows.clone()].to_vec(),
        docs: micro.docs[docs].iter().map(|doc| doc.start - rows.start..doc.end - rows.start).collect(),
        ..MicroBatch::default()
    }
}

#[test]
fn packed_is_unpacked_is_accumulated() {
    for name in ["prompt", "p_tuning", "p_tuning_lstm", "prefix", "prefix_projection"] {
        let packed = steps(name, &|micro| vec![micro]);
        assert!(packed[0][0] - packed[3][0] > 1e-3, "{name}: it learns: {packed:?}");
        let alone = steps(name, &|micro| (0..3).map(|doc| part(&micro, doc..doc + 1)).collect());
        let two = steps(name, &|micro| vec![part(&micro, 0..2), part(&micro, 2..3)]);
        for (other, what) in [(&alone, "unpacked"), (&two, "accumulated")] {
            let apart =
                packed.iter().flatten().zip(other.iter().flatten()).map(|(a, b)| (a - b).abs() / b.abs());
            let worst = apart.fold(0.0, f32::max);
            assert!(worst < 1e-6, "{name}: {what} is {worst} apart");
        }
    }
}

/// Virtual tokens start as the embeddings of a text's tokens, repeated or cut.
#[test]
fn a_prompt_begins_as_a_text() {
    let (device, base) = (Device::new(Arc::new(Cpu::new(1, None)), 1 << 28), open(&golden("llama")).unwrap());
    let name = "model.embed_tokens.weight";
    let table = read_f32(&base.source, name, 0..base.source.shape(name).unwrap()[0]).unwrap();
    let width = base.spec.hidden;
    let method = AdapterMethod::Prompt { tokens: 5, encoder: None };
    let spec = base.spec.with_adapter(Adapter::leading(method)).unwrap();
    let (model, mut params) = Model::declare(&device, &spec, DType::F32);
    load_adapted(&device, &model, &mut params, &base.source, 1).unwrap();
    for (text, begins) in [(&[7, 2][..], [7, 2, 7, 2, 7]), (&[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5])] {
        begin_as(&device, &model, &mut params, text);
        let folder = tempfile::tempdir().unwrap();
        let trained = Trained::adapter(&[]).unwrap();
        save_peft(&device, &model, &params, folder.path(), ("llama", &trained)).unwrap();
        let tensors = SafeTensors::open_file(&folder.path().join("adapter_model.safetensors")).unwrap();
        let found = read_f32(&tensors, "prompt_embeddings", 0..5).unwrap();
        for (row, id) in found.chunks(width).zip(begins) {
            assert!(row == &table[id * width..(id + 1) * width], "{id}");
        }
    }
}

#[test]
fn a_document_begins_with_its_virtual_tokens() {
    let micro = Peft::open("prompt").micro(5);
    let ids: Vec<usize> = micro.ids.iter().map(|id| *id as usize).collect();
    assert_eq!(micro.docs, [0..13, 13..24, 24..33]);
    for doc in &micro.docs {
        assert!((0..5).all(|at| ids[doc.start + at] == VIRTUAL + at));
        assert!(micro.positions[doc.clone()].iter().copied().eq(0..doc.len() as i32));
        assert!(micro.labels[doc.start..doc.start + 5].iter().all(|label| *label < 0));
    }
}
