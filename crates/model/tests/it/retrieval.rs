//! RETRO compared with an own forward pass in f64: logits, loss and gradients of packed documents with neighbours; folders
//! both ways.

use std::path::{Path, PathBuf};

use fathom_grad::{
    Batch, Counters, Eval, Grads, Labels, LossTerm, Memory, Params, Places, Scope, Segments, Tape,
};
use fathom_model::{
    Caps, Family, FolderOptions, Model, RetrievalOutput, SafeTensors, SaveOptions, Source, export_tensors,
    load, open, open_any, save_hf,
};
use fathom_tensor::{Category, DType, Device, Tensor};
use serde::Deserialize;
use serde_json::Value;

use crate::encoder_decoders::{Documents, close};
use crate::golden::cpu;
use crate::golden_files::{floats, folders, largest, name, object};

/// Folders of golden decoders with neighbours.
pub fn cases() -> Vec<PathBuf> {
    let all = folders("golden_retro");
    assert_eq!(all.len(), 2);
    all
}

/// A document, with the neighbours of each of its chunks.
#[derive(Clone, Deserialize)]
struct Document {
    ids: Vec<i32>,
    labels: Vec<i32>,
    neighbours: Vec<Vec<Vec<i32>>>,
}

#[derive(Deserialize)]
struct Golden {
    documents: Vec<Document>,
    loss: f64,
    valid_tokens: f64,
}

fn golden(case: &Path) -> (Golden, SafeTensors) {
    let figures = serde_json::from_value(Value::Object(object(&case.join("golden.json")))).unwrap();
    (figures, SafeTensors::open_file(&case.join("golden.safetensors")).unwrap())
}

struct Run {
    device: Device,
    model: Model,
    params: Params,
    batches: [Batch; 2],
    counters: Counters,
}

impl Run {
    /// Packed documents; `filler` tokens that nothing reads follow the neighbours.
    fn new(folder: &Path, documents: &[Document], (threads, filler): (usize, usize)) -> Run {
        let device = cpu(threads, None);
        let opened = open_any(folder).unwrap();
        let (model, mut params) = Model::declare(&device, &opened.spec, DType::F32);
        load(&device, &model, &mut params, &opened.source).unwrap();
        let chunk = opened.spec.retrieval.unwrap().chunk;
        let (mut main, mut source, mut chunks) = (Documents::default(), Documents::default(), Vec::new());
        for document in documents {
            for (index, neighbours) in document.neighbours.iter().enumerate() {
                for ids in neighbours {
                    source.push(ids);
                    chunks.push(main.ids.len() + index * chunk);
                }
            }
            main.push(&document.ids);
        }
        if filler > 0 {
            source.push(&vec![0; filler]);
        }
        let caps = Caps { docs: 4, seq_tokens: 256 };
        let batches = model.retrieval_batches(&device, [source.tokens(), main.tokens()], &chunks, caps);
        Run { device, model, params, batches, counters: Counters::default() }
    }

    fn scope(&self, stream: usize) -> Scope<'_> {
        let Run { device, params, counters, .. } = self;
        Scope { device, params, batch: (&self.batches[stream]).into(), counters }
    }

    fn forward<'a>(&'a self, runs: &mut [impl Segments<'a>; 4], trains: bool) -> RetrievalOutput {
        let remember = |value: Tensor| {
            let room = || self.device.zeros(value.rows(), value.cols(), DType::F32, Category::Activations);
            let gradient = trains.then(room);
            Memory { value, gradient }
        };
        self.model.forward_retrieval(runs.each_mut(), &remember)
    }

    fn logits(&self, tile_rows: Option<usize>) -> Vec<f32> {
        let mut runs = [1, 1, 0, 1].map(|stream| Eval::new(self.scope(stream), tile_rows, None));
        let y = self.forward(&mut runs, false).main;
        self.device.to_f32(&self.model.head(0.0).logits(&self.scope(1), &y))
    }

    /// The summed loss; adds to the gradients.
    fn backward(&self, places: &Places, labels: &[i32], grads: &mut Grads) -> f64 {
        let device = &self.device;
        let mut runs = [(1, false), (1, true), (0, false), (1, true)].map(|(stream, inside)| {
            let tape = Tape::new(self.scope(stream), places);
            if inside { tape.with_input_gradient() } else { tape }
        });
        let labels = Labels::plain(device.from_i32(labels, Category::Data));
        let losses = device.zeros(1, self.batches[1].tokens, DType::F32, Category::Activations);
        let RetrievalOutput { main, chunks, neighbours } = self.forward(&mut runs, true);
        let [below, rows, source, above] = runs;
        let term = [LossTerm::cross_entropy(&losses)];
        let dy = self.model.head(0.0).loss(above.scope(), &main, &labels, &term, grads);
        let dx = above.backward(dy, grads).unwrap();
        source.backward(neighbours.gradient.unwrap(), grads);
        let more = rows.backward(chunks.gradient.unwrap(), grads).unwrap();
        device.machine.add(&dx, &more, &dx);
        below.backward(dx, grads);
        device.to_f32(&losses).iter().map(|loss| f64::from(*loss)).sum()
    }
}

