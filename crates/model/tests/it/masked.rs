//! Encoders with the masked-language head against Transformers; `oracle/masked.py` wrote `tests/masked`.

use std::path::{Path, PathBuf};

use fathom_grad::{Counters, Eval, Grads, Labels, LossTerm, Places, Scope, Tape};
use fathom_model::{
    Caps, FolderOptions, GenerationConfig, LoadedModel, PackedTokens, SafeTensors, SaveOptions, Source, Spec,
    export_tensors, open, save_hf,
};
use fathom_tensor::{Category, DType};
use serde::Deserialize;

use crate::golden_files::{floats, largest, loaded};

#[derive(Deserialize)]
struct Golden {
    ids: Vec<i32>,
    labels: Vec<i32>,
    loss: f64,
}

const CASES: [&str; 15] = [
    "bert",
    "bert_pretraining",
    "deberta",
    "deberta_new_head",
    "distilbert",
    "distilbert_untied",
    "electra",
    "electra_narrow",
    "electra_wide_untied",
    "modernbert",
    "modernbert_biased",
    "mpnet",
    "roberta",
    "roberta_untied",
    "xlm_roberta",
];

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/masked").join(name)
}

fn golden(name: &str) -> Golden {
    serde_json::from_slice(&std::fs::read(case(name).join("golden.json")).unwrap()).unwrap()
}

/// Logits of documents next to each other, and the summed loss with all gradients.
fn pass(of: &LoadedModel, documents: &[Golden], places: &Places) -> (Vec<f32>, f64, Grads) {
    let LoadedModel { device, model, params } = of;
    let (mut ids, mut positions, mut labels, mut docs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for document in documents {
        docs.push(ids.len()..ids.len() + document.ids.len());
        ids.extend(&document.ids);
        positions.extend(0..document.ids.len() as i32);
        labels.extend(&document.labels);
    }
    let packed = PackedTokens { ids: &ids, positions: &positions, docs: &docs };
    let batch = model.batch(device, packed, Caps { docs: 4, seq_tokens: 40 });
    let counters = Counters::default();
    let scope = || Scope { device, params, batch: (&batch).into(), counters: &counters };
    let hidden = model.forward(&mut Eval::new(scope(), None, None));
    let logits = device.to_f32(&model.head(0.0).logits(&scope(), &hidden));
    let mut grads = Grads::zeros(device, params);
    let labels = Labels::plain(device.from_i32(&labels, Category::Data));
    let losses = device.zeros(1, batch.tokens, DType::F32, Category::Activations);
    let mut tape = Tape::new(scope(), places);
    let x = model.forward(&mut tape);
    let terms = [LossTerm::cross_entropy(&losses)];
    let dx = model.head(0.0).loss(tape.scope(), &x, &labels, &terms, &mut grads);
    drop(x);
    tape.backward(dx, &mut grads);
    (logits, device.to_f32(&losses).iter().map(|loss| f64::from(*loss)).sum(), grads)
}

#[test]
fn logits_and_gradients_are_those_of_transformers() {
    let mut wrong = Vec::new();
    for name in CASES {
        let (of, wanted) = (loaded(&case(name)), golden(name));
        let source = SafeTensors::open_file(&case(name).join("golden.safetensors")).unwrap();
        let loss = wanted.loss;
        let (logits, found, grads) = pass(&of, &[wanted], &Places::linear());
        let far = |own: &[f32], golden: &[f32]| {
            assert_eq!(own.len(), golden.len(), "{name}");
            own.iter().zip(golden).fold(0f32, |most, (a, b)| most.max((a - b).abs()))
        };
        let of_logits = floats(&source, "logits");
        let error = far(&logits, &of_logits) / largest(&of_logits);
        println!("{name}: logits {error:.1e}, loss {:.1e}", (found / loss - 1.0).abs());
        if error.is_nan() || error > 1e-5 || (found / loss - 1.0).abs() > 1e-5 {
            wrong.push(format!("{name}: logits {error:.1e}, loss {found} for {loss}"));
        }
        let folder = tempfile::tempdir().unwrap();
        let options = SaveOptions { dtype: DType::F32, max_shard_bytes: u64::MAX };
        let grad = |id| grads.get(id).cloned().map(Into::into);
        export_tensors(&of.device, &of.model, grad, folder.path(), options).unwrap();
        let own = SafeTensors::open_folder(folder.path()).unwrap();
        let names: Vec<String> = own.names().into_iter().map(str::to_string).collect();
        let wanted = |name: &String| floats(&source, &format!("grad.{name}"));
        let scale = names.iter().fold(0f32, |most, name| most.max(largest(&wanted(name))));
        for tensor in &names {
            let error = far(&floats(&own, tensor), &wanted(tensor)) / scale;
            if error.is_nan() || error > 1e-4 {
                wrong.push(format!("{name}: gradient of {tensor} {error:.1e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Documents next to each other have the logits of each alone, and places of activations change no gradient.
#[test]
fn packed_documents_have_the_bits_of_each_alone() {
    for name in CASES {
        let of = loaded(&case(name));
        let short = || {
            let Golden { ids, labels, loss } = golden(name);
            Golden { ids: ids[..7].to_vec(), labels: labels[..7].to_vec(), loss }
        };
        let alone =
            [&[golden(name)][..], &[short()]].map(|documents| pass(&of, documents, &Places::none()).0);
        let together = [short(), golden(name), short()];
        let (logits, _, grads) = pass(&of, &together, &Places::none());
        assert!(logits == [&alone[1][..], &alone[0], &alone[1]].concat(), "{name}");
        let all = |grads: &Grads| -> Vec<Vec<f32>> {
            of.params.iter().map(|(id, _)| of.device.to_f32(grads.get(id).unwrap())).collect()
        };
        for places in [Places::full(), Places::linear().with_tiles(Some(128))] {
            assert!(all(&grads) == all(&pass(&of, &together, &places).2), "{name}: places change bits");
        }
    }
}

#[test]
fn what_is_written_is_read_again() {
    for name in CASES {
        let (of, folder) = (loaded(&case(name)), tempfile::tempdir().unwrap());
        let options = FolderOptions {
            weights: SaveOptions { dtype: DType::F32, max_shard_bytes: u64::MAX },
            generation: &GenerationConfig::default(),
            copy: &[],
        };
        save_hf(&of.device, &of.model, &of.params, folder.path(), options).unwrap();
        let again = loaded(folder.path());
        let wanted = Spec { padding: again.model.spec.padding, ..of.model.spec.clone() };
        assert!(again.model.spec == wanted, "{name}");
        let text = || pass(&again, &[golden(name)], &Places::none()).0;
        assert!(text() == pass(&of, &[golden(name)], &Places::none()).0, "{name}");
        if let Ok(keep) = std::env::var("FATHOM_KEEP_MASKED") {
            let to = Path::new(&keep).join(name);
            std::fs::create_dir_all(&to).unwrap();
            for entry in std::fs::read_dir(folder.path()).unwrap() {
                let entry = entry.unwrap();
                std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
        }
    }
}

#[test]
fn an_encoder_is_no_decoder() {
    let message = open(&case("modernbert")).err().unwrap().to_string();
    assert!(message.contains("model_type") && message.contains("fathom train mlm"), "{message}");
}
