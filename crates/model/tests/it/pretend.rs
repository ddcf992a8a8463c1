//! A family unknown to this program, with its own sub-layer, defined in this file alone: configuration, names,
//! weights, forward pass, and everything that follows from them.

use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{Counters, Ctx, GemmFormat, Grads, Labels, LossTerm, Places, Scope, Tape, Val};
use fathom_model::{
    Adapter, AdapterMethod, Caps, Config, Family, InFiles, Init, LayerSpec, LinearParams, Linears,
    LlamaSizes, Model, Module, Names, NarrowLayers, Own, PackedTokens, Parallel, PartKind, Portion,
    Projection, Reach, Residual, SafeTensors, SaveOptions, Sharers, Size, Spec, SplitDimension, StateSpec,
    SubLayer, SubLayerParams, SubParams, Walk, export_tensors, initialise, load,
};
use fathom_tensor::{Category, DType, Device};
use serde_json::{Map, Value, json};

const SIZES: LlamaSizes = LlamaSizes { head_dim: 8, ffn: 48, vocab: 64, tied: false, ..LlamaSizes::TINY };

static FAMILY: Family = Family {
    model_type: "pretend",
    architecture: "PretendForCausalLM",
    read: |c, _| Ok(spec(c.size("hidden_size")?, c.layers("num_hidden_layers")?)),
    write: |s: &Spec, map: &mut Map<String, Value>| {
        map.insert("hidden_size".into(), json!(s.hidden));
        map.insert("num_hidden_layers".into(), json!(s.layers.len()));
    },
    names: Names::LLAMA,
};

/// Two projections of the same input, one of them activated: `down(act(left h) + right h)`.
#[derive(Debug, PartialEq)]
struct Twin {
    /// Columns inside.
    ffn: usize,
}

#[derive(Debug)]
struct TwinParams {
    left: LinearParams,
    right: LinearParams,
    down: LinearParams,
}

impl SubLayer for Twin {
    fn module(&self) -> Module {
        Module::Mlp
    }

    fn declare(&self, w: &mut Walk<'_>, s: &Spec, _: usize) -> Own {
        let (ffn, hidden) = ([self.ffn], [s.hidden]);
        let up = |role, name| Projection::new(role, Module::Mlp, &ffn, s.hidden, InFiles::one(name, ffn[0]));
        let down = InFiles::one("mlp.twin_down", s.hidden);
        let down = Projection::new("twin.down", Module::Mlp, &hidden, self.ffn, down);
        Rc::new(TwinParams {
            left: w.linear(up("twin.left", "mlp.left_proj")),
            right: w.linear(Projection { bias: true, ..up("twin.right", "mlp.right_proj") }),
            down: w.linear(Projection { parallel: Parallel::Rows, ..down }),
        })
    }

    fn check(&self, ranks: &Sharers) -> Result<(), (SplitDimension, String)> {
        let why = || {
            (
                SplitDimension::Columns,
                format!("{} does not divide {} columns of a twin", ranks.columns, self.ffn),
            )
        };
        if self.ffn.is_multiple_of(ranks.columns) { Ok(()) } else { Err(why()) }
    }

    fn states(&self, _: &Sharers) -> Vec<StateSpec> {
        Vec::new()
    }
}

impl SubLayerParams for TwinParams {
    fn forward(&self, cx: &mut Ctx<'_>, s: &Spec, _: &LayerSpec, h_td: Val) -> Val {
        let l_tf = self.left.columns(cx, "mlp.left", h_td);
        let r_tf = self.right.columns(cx, "mlp.right", h_td);
        let l_tf = cx.activate("mlp.act", s.mlp.activation, l_tf);
        let m_tf = cx.add("mlp.sum", l_tf, r_tf);
        self.down.rows(cx, "mlp.down", m_tf)
    }
}

const TOKENS: usize = 150;

/// Alternating layers: attention and a twin, a smaller twin alone, attention alone.
fn spec(hidden: usize, layers: usize) -> Spec {
    let plain = Spec::llama(LlamaSizes { hidden, layers, ..SIZES });
    let own = |ffn| PartKind::Own(Arc::new(Twin { ffn }));
    let attention = || PartKind::Attention { reach: Reach::Causal, rope: Some(0) };
    let kinds =
        [LayerSpec::new([attention(), own(48)]), LayerSpec::new([own(24)]), LayerSpec::new([attention()])];
    Spec { family: &FAMILY, layers: kinds.into_iter().cycle().take(layers).collect(), ..plain }
}

fn device() -> Device {
    Device::new(Arc::new(Cpu::new(1, None)), 1 << 28)
}

