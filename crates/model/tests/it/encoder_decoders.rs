//! Encoder-decoders compared with Transformers: logits, loss and gradients of packed pairs, longer than the largest
//! distance of their biases; folders both ways.

use std::ops::Range;
use std::path::{Path, PathBuf};

use fathom_grad::{
    Batch, Counters, Eval, Grads, Labels, LossTerm, Memory, Params, Places, Scope, Segments, Tape,
};
use fathom_model::{
    Caps, FolderOptions, Model, PackedTokens, SafeTensors, SaveOptions, Source, SourceStream, Streams,
    export_tensors, load, open, open_any, save_hf,
};
use fathom_tensor::{Category, DType, Device, Tensor};
use serde_json::Value;

use crate::golden::cpu;
use crate::golden_files::{floats, folders, largest, name, object};

/// Folders of golden encoder-decoders.
pub fn cases() -> Vec<PathBuf> {
    let all = folders("golden_t5");
    assert_eq!(all.len(), 6);
    all
}

/// Documents of one stream.
#[derive(Default)]
pub struct Documents {
    pub ids: Vec<i32>,
    positions: Vec<i32>,
    pub docs: Vec<Range<usize>>,
}

impl Documents {
    fn of(pairs: &[Value], key: &str) -> Documents {
        let mut all = Documents::default();
        for pair in pairs {
            all.push(&serde_json::from_value::<Vec<i32>>(pair[key].clone()).unwrap());
        }
        all
    }

    pub fn push(&mut self, ids: &[i32]) {
        let start = self.ids.len();
        self.positions.extend(0..ids.len() as i32);
        self.ids.extend(ids);
        self.docs.push(start..self.ids.len());
    }

    pub fn tokens(&self) -> PackedTokens<'_> {
        PackedTokens { ids: &self.ids, positions: &self.positions, docs: &self.docs }
    }
}

pub struct Run {
    device: Device,
    model: Model,
    params: Params,
    batches: [Batch; 2],
    counters: Counters,
}

impl Run {
    pub fn new(folder: &Path, pairs: &[Value], threads: usize) -> Run {
        let device = cpu(threads, None);
        let opened = open_any(folder).unwrap();
        let (model, mut params) = Model::declare(&device, &opened.spec, DType::F32);
        load(&device, &model, &mut params, &opened.source).unwrap();
        let streams = ["source", "decoder"].map(|key| Documents::of(pairs, key));
        let caps = Caps { docs: 4, seq_tokens: 256 };
        let batches = model.batches(&device, streams.each_ref().map(Documents::tokens), caps);
        Run { device, model, params, batches, counters: Counters::default() }
    }

    fn scope(&self, stream: usize) -> Scope<'_> {
        let Run { device, params, counters, .. } = self;
        Scope { device, params, batch: (&self.batches[stream]).into(), counters }
    }

    fn forward<'a>(&'a self, runs: [&mut impl Segments<'a>; 2], trains: bool) -> Streams {
        let remember = |value: Tensor| {
            let room = || self.device.zeros(value.rows(), value.cols(), DType::F32, Category::Activations);
            let gradient = trains.then(room);
            Memory { value, gradient }
        };
        self.model.forward_streams(runs, 0, None, &remember)
    }

    pub fn logits(&self) -> Vec<f32> {
        let mut runs = [0, 1].map(|stream| Eval::new(self.scope(stream), None, None));
        let [below, above] = &mut runs;
        let y = self.forward([below, above], false).main;
        self.device.to_f32(&self.model.head(0.0).logits(&self.scope(1), &y))
    }

    /// The summed loss; adds to the gradients.
    fn backward(&self, places: &Places, labels: &[i32], grads: &mut Grads) -> f64 {
        let device = &self.device;
        let [mut below, mut above] = [0, 1].map(|stream| Tape::new(self.scope(stream), places));
        let labels = Labels::plain(device.from_i32(labels, Category::Data));
        let losses = device.zeros(1, self.batches[1].tokens, DType::F32, Category::Activations);
        let Streams { main, source } = self.forward([&mut below, &mut above], true);
        let term = [LossTerm::cross_entropy(&losses)];
        let dx = self.model.head(0.0).loss(above.scope(), &main, &labels, &term, grads);
        drop(main);
        above.backward(dx, grads);
        let SourceStream::Result(Memory { gradient: Some(dy), .. }) = source else { panic!("no result") };
        below.backward(dy, grads);
        device.to_f32(&losses).iter().map(|loss| f64::from(*loss)).sum()
    }
}

#[track_caller]
pub fn close(what: &str, ours: &[f32], golden: &[f32], tolerance: f32, floor: f32) {
    assert_eq!(ours.len(), golden.len(), "{what}");
    let scale = largest(golden).max(floor);
    let worst = ours.iter().zip(golden).fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs()));
    println!("{what}: {:.1e}", worst / scale);
    assert!(worst / scale <= tolerance, "{what}: {:.2e} > {tolerance:.0e}", worst / scale);
}

