//! Adapters of embeddings, heads and experts, rows of tokens, and dropout: the same bits for all places of activations,
//! plans that equal peaks, and several ranks like one.

use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{Params, Places};
use fathom_model::{
    Adapter, AdapterMethod, Model, Moe, Size, Spec, Targets, TrainableWeights, load_peft, open, open_peft,
};
use fathom_tensor::mesh::{CountingLink, Grid, Mesh};
use fathom_tensor::{DType, Device, Machine, Meta};
use fathom_train::parallel::Sharding;
use fathom_train::{Goal, InStep, MicroBatch, Trainer, frozen};

use crate::adapters::{CAPS, Peft, golden, train_spec};
use crate::leading::part;
use crate::mesh::{ADAMW, Case, ONE, every_rank, in_step, spec};

const LORA: AdapterMethod = AdapterMethod::Lora { rank_stabilised: false, lengths: false, singular: false };

/// Low-rank terms of rank 4 on these weights.
fn lora(spec: Spec, ends: &[&str]) -> Adapter {
    let targets = Targets::Ends(ends.iter().map(|end| end.to_string()).collect());
    let names = spec.targeted(&targets).unwrap();
    let modules = names.into_iter().map(|name| (name, Size { rank: 4, alpha: 6.0 })).collect();
    Adapter::of(LORA, modules, Default::default())
}

fn mixtral(tied: bool) -> Spec {
    spec(tied).into_mixtral(Moe::new(4, 2, 48))
}

fn tables(tied: bool) -> Spec {
    let spec = spec(tied);
    spec.clone().with_adapter(lora(spec, &["embed_tokens", "lm_head", "q_proj"])).unwrap()
}

fn tokens(_: bool) -> Spec {
    let spec = spec(false);
    let adapter = Adapter { tokens: vec![11, 3, 22], ..lora(spec.clone(), &["q_proj"]) };
    spec.with_adapter(adapter).unwrap()
}

fn each(tied: bool) -> Spec {
    let spec = mixtral(tied);
    spec.clone().with_adapter(lora(spec, &["q_proj", "w1", "w2", "w3"])).unwrap()
}

fn stacked(tied: bool) -> Spec {
    let spec = mixtral(tied);
    let ends = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"];
    spec.clone().with_adapter(lora(spec, &ends)).unwrap()
}

/// Terms of different ranks on parts of one weight, which has biases.
fn uneven(tied: bool) -> Spec {
    let spec = spec(tied);
    let mut adapter = lora(spec.clone(), &["q_proj", "v_proj", "o_proj"]);
    adapter
        .modules
        .iter_mut()
        .filter(|(name, _)| name.ends_with("v_proj"))
        .for_each(|(_, size)| size.rank = 2);
    spec.with_adapter(Adapter { biases: true, ..adapter }).unwrap()
}