/// The sum of the losses, and the gradients.
fn pass(device: &Device, (model, params): (&Model, &fathom_grad::Params), places: &Places) -> (f64, Grads) {
    let docs = [0..97, 97..TOKENS];
    let positions: Vec<i32> = docs.iter().flat_map(|doc| 0..doc.len() as i32).collect();
    let ids: Vec<i32> = (0..TOKENS as i32).map(|t| (t * 37 + t * t % 11) % 64).collect();
    let labels: Vec<i32> = ids.iter().map(|id| (id * 5 + 1) % 64).collect();
    let packed = PackedTokens { ids: &ids, positions: &positions, docs: &docs };
    let batch = model.batch(device, packed, Caps { docs: 2, seq_tokens: 97 });
    let labels = Labels::plain(device.from_i32(&labels, Category::Data));
    let (counters, mut grads) = (Counters::default(), Grads::zeros(device, params));
    let mut tape = Tape::new(Scope { device, params, batch: (&batch).into(), counters: &counters }, places);
    let losses = device.zeros(1, TOKENS, DType::F32, Category::Activations);
    let x = model.forward(&mut tape);
    let dx = model.head(0.0).loss(tape.scope(), &x, &labels, &[LossTerm::cross_entropy(&losses)], &mut grads);
    drop(x);
    tape.backward(dx, &mut grads);
    (device.to_f32(&losses).iter().map(|loss| f64::from(*loss)).sum(), grads)
}

#[test]
fn its_configuration_is_written_and_read() {
    let (file, spec) = (Path::new("config.json"), spec(32, 3));
    let map = Family::write(file, &spec).unwrap();
    assert_eq!(map["model_type"], "pretend");
    assert_eq!(FAMILY.parse(&Config::new(file, &map)).unwrap(), spec);
    assert_ne!(spec.layers[0], LayerSpec::decoder(None, Some(0)));
    let twin = |ffn| LayerSpec::new([PartKind::Own(Arc::new(Twin { ffn }))]);
    assert!(spec.layers[1] == twin(24) && spec.layers[1] != twin(48), "sub-layers are equal by their sizes");
}

/// Checks that a step along the gradient changes the loss by the gradient's square.
pub fn check_slope(
    name: &str,
    device: &Device,
    params: &fathom_grad::Params,
    (gradients, loss): (&[Vec<f32>], &dyn Fn() -> f64),
) {
    let square: f64 = gradients.iter().flatten().map(|x| f64::from(*x).powi(2)).sum();
    let started: Vec<Vec<f32>> = params.iter().map(|(id, _)| device.to_f32(&params.tensor(id))).collect();
    let step = 1e-2 / square.sqrt();
    let [more, less] = [step, -step].map(|step| {
        for ((id, _), (values, grads)) in params.iter().zip(started.iter().zip(gradients)) {
            let moved: Vec<f32> =
                values.iter().zip(grads).map(|(x, g)| x + (step * f64::from(*g)) as f32).collect();
            let weight = params.tensor(id);
            let moved = device.from_f32(weight.rows(), weight.cols(), &moved, Category::Data);
            device.machine.copy(&moved, &weight);
        }
        loss()
    });
    let found = (more - less) / (2.0 * step);
    assert!((found / square - 1.0).abs() < 1e-2, "{name}: {found} for {square}");
}

#[test]
fn its_gradients_are_those_of_the_loss() {
    for residual in [Residual::Pre, Residual::Sum, Residual::Parallel] {
        let (device, spec) = (device(), spec(32, 3).with_residual(residual));
        let (model, mut params) = Model::declare(&device, &spec, DType::F32);
        initialise(&device, &model, &mut params, Init { deviation: 0.3, seed: 3 });
        let (_, grads) = pass(&device, (&model, &params), &Places::none());
        let (_, again) =
            pass(&device, (&model, &params), &Places::full().with_tiles(Some(128)).with_segment_layers(2));
        let all = |grads: &Grads| -> Vec<Vec<f32>> {
            params.iter().map(|(id, _)| device.to_f32(grads.get(id).unwrap())).collect()
        };
        let gradients = all(&grads);
        assert!(gradients == all(&again), "{residual:?}: places change bits");
        assert!(gradients.iter().all(|grad| grad.iter().any(|x| *x != 0.0)), "{residual:?}");
        let loss = || pass(&device, (&model, &params), &Places::none()).0;
        check_slope(&format!("{residual:?}"), &device, &params, (&gradients, &loss));
    }
}

#[test]
fn its_projections_are_known_by_their_names_in_files() {
    let (device, spec) = (device(), spec(32, 3));
    let (model, mut params) = Model::declare(&device, &spec, DType::F32);
    let linears = model.linears();
    let suffixes: Vec<Vec<&str>> =
        linears.iter().map(|linear| linear.parts.iter().map(|part| part.suffix()).collect()).collect();
    let (qkv, out) = (vec!["q_proj", "k_proj", "v_proj"], vec!["o_proj"]);
    let twin = [vec!["left_proj"], vec!["right_proj"], vec!["twin_down"]];
    let expected: Vec<Vec<&str>> =
        [qkv.clone(), out.clone()].into_iter().chain(twin.clone()).chain(twin).chain([qkv, out]).collect();
    assert_eq!(suffixes, expected);
    assert_eq!(linears[0].parts[2].rows, [(0..16, 48)]);
    assert_eq!(linears[3].parts[0].name, "model.layers.0.mlp.right_proj");
    assert_eq!(params.get(linears[3].params.bias.unwrap()).name, "blocks.0.twin.right.bias");
    // Its projections can be low-precision.
    let how = NarrowLayers {
        format: GemmFormat::Fp8Current,
        linears: Linears::Mlp,
        at_start: 1,
        at_end: 0,
        history: 0,
    };
    model.narrow(&device, &mut params, Some(&how)).unwrap();
}