fn golden(case: &Path) -> (Vec<Value>, f64, f64, SafeTensors) {
    let figures = object(&case.join("golden.json"));
    let number = |key: &str| figures[key].as_f64().unwrap();
    let pairs = figures["pairs"].as_array().unwrap().clone();
    let tensors = SafeTensors::open_file(&case.join("golden.safetensors")).unwrap();
    (pairs, number("loss"), number("valid_tokens"), tensors)
}

#[test]
fn logits_of_packed_pairs_are_those_of_transformers() {
    for case in cases() {
        let (pairs, _, _, tensors) = golden(&case);
        let logits = Run::new(&case, &pairs, 1).logits();
        close(&format!("{} logits", name(&case)), &logits, &floats(&tensors, "logits"), 1e-5, 0.0);
        assert!(Run::new(&case, &pairs, 3).logits() == logits, "{}: threads", name(&case));
        let alone: Vec<f32> =
            pairs.iter().flat_map(|pair| Run::new(&case, std::slice::from_ref(pair), 1).logits()).collect();
        close(&format!("{} alone", name(&case)), &alone, &logits, 3e-6, 0.0);
    }
}

#[test]
fn gradients_of_both_streams_are_those_of_transformers() {
    for case in cases() {
        let (pairs, loss, valid, tensors) = golden(&case);
        let run = Run::new(&case, &pairs, 2);
        let ints = |pair: &Value| serde_json::from_value::<Vec<i32>>(pair["labels"].clone()).unwrap();
        let labels: Vec<i32> = pairs.iter().flat_map(ints).collect();
        let mut grads = Grads::zeros(&run.device, &run.params);
        let sum = run.backward(&Places::none(), &labels, &mut grads);
        assert!((sum / valid / loss - 1.0).abs() < 1e-6, "{}: loss {} {loss}", name(&case), sum / valid);
        let folder = tempfile::tempdir().unwrap();
        let given = |id| grads.get(id).cloned().map(Into::into);
        export_tensors(&run.device, &run.model, given, folder.path(), SaveOptions::new(DType::F32)).unwrap();
        let ours = SafeTensors::open_folder(folder.path()).unwrap();
        let wanted = tensors.names().iter().filter(|name| name.starts_with("grad.")).count();
        assert_eq!(ours.names().len(), wanted, "{}", name(&case));
        let of = |tensor: &str| floats(&tensors, &format!("grad.{tensor}"));
        let of_model = ours.names().iter().map(|tensor| largest(&of(tensor))).fold(0.0, f32::max);
        for tensor in ours.names() {
            let mean: Vec<f32> = floats(&ours, tensor).iter().map(|grad| grad / valid as f32).collect();
            close(
                &format!("{} gradient of {tensor}", name(&case)),
                &mean,
                &of(tensor),
                1e-4,
                1e-3 * of_model,
            );
        }
    }
}

#[test]
fn folders_of_encoder_decoders_go_both_ways() {
    for case in cases() {
        let (pairs, ..) = golden(&case);
        let run = Run::new(&case, &pairs, 1);
        let folder = tempfile::tempdir().unwrap();
        let Run { device, model, params, .. } = &run;
        let generation = open_any(&case).unwrap().generation;
        let weights = SaveOptions::new(DType::F32);
        save_hf(
            device,
            model,
            params,
            folder.path(),
            FolderOptions { weights, generation: &generation, copy: &[] },
        )
        .unwrap();
        let [before, after] = [case.as_path(), folder.path()].map(|at| SafeTensors::open_folder(at).unwrap());
        let sorted = |source: &SafeTensors| -> Vec<String> {
            let names: std::collections::BTreeSet<&str> = source.names().into_iter().collect();
            names.into_iter().map(str::to_string).collect()
        };
        assert_eq!(sorted(&before), sorted(&after), "{}", name(&case));
        assert!(Run::new(folder.path(), &pairs, 1).logits() == run.logits(), "{}", name(&case));
    }
}

#[test]
fn encoder_decoders_and_decoders_are_no_substitutes() {
    let case = &cases()[0];
    let refused = open(case).err().unwrap().to_string();
    assert!(refused.contains("an encoder-decoder"), "{refused}");
    let mut map = object(&case.join("config.json"));
    let read = |map: &serde_json::Map<String, Value>| {
        fathom_model::Family::read(Path::new("config.json"), map).err().map(|error| error.to_string())
    };
    assert_eq!(read(&map), None);
    map.insert("num_decoder_layers".into(), 0.into());
    assert!(read(&map).unwrap().contains("has no decoder"), "{:?}", read(&map));
    map.insert("num_decoder_layers".into(), 1.into());
    map.insert("architectures".into(), vec!["T5EncoderModel"].into());
    assert!(read(&map).unwrap().contains("T5EncoderModel"), "{:?}", read(&map));
    map.remove("architectures");
    map.insert("relative_attention_num_buckets".into(), 7.into());
    assert!(read(&map).unwrap().contains("an even number"), "{:?}", read(&map));
}