fn dropping(tied: bool) -> Spec {
    let spec = spec(tied);
    let adapter = lora(spec.clone(), &["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]);
    spec.with_adapter(Adapter { dropout: 0.3, ..adapter }).unwrap()
}

/// Name, model, whether the head is the embedding, whether there are experts.
type Kind = (&'static str, fn(bool) -> Spec, bool, bool);

/// All kinds.
const ALL: [Kind; 7] = [
    ("tables", tables, false, false),
    ("tied tables", tables, true, false),
    ("tokens", tokens, false, false),
    ("each expert", each, false, true),
    ("stacked experts", stacked, true, true),
    ("uneven ranks", uneven, false, false),
    ("dropout", dropping, false, false),
];

#[test]
fn placements_do_not_change_a_bit_and_plans_are_peaks() {
    for (index, (name, spec, tied, _)) in ALL.into_iter().enumerate() {
        // In f32 and over NF4 in turns.
        let dtype = [DType::F32, DType::Bf16][index % 2];
        let case = Case { dtype, ..ONE };
        let run = |case: Case, places: &(dyn Fn() -> Places + Sync)| {
            let seen = every_rank(case, &|device| train_spec(device, &case, spec(tied), places())).remove(0);
            let device = Device::new(Arc::new(Meta::new(Cpu::new(1, None).profile().clone())), 1 << 28);
            let planned = train_spec(&device, &case, spec(tied), places()).peak;
            assert_eq!(planned, seen.peak, "{name} {dtype:?}");
            seen.losses
        };
        let kept = run(case, &Places::none);
        assert!(kept[0][0] - kept[3][0] > 0.003, "{name}: it learns: {kept:?}");
        assert_eq!(run(case, &Places::linear), kept, "{name}");
        assert_eq!(run(Case { tile_rows: Some(128), ..case }, &Places::full), kept, "{name}");
        assert_eq!(run(case, &|| Places::full().with_segment_layers(2)), kept, "{name}");
    }
}

#[test]
fn ranks_give_what_one_gives() {
    let grid = Grid::default();
    for (name, spec, tied, experts) in ALL {
        let one = every_rank(ONE, &|device| train_spec(device, &ONE, spec(tied), Places::linear())).remove(0);
        let mut grids = vec![
            (Grid { dp: 2, ..grid }, Sharding::OptimGradsParams),
            (Grid { pp: 2, ..grid }, Sharding::Optim),
            (Grid { tp: 2, ..grid }, Sharding::Optim),
            (Grid { cp: 2, ..grid }, Sharding::Optim),
        ];
        if experts {
            grids.push((Grid { dp: 2, ep: 2, ..grid }, Sharding::Optim));
            grids.push((Grid { dp: 2, etp: 2, ..grid }, Sharding::OptimGradsParams));
            grids.push((Grid { dp: 4, ep: 2, etp: 2, ..grid }, Sharding::Optim));
        }
        for (grid, sharding) in grids {
            let case = Case { grid, sharding, ..ONE };
            let ranks = every_rank(case, &|device| train_spec(device, &case, spec(tied), Places::linear()));
            for (rank, found) in ranks.iter().enumerate() {
                for (a, b) in found.losses.iter().flatten().zip(one.losses.iter().flatten()) {
                    let apart = (a - b).abs() > 2e-5 * b.abs().max(1.0);
                    assert!(!apart, "{name} {grid}: {:?} {:?}", found.losses, one.losses);
                }
                let machine = Meta::new(Cpu::new(1, None).profile().clone());
                let mesh = Mesh::new(grid, Box::new(CountingLink::new(rank, grid.ranks())));
                let device = Device::on_mesh(Arc::new(machine), 1 << 28, mesh);
                let planned = train_spec(&device, &case, spec(tied), Places::linear()).peak;
                assert_eq!(planned, found.peak, "{name} {grid}: rank {rank}");
            }
        }
    }
}

#[test]
fn what_cannot_have_terms_is_refused() {
    let refuse = |adapter: Adapter, base: Spec, said: &str| {
        let message = base.with_adapter(adapter).unwrap_err();
        assert!(message.contains(said), "{message}");
    };
    let dora = AdapterMethod::Lora { rank_stabilised: false, lengths: true, singular: false };
    let adapter = Adapter { method: dora, ..lora(spec(false), &["lm_head"]) };
    refuse(adapter, spec(false), "lengths of rows (DoRA) of lm_head");
    let adapter = Adapter { dropout: 0.1, ..lora(mixtral(false), &["w1"]) };
    refuse(adapter, mixtral(false), "dropout of model.layers.0.block_sparse_moe.experts.0.w1");
    let mut adapter = lora(mixtral(false), &["w1"]);
    adapter.modules.retain(|name, _| !name.contains("experts.2."));
    refuse(adapter, mixtral(false), "3 of 4 experts");
    let mut adapter = lora(mixtral(false), &["w3"]);
    adapter.modules.extend(lora(mixtral(false), &["mlp.experts.gate_up_proj"]).modules);
    refuse(adapter, mixtral(false), "one by one and as a stack");
    let tokens = |tokens: &[u32]| Adapter { tokens: tokens.to_vec(), ..lora(spec(true), &["q_proj"]) };
    refuse(tokens(&[3]), spec(true), "the head is the embedding");
    refuse(tokens(&[3, 3]), spec(false), "named twice");
    refuse(tokens(&[131]), spec(false), "token 131");
    // `AllLinear` includes neither the embedding, nor the head, nor experts.
    let all = mixtral(false).targeted(&Targets::AllLinear).unwrap();
    assert!(all.iter().all(|name| name.contains("self_attn")), "{all:?}");
    // The suffix of an MLP's weight does not match a stack of experts.
    assert!(spec(false).targeted(&Targets::Ends(vec!["down_proj".into()])).unwrap().len() == 4);
    // Merging into a tied head would change the embedding too.
    assert!(tables(true).merges().unwrap_err().contains("head"));
    assert!(tables(false).merges().is_ok());
}

/// PEFT's case of attention projections, with dropout.
fn drops(device: &Device, dropout: f64) -> (Model, Params) {
    let base = open(&golden("llama")).unwrap();
    let (spec, tensors) = open_peft(&golden("lora_attention/before"), base.spec).unwrap();
    let adapter = Adapter { dropout, ..spec.adapter.as_deref().unwrap().clone() };
    let spec = spec.without_adapter().with_adapter(adapter).unwrap();
    let (model, mut params) = Model::declare(device, &spec, DType::F32);
    load_peft(device, &model, &mut params, (&base.source, &tensors)).unwrap();
    (model, params)
}

/// Losses and norms of steps over some micro-batches, each with the number of its first sample.
fn drop_steps(dropout: f64, steps: &[u64], micros: &dyn Fn(MicroBatch) -> Vec<MicroBatch>) -> Vec<[f32; 2]> {
    let (device, case) = (Device::new(Arc::new(Cpu::new(1, None)), 1 << 28), Peft::open("lora_attention"));
    let (mut model, mut params) = drops(&device, dropout);
    let trained = TrainableWeights::adapter(&[]).unwrap();
    frozen(&mut model, &mut params, &trained).unwrap();
    let mut trainer = Trainer::sharded(&device, model, params, Sharding::Optim, ADAMW);
    let goal = Goal { trained, drops: Some(5), ..Goal::default() };
    let how = InStep { goal, caps: CAPS, z_loss: 0.0, places: Places::none(), ..in_step(&ONE) };
    let micros = micros(case.micro(0));
    let step = |began: &u64| {
        let micros: Vec<MicroBatch> =
            micros.iter().map(|micro| MicroBatch { began: *began, ..micro.clone() }).collect();
        let result = trainer.step(&micros, &how).unwrap();
        [result.loss.wait_f32() / result.count.wait_f32(), result.norm.wait_f32()]
    };
    steps.iter().map(step).collect()
}

#[test]
fn dropout_is_packed_as_it_is_accumulated() {
    let packed = drop_steps(0.4, &[0, 3, 6, 9], &|micro| vec![micro]);
    let alone =
        drop_steps(0.4, &[0, 3, 6, 9], &|micro| (0..3).map(|doc| part(&micro, doc..doc + 1)).collect());
    // The order of micro-batches does not matter either.
    let turned = drop_steps(0.4, &[0, 3, 6, 9], &|micro| vec![part(&micro, 2..3), part(&micro, 0..2)]);
    for other in [&alone, &turned] {
        for (a, b) in packed.iter().flatten().zip(other.iter().flatten()) {
            assert!((a - b).abs() < 1e-6 * b.abs(), "{packed:?} {other:?}");
        }
    }
    // Each step has its own dropout, which is reproducible.
    let first = |step: u64| drop_steps(0.4, &[step], &|micro| vec![micro])[0];
    assert_eq!(first(3), first(3));
    assert_ne!(first(3), first(6));
    assert_eq!(first(0), packed[0]);
}

/// Over many steps, the mean loss is near that without dropout; a single step's is not.
#[test]
fn dropout_keeps_the_expectation_and_evaluation_drops_nothing() {
    let plain = drop_steps(0.0, &[0], &|micro| vec![micro])[0][0];
    let losses: Vec<f32> =
        (0..64).map(|step| drop_steps(0.1, &[step], &|micro| vec![micro])[0][0] - plain).collect();
    let mean = losses.iter().sum::<f32>() / 64.0;
    let spread = (losses.iter().map(|loss| loss * loss).sum::<f32>() / 64.0).sqrt();
    assert!(spread > 1e-4 && mean.abs() < spread, "{mean} {spread}");
    let (device, case) = (Device::new(Arc::new(Cpu::new(1, None)), 1 << 28), Peft::open("lora_attention"));
    let logits = |dropout: f64| {
        let (model, params) = drops(&device, dropout);
        case.logits(&device, &model, &params)
    };
    assert!(logits(0.5) == logits(0.0), "evaluation drops nothing");
}