#[test]
fn logits_of_packed_documents_with_neighbours_are_those_of_the_formulas() {
    for case in cases() {
        let (Golden { documents, .. }, tensors) = golden(&case);
        let logits = Run::new(&case, &documents, (1, 0)).logits(None);
        close(&format!("{} logits", name(&case)), &logits, &floats(&tensors, "logits"), 1e-5, 0.0);
        assert!(Run::new(&case, &documents, (3, 0)).logits(None) == logits, "{}: threads", name(&case));
        assert!(Run::new(&case, &documents, (2, 0)).logits(Some(128)) == logits, "{}: tiles", name(&case));
        assert!(Run::new(&case, &documents, (2, 21)).logits(None) == logits, "{}: filled up", name(&case));
        let alone = |document| Run::new(&case, std::slice::from_ref(document), (1, 0)).logits(None);
        let alone: Vec<f32> = documents.iter().flat_map(alone).collect();
        close(&format!("{} alone", name(&case)), &alone, &logits, 3e-6, 0.0);
    }
}

#[test]
fn later_tokens_and_their_neighbours_change_no_logit_of_earlier_ones() {
    for case in cases() {
        let document = golden(&case).0.documents.pop().unwrap();
        let (vocab, run) = (64, |document| Run::new(&case, &[document], (2, 0)).logits(None));
        let whole = run(document.clone());
        let chunk = open_any(&case).unwrap().spec.retrieval.unwrap().chunk;
        for at in [chunk - 1, 2 * chunk, 2 * chunk + 3] {
            // The chunk of this token, its neighbours and all that follows are others.
            let mut other = document.clone();
            other.ids[at..].iter_mut().for_each(|id| *id = (*id + 7) % 60);
            other.neighbours[at / chunk..].iter_mut().flatten().flatten().for_each(|id| *id = (*id + 5) % 60);
            let other = run(other);
            let first = whole.iter().zip(&other).position(|(a, b)| a != b).unwrap();
            assert_eq!(first / vocab, at, "{}", name(&case));
        }
    }
}

