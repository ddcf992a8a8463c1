//! Quantization-aware training: weights are their rounded masters, to the bit, for all places of masters and whichever
//! ranks hold them; the plan is the peak; a run resumes exactly; and a written folder has the weights that steps
//! computed with.

use std::collections::BTreeMap;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{ParamId, Places};
use fathom_model::{
    Adapter, AdapterMethod, Caps, FolderOptions, GenerationConfig, Init, LlamaSizes, Model, Moe, RoundTo,
    SaveOptions, Spec, initialise, load, open, save_hf_rounded,
};
use fathom_tensor::mesh::{CountingLink, Grid, Mesh};
use fathom_tensor::{DType, Device, FourBits, Machine, Meta};
use fathom_train::parallel::Sharding;
use fathom_train::{Checkpoints, InStep, MicroBatch, Progress, Trainer, plan};

use crate::mesh::{self, Case, ONE, batches, every_rank, in_step};
use crate::step::{how, micro, spec, trainer, trainer_with};

const FORMATS: [(RoundTo, FourBits); 3] = [
    (RoundTo::Mxfp4, FourBits::Mxfp4),
    (RoundTo::Nvfp4, FourBits::Nvfp4),
    (RoundTo::Int4, FourBits::Int4(64)),
];

fn rounding(threads: usize, to: RoundTo) -> Trainer {
    let mut trainer = trainer(threads, DType::Bf16);
    trainer.round_to(Some(to)).unwrap();
    trainer.round();
    trainer
}

fn narrow(values: &[f32]) -> Vec<u8> {
    let nearest = |bits: u32| (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    values.iter().flat_map(|x| (nearest(x.to_bits()) as u16).to_le_bytes()).collect()
}

fn master(trainer: &Trainer, id: ParamId) -> Vec<f32> {
    trainer.device.to_f32(&trainer.optimizer().state(id).unwrap().master.as_ref().unwrap().tensor())
}

/// Checks all weights of one rank against their masters; returns how many are rounded.
#[track_caller]
fn check_weights(trainer: &Trainer, format: FourBits) -> usize {
    let mut rounded = 0;
    for (id, param) in trainer.params.iter() {
        let name = &param.name;
        let projects = [".qkv", ".attn_out", ".up", ".down"].iter().any(|role| name.contains(role));
        let (master, bytes) = (master(trainer, id), param.value.bytes(&trainer.device));
        let largest = master.iter().fold(0f32, |most, x| most.max(x.abs()));
        let expected = if projects { format.round(&master, format.factor(largest)) } else { master.clone() };
        assert!(bytes == narrow(&expected), "{format:?}: {name}");
        assert_eq!(bytes != narrow(&master), projects, "{format:?}: {name}");
        rounded += usize::from(projects);
    }
    rounded
}

#[test]
fn projections_are_their_rounded_masters_and_nothing_else_is() {
    for (to, format) in FORMATS {
        let mut trainer = rounding(2, to);
        let how = how(Places::none(), 512);
        for _ in 0..3 {
            assert_eq!(check_weights(&trainer, format), 4 * 3);
            trainer.step(&[micro(512)], &how).unwrap();
        }
        assert_eq!(check_weights(&trainer, format), 4 * 3);
        // A skipped step changes nothing.
        let before: Vec<_> =
            trainer.params.iter().map(|(_, param)| param.value.bytes(&trainer.device)).collect();
        let nothing = MicroBatch { labels: vec![-100; 512], ..micro(512) };
        assert_ne!(trainer.step(&[nothing], &how).unwrap().skipped.wait_f32(), 0.0);
        let after: Vec<_> =
            trainer.params.iter().map(|(_, param)| param.value.bytes(&trainer.device)).collect();
        assert!(before == after);
    }
}

#[test]
fn every_place_tile_and_thread_gives_the_same_bits_and_the_plan_is_exact() {
    for (to, _) in FORMATS {
        let mut bits: Option<Vec<u32>> = None;
        for (places, threads) in
            [(Places::none(), 1), (Places::full(), 2), (Places::linear().with_tiles(Some(128)), 3)]
        {
            let how = InStep { round_to: Some(to), ..how(places, 512) };
            let mut trainer = rounding(threads, to);
            let losses: Vec<f32> = (0..8)
                .map(|_| {
                    let result = trainer.step(&[micro(512)], &how).unwrap();
                    result.loss.wait_f32() / result.count.wait_f32()
                })
                .collect();
            assert!(losses[7] < losses[0] - 0.3, "{to:?}: {losses:?}");
            let now: Vec<u32> = losses.iter().map(|loss| loss.to_bits()).collect();
            assert_eq!(bits.get_or_insert(now.clone()), &now, "{to:?}: placement or threads changed bits");
            let planned = plan(trainer.device.machine.profile(), &spec(), DType::Bf16, &how, 1, 512).unwrap();
            let measured = trainer.device.pool.usage();
            assert_eq!(planned.usage.peak_live, measured.peak_live, "{to:?}");
            assert_eq!(planned.usage.peak_reserved, measured.peak_reserved, "{to:?}");
        }
    }
}

#[test]
fn accumulated_is_one_batch() {
    let device = || Device::new(Arc::new(Cpu::new(2, None)), 1 << 28);
    for (to, _) in FORMATS {
        let case = Case { dtype: DType::Bf16, round_to: Some(to), ..ONE };
        let how = in_step(&case);
        let how = InStep { caps: Caps { docs: 32, ..how.caps }, ..how };
        let apart = batches(&device(), &case, 4);
        let mut whole = MicroBatch::default();
        for micro in &apart {
            let first = whole.ids.len();
            whole.docs.extend(micro.docs.iter().map(|doc| first + doc.start..first + doc.end));
            whole.ids.extend(&micro.ids);
            whole.labels.extend(&micro.labels);
            whole.positions.extend(&micro.positions);
        }
        let run = |micros: &[MicroBatch]| {
            let device = device();
            let mut trainer = mesh::trainer(&device, &case);
            let losses: Vec<u32> =
                (0..3).map(|_| trainer.step(micros, &how).unwrap().loss.wait_f32().to_bits()).collect();
            let bytes: Vec<_> = trainer.params.iter().map(|(_, param)| param.value.bytes(&device)).collect();
            (losses, bytes)
        };
        assert!(run(&apart) == run(std::slice::from_ref(&whole)), "{to:?}");
    }
}

#[test]
fn a_run_goes_on_where_it_was_and_may_begin_to_round() {
    for (to, format) in FORMATS {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path(), 1);
        let how = how(Places::none(), 512);
        let steps = |trainer: &mut Trainer| -> Vec<u32> {
            (0..3).map(|_| trainer.step(&[micro(512)], &how).unwrap().loss.wait_f32().to_bits()).collect()
        };
        let mut whole = rounding(2, to);
        steps(&mut whole);
        let progress = Progress { step: 3, ..Progress::default() };
        checkpoints.begin(&whole, &progress).unwrap().finish(&whole.device).unwrap();
        let expected = steps(&mut whole);
        let mut again = rounding(1, to);
        assert_eq!(checkpoints.load_latest(&mut again).unwrap(), Some(progress.clone()));
        check_weights(&again, format);
        assert_eq!(steps(&mut again), expected, "{to:?}");
        // The same checkpoint, loaded by a run that rounds to another format, and by one that does not round.
        let (other, second) = FORMATS[usize::from(to == RoundTo::Mxfp4)];
        let mut begins = rounding(1, other);
        checkpoints.load_latest(&mut begins).unwrap();
        check_weights(&begins, second);
    }
}

