//! Weights written in parts by several ranks, with arbitrary cuts, are read whole or in other parts bit for bit.

use std::collections::BTreeMap;
use std::ops::Range;

use fathom_grad::{ParamId, Params, Value};
use fathom_model::{
    Adapter, AdapterMethod, Export, Hurry, Model, Patch, Portion, SafeTensors, Size, Slot, Targets, load,
    load_slots, open, open_config, patches, rank_file,
};
use fathom_tensor::{Category, DType, Device};

use crate::golden::cpu;
use crate::golden_files::{cases, name};

/// Elements `part` of `parts` of a weight of `len`, cut in the middle of rows.
fn cut(len: usize, part: usize, parts: usize) -> Range<usize> {
    let at = |part: usize| if part == parts { len } else { (len * part / parts + 3 * part).min(len) };
    at(part)..at(part + 1)
}

/// Separate values for runs of all weights' elements; `copy` fills them.
fn slots(device: &Device, params: &Params, part: usize, parts: usize, copy: bool) -> Vec<Slot> {
    let slot = |(id, param): (ParamId, &fathom_grad::Param)| {
        let range = cut(param.value.len(), part, parts);
        let value = device.zeros(1, range.len(), param.value.dtype(), Category::Data);
        if copy && !range.is_empty() {
            let flat = param.value.tensor().reshape(1, param.value.len());
            device.machine.copy(&flat.view_cols(range.clone()), &value);
        }
        Slot { id, value: Value::from(value), range, coded: None }
    };
    params.iter().map(slot).collect()
}

#[test]
fn parts_are_cut_anywhere() {
    let device = cpu(1, None);
    for case in cases() {
        let folder = open(&case).unwrap();
        let (model, mut params) = Model::declare(&device, &folder.spec, DType::F32);
        load(&device, &model, &mut params, &folder.source).unwrap();
        let out = tempfile::tempdir().unwrap();
        let (pieces, shapes) = (model.pieces(), model.shapes());
        for rank in 0..3 {
            let given = slots(&device, &params, rank, 3, true).into_iter().map(|slot| {
                let index = slot.id.index();
                let patches: Vec<Patch> = patches(&pieces[index], shapes[index], slot.range.clone());
                (slot, patches)
            });
            let (_shares, export) = Export::of(&device, &model, given.collect(), DType::F32);
            export.stream(&out.path().join(rank_file(rank, 3)), &Hurry::default()).unwrap().finish().unwrap();
        }
        let source = SafeTensors::open_folder(out.path()).unwrap();
        let (_, mut back) = Model::declare(&device, &folder.spec, DType::F32);
        load(&device, &model, &mut back, &source).unwrap();
        for ((_, param), (_, back)) in params.iter().zip(back.iter()) {
            let same = param.value.bytes(&device) == back.value.bytes(&device);
            assert!(same, "{}: {}", name(&case), param.name);
        }
        for part in 0..2 {
            let (read, expected) =
                (slots(&device, &params, part, 2, false), slots(&device, &params, part, 2, true));
            load_slots(&device, &model, &read, &source).unwrap();
            for (read, expected) in read.iter().zip(&expected) {
                let same = read.value.bytes(&device) == expected.value.bytes(&device);
                assert!(same, "{}: {:?} {:?}", name(&case), read.id, read.range);
            }
        }
        drop(source);
        std::fs::remove_file(out.path().join(rank_file(1, 3))).unwrap();
        let error = SafeTensors::open_folder(out.path()).err().unwrap().to_string();
        assert!(error.contains("rank-00001-of-00003.safetensors"), "{error}");
        std::fs::copy(out.path().join(rank_file(0, 3)), out.path().join(rank_file(1, 3))).unwrap();
        let error = SafeTensors::open_folder(out.path()).err().unwrap().to_string();
        assert!(
            error.contains("overlap") || error.contains("missing") || error.contains("also in"),
            "{error}"
        );
    }
}

/// Ranks have the rows of a low-rank term, and of factors, that they have of its projection, even if a tensor in
/// files is several of the block's (GPT-2's queries, keys and values): otherwise each would add to other ranks'
/// columns.
#[test]
fn terms_are_cut_as_their_projections() {
    let (device, mut compared) = (cpu(1, None), 0);
    for case in cases() {
        let Ok((spec, _)) = open_config(&case) else { continue };
        let whole = Portion::whole(&spec);
        let Ok(names) = spec.targeted(&Targets::AllLinear) else { continue };
        let modules = names.into_iter().map(|name| (name, Size { rank: 2, alpha: 2.0 }));
        let method = AdapterMethod::Lora { rank_stabilised: false, lengths: true, singular: false };
        let Ok(spec) = spec.with_adapter(Adapter::of(method, modules.collect(), Default::default())) else {
            continue;
        };
        for tp_index in 0..2 {
            let portion = Portion { tp: 2, tp_index, ..whole.clone() };
            if portion.check(&spec).is_err() {
                continue;
            }
            let (model, _) = Model::declare_part(&device, &spec, DType::F32, None, portion);
            let mut rows: BTreeMap<String, Vec<Range<usize>>> = BTreeMap::new();
            for piece in model.pieces().into_iter().flatten() {
                let outs = if piece.transpose { piece.cols } else { piece.rows };
                rows.entry(piece.name).or_default().push(outs);
            }
            for (name, of_b) in &rows {
                let Some(module) = name.strip_suffix(".lora_B.weight") else { continue };
                assert_eq!(
                    Some(of_b),
                    rows.get(&format!("{module}.weight")),
                    "{}: {name}",
                    self::name(&case)
                );
                let lengths = rows.get(&format!("{module}.lora_magnitude_vector"));
                assert_eq!(lengths, Some(of_b), "{}: {name}", self::name(&case));
                compared += 1;
            }
        }
    }
    assert!(compared > 200, "{compared}");
}