#[test]
fn its_weights_are_saved_loaded_and_cut_over_ranks() {
    let (device, spec) = (device(), spec(32, 3));
    let (model, mut params) = Model::declare(&device, &spec, DType::F32);
    initialise(&device, &model, &mut params, Init::new(5));
    let folder = tempfile::tempdir().unwrap();
    let options = SaveOptions { dtype: DType::F32, max_shard_bytes: 1 << 30 };
    export_tensors(&device, &model, |id| Some(params.get(id).value.clone()), folder.path(), options).unwrap();
    let (source, values) =
        (SafeTensors::open_folder(folder.path()).unwrap(), |params: &fathom_grad::Params| -> Vec<Vec<f32>> {
            params.iter().map(|(id, _)| device.to_f32(&params.tensor(id))).collect()
        });
    let (other, mut loaded) = Model::declare(&device, &spec, DType::F32);
    load(&device, &other, &mut loaded, &source).unwrap();
    assert_eq!(values(&loaded), values(&params));
    // Two ranks cover every element of the split weights once, with the whole's initial values.
    let mut seen = BTreeSet::new();
    for tp_index in 0..2 {
        let portion = Portion { tp: 2, tp_index, ..Portion::whole(&spec) };
        let (part, mut held) = Model::declare_part(&device, &spec, DType::F32, None, portion.clone());
        load(&device, &part, &mut held, &source).unwrap();
        let (made, mut started) = Model::declare_part(&device, &spec, DType::F32, None, portion);
        initialise(&device, &made, &mut started, Init::new(5));
        assert_eq!(values(&held), values(&started));
        for piece in part.pieces().into_iter().flatten().filter(|piece| piece.name.contains("twin_down")) {
            assert!(seen.insert((piece.name.clone(), piece.cols.start)));
            assert!([12, 24].contains(&piece.cols.len()));
        }
    }
    assert_eq!(seen.len(), 2 * 2);
    // Attention of so many heads could be cut.
    let wide = Spec { heads: 16, kv_heads: 16, ..spec };
    let refused = Portion { tp: 16, ..Portion::whole(&wide) }.check(&wide).unwrap_err();
    assert_eq!(refused.to_string(), "tp: 16 does not divide 24 columns of a twin");
}

/// A sub-layer that projects through its [`LinearParams`] has its adapter, and one that forgets it is refused.
#[test]
fn its_projections_have_adapters() {
    let (device, plain) = (device(), spec(32, 3));
    let size = Size { rank: 4, alpha: 8.0 };
    let names = ["model.layers.0.mlp.right_proj", "model.layers.1.mlp.twin_down"];
    let modules = names.into_iter().map(|name| (name.to_string(), size)).collect();
    let method = AdapterMethod::Lora { rank_stabilised: false, lengths: false, singular: false };
    let adapter = Adapter::of(method, modules, BTreeSet::new());
    let spec = plain.with_adapter(adapter).unwrap();
    let (model, mut params) = Model::declare(&device, &spec, DType::F32);
    initialise(&device, &model, &mut params, Init { deviation: 0.3, seed: 3 });
    let (_, grads) = pass(&device, (&model, &params), &Places::none());
    let b = params.iter().filter(|(_, param)| param.name.ends_with("lora_B.weight"));
    let moved = b.filter(|(id, _)| device.to_f32(grads.get(*id).unwrap()).iter().any(|x| *x != 0.0));
    assert_eq!(moved.count(), 2);

    /// A twin that computes with its weights alone.
    #[derive(Debug)]
    struct Forgetful;
    impl SubLayerParams for Forgetful {
        fn forward(&self, _: &mut Ctx<'_>, _: &Spec, _: &LayerSpec, h_td: Val) -> Val {
            h_td
        }
    }
    let (mut model, params) = Model::declare(&device, &spec, DType::F32);
    let SubParams::Own(own, _) = &mut model.blocks[1].parts[0].sublayer else { panic!("a twin") };
    *own = Rc::new(Forgetful);
    let forgets = std::panic::AssertUnwindSafe(|| _ = pass(&device, (&model, &params), &Places::none()));
    let why = std::panic::catch_unwind(forgets).unwrap_err();
    assert!(why.downcast_ref::<String>().unwrap().contains("its adapter's"));
}