/// The same with everything that ranks share, and with the largest magnitudes, which no single rank sees.
#[test]
fn sharing_changes_no_bit_and_the_plan_is_exact() {
    let dp = Grid { dp: 4, ..Grid::default() };
    for (to, _) in FORMATS {
        let case = Case { grid: dp, dtype: DType::Bf16, round_to: Some(to), ..ONE };
        let run = |sharding, on_disk| {
            let case = Case { sharding, on_disk, ..case };
            let train = |device: &Device| {
                let (mut trainer, how) = (mesh::trainer(device, &case), in_step(&case));
                let batches = batches(device, &case, 4);
                let losses: Vec<u32> =
                    (0..4).map(|_| trainer.step(&batches, &how).unwrap().loss.wait_f32().to_bits()).collect();
                (losses, device.pool.usage().peak_reserved)
            };
            let ranks = every_rank(case, &train);
            for (rank, (_, peak)) in ranks.iter().enumerate() {
                let machine = Meta::new(Cpu::new(1, None).profile().clone());
                let mesh = Mesh::new(case.grid, Box::new(CountingLink::new(rank, case.grid.ranks())));
                let planned = train(&Device::on_mesh(Arc::new(machine), 1 << 28, mesh)).1;
                assert_eq!(planned, *peak, "{to:?}, {sharding:?}: rank {rank}");
            }
            ranks[0].0.clone()
        };
        let whole = run(Sharding::NoShard, false);
        for (sharding, on_disk) in [
            (Sharding::NoShard, true),
            (Sharding::Optim, false),
            (Sharding::Optim, true),
            (Sharding::OptimGrads, false),
            (Sharding::OptimGradsParams, false),
        ] {
            assert_eq!(run(sharding, on_disk), whole, "{to:?}, {sharding:?}, on disk {on_disk}");
        }
    }
}