#[test]
fn gradients_of_both_streams_are_those_of_the_formulas() {
    for case in cases() {
        let (Golden { documents, loss, valid_tokens: valid }, tensors) = golden(&case);
        let labels: Vec<i32> = documents.iter().flat_map(|document| document.labels.clone()).collect();
        let mut first: Option<Vec<f32>> = None;
        for (places, filler) in [(Places::none(), 0), (Places::linear().with_tiles(Some(128)), 21)] {
            let run = Run::new(&case, &documents, (2, filler));
            let mut grads = Grads::zeros(&run.device, &run.params);
            let sum = run.backward(&places, &labels, &mut grads);
            assert!((sum / valid / loss - 1.0).abs() < 1e-6, "{}: loss {} {loss}", name(&case), sum / valid);
            let folder = tempfile::tempdir().unwrap();
            let given = |id| grads.get(id).cloned().map(Into::into);
            export_tensors(&run.device, &run.model, given, folder.path(), SaveOptions::new(DType::F32))
                .unwrap();
            let ours = SafeTensors::open_folder(folder.path()).unwrap();
            let wanted = tensors.names().iter().filter(|name| name.starts_with("grad.")).count();
            assert_eq!(ours.names().len(), wanted, "{}", name(&case));
            let of = |tensor: &str| floats(&tensors, &format!("grad.{tensor}"));
            let of_model = ours.names().iter().map(|tensor| largest(&of(tensor))).fold(0.0, f32::max);
            let mut all = Vec::new();
            for tensor in ours.names() {
                let mean: Vec<f32> = floats(&ours, tensor).iter().map(|grad| grad / valid as f32).collect();
                let what = format!("{} gradient of {tensor}", name(&case));
                close(&what, &mean, &of(tensor), 1e-4, 1e-3 * of_model);
                all.extend(mean);
            }
            // Only sums over the tokens of neighbours are in another order with other tiles.
            let first = first.get_or_insert_with(|| all.clone());
            close(&format!("{} places", name(&case)), &all, first, 1e-6, 0.0);
        }
    }
}

#[test]
fn folders_with_retrieval_go_both_ways() {
    for case in cases() {
        let (Golden { documents, .. }, _) = golden(&case);
        let run = Run::new(&case, &documents, (1, 0));
        let folder = tempfile::tempdir().unwrap();
        let Run { device, model, params, .. } = &run;
        let generation = open_any(&case).unwrap().generation;
        let options =
            FolderOptions { weights: SaveOptions::new(DType::F32), generation: &generation, copy: &[] };
        save_hf(device, model, params, folder.path(), options).unwrap();
        let [before, after] = [case.as_path(), folder.path()].map(|at| SafeTensors::open_folder(at).unwrap());
        let sorted = |source: &SafeTensors| -> std::collections::BTreeSet<String> {
            source.names().into_iter().map(str::to_string).collect()
        };
        assert_eq!(sorted(&before), sorted(&after), "{}", name(&case));
        assert!(
            Run::new(folder.path(), &documents, (1, 0)).logits(None) == run.logits(None),
            "{}",
            name(&case)
        );
    }
}

#[test]
fn other_uses_and_other_sizes_are_refused() {
    let case = &cases()[0];
    let refused = open(case).err().unwrap().to_string();
    assert!(
        refused.contains("reads neighbours of its text") && refused.contains("does not generate"),
        "{refused}"
    );
    for (key, value, message) in [
        ("retro_layer_numbers", Value::from(vec![2, 2]), "ascending numbers of layers from 1 to 3"),
        ("retro_layer_numbers", Value::from(vec![4]), "ascending numbers of layers from 1 to 3"),
        ("retro_layer_numbers", Value::from(Vec::<u32>::new()), "at least one"),
        ("retro_chunk_size", 1.into(), "2 to 65536"),
        ("retro_num_neighbors", 0.into(), "1 to 1024"),
        ("retro_encoder_layers", 0.into(), "1 to 4096"),
    ] {
        let mut map = object(&case.join("config.json"));
        map.insert(key.into(), value);
        let refused = Family::read(Path::new("config.json"), &map).unwrap_err().to_string();
        assert!(refused.contains(key) && refused.contains(message), "{refused}");
    }
}

/// The layers of Megatron's rule: from the 6th, or the 9th of more than 15, every third.
#[test]
fn layers_with_neighbours_are_every_third() {
    for (layers, expected) in
        [(4, vec![4]), (12, vec![6, 9, 12]), (15, vec![6, 9, 12, 15]), (24, vec![9, 12, 15, 18, 21, 24])]
    {
        let mut map = object(&cases()[0].join("config.json"));
        map.remove("retro_layer_numbers");
        map.insert("num_hidden_layers".into(), layers.into());
        let spec = Family::read(Path::new("config.json"), &map).unwrap();
        let written = Family::write(Path::new("config.json"), &spec).unwrap();
        assert_eq!(written["retro_layer_numbers"], Value::from(expected), "{layers}");
    }
}