/// Blocks of a whole weight equal those of its parts, as does the factor of all of them.
#[test]
fn tensor_parallel_and_pipelined_ranks_have_the_weights_of_one() {
    fn wide(tied: bool) -> Spec {
        let sizes = LlamaSizes { head_dim: 32, ffn: 128, tied, ..LlamaSizes::TINY };
        Spec::llama(sizes)
    }
    /// For each weight's number, the position and bits of its elements.
    fn weights(case: Case) -> Vec<Vec<(u32, usize, [u8; 2])>> {
        every_rank(case, &|device| {
            let trainer = mesh::trainer(device, &case);
            let mut all = Vec::new();
            for (held, (_, param)) in trainer.model.holdings.iter().zip(trainer.params.iter()) {
                let places = held.shard.runs().into_iter().flat_map(|(_, at, len)| at..at + len);
                let bytes = param.value.bytes(device);
                let bits = bytes.as_chunks::<2>().0.iter().copied();
                all.extend(places.zip(bits).map(|(at, bits)| (held.number, at, bits)));
            }
            all
        })
    }
    for (to, format) in FORMATS {
        let case = Case { spec: wide, dtype: DType::Bf16, round_to: Some(to), ..ONE };
        let one: BTreeMap<(u32, usize), [u8; 2]> =
            weights(case).concat().into_iter().map(|(number, at, bits)| ((number, at), bits)).collect();
        let (tp, pp) = (Grid { tp: 2, ..Grid::default() }, Grid { pp: 2, ..Grid::default() });
        for grid in [pp, tp] {
            let ranks = weights(Case { grid, ..case });
            assert_eq!(ranks.len(), 2);
            for (number, at, bits) in ranks.into_iter().flatten() {
                assert_eq!(bits, one[&(number, at)], "{format:?} on {grid}: weight {number}, {at}");
            }
        }
    }
}

#[test]
fn a_folder_has_the_weights_that_steps_computed_with() {
    for (to, format) in FORMATS {
        let [saves, folder] = [0, 1].map(|_| tempfile::tempdir().unwrap());
        let mut trainer = rounding(2, to);
        for _ in 0..3 {
            trainer.step(&[micro(512)], &how(Places::none(), 512)).unwrap();
        }
        let checkpoints = Checkpoints::new(saves.path(), 1);
        let progress = Progress { step: 3, ..Progress::default() };
        checkpoints.begin(&trainer, &progress).unwrap().finish(&trainer.device).unwrap();
        let saved = checkpoints.found().unwrap().unwrap();
        let (weights, masters) = (saved.weights().unwrap(), saved.masters().unwrap());
        let none = GenerationConfig::default();
        let options = FolderOptions { weights: SaveOptions::new(DType::Bf16), generation: &none, copy: &[] };
        let spec = &trainer.model.spec;
        let written = save_hf_rounded((spec, [&weights, &masters]), folder.path(), (to, options)).unwrap();
        assert_eq!(written, format);
        let opened = open(folder.path()).unwrap();
        let device = &trainer.device;
        let (model, mut params) = Model::declare(device, &opened.spec, DType::Bf16);
        load(device, &model, &mut params, &opened.source).unwrap();
        for ((_, found), (_, expected)) in params.iter().zip(trainer.params.iter()) {
            assert!(found.value.bytes(device) == expected.value.bytes(device), "{to:?}: {}", found.name);
        }
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 28);
    let refused = |spec: &Spec, dtype: DType, to: RoundTo, words: &[&str]| {
        let (model, mut params) = Model::declare(&device, spec, dtype);
        initialise(&device, &model, &mut params, Init::new(1));
        let error = model.round(&device, &mut params, Some(to)).unwrap_err();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    refused(&spec(), DType::F32, RoundTo::Mxfp4, &["masters"]);
    refused(&spec().into_mixtral(Moe::new(4, 2, 64)), DType::Bf16, RoundTo::Mxfp4, &["experts"]);
    let sizes = LlamaSizes { hidden: 64, ..SMALL };
    refused(
        &Spec::llama(LlamaSizes { ffn: 72, ..sizes }),
        DType::Bf16,
        RoundTo::Mxfp4,
        &["72 columns", "32"],
    );
    refused(&Spec::llama(LlamaSizes { ffn: 72, ..sizes }), DType::Bf16, RoundTo::Int4, &["72 columns", "32"]);
    let adapter = Adapter::leading(AdapterMethod::Prompt { tokens: 4, encoder: None });
    let adapted = spec().with_adapter(adapter).unwrap();
    refused(&adapted, DType::Bf16, RoundTo::Mxfp4, &["adapter.method"]);
    let moments = fathom_grad::Moments { masters: false, ..Default::default() };
    let error = trainer_with(1, DType::Bf16, moments).round_to(Some(RoundTo::Mxfp4)).unwrap_err().to_string();
    assert!(error.contains("precision.qat") && error.contains("optimizer.master_weights"), "{error}");
    // Half of 96 columns are whole blocks of 16, but not of 32.
    let case = Case { grid: Grid { tp: 2, ..Grid::default() }, dtype: DType::Bf16, ..ONE };
    for (to, fits) in [(RoundTo::Mxfp4, false), (RoundTo::Nvfp4, true)] {
        let answers = every_rank(case, &|device| {
            mesh::trainer(device, &case).round_to(Some(to)).map_err(|error| error.to_string())
        });
        for answer in answers {
            assert_eq!(answer.is_ok(), fits, "{to:?}: {answer:?}");
            let named = |error: &String| error.contains("mesh.tp=2") && error.contains("blocks of 32");
            assert!(answer.as_ref().err().is_none_or(named), "{answer:?}");
        }
    }
}

const SMALL: LlamaSizes = LlamaSizes {
    layers: 1,
    heads: 2,
    kv_heads: 1,
    head_dim: 32,
    ffn: 64,
    max_positions: 64,
    ..LlamaSizes::TINY
};
