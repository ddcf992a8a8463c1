//! Weights and optimizer state on disk: the same bits as in memory, the plan's bytes, and independent checkpoints.

use std::path::Path;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{Eval, OnDisk, Places, Scope, StateDisk};
use fathom_model::{Init, LlamaSizes, Model, PackedTokens, SaveOptions, Spec, initialise, save};
use fathom_tensor::spill::{Chaos, Options};
use fathom_tensor::{DType, Device};
use fathom_train::{Checkpoints, InStep, MicroBatch, Progress, Trainer, open_state_disk, plan};

use crate::checkpoint::bits;
use crate::step::micro;

const TOKENS: usize = 256;
const NOTHING: OnDisk = OnDisk { weights: false, optimizer: false, in_host: false, stays_percent: 0 };
const EVERYWHERE: [OnDisk; 7] = [
    NOTHING,
    OnDisk { optimizer: true, ..NOTHING },
    OnDisk { weights: true, ..NOTHING },
    OnDisk { weights: true, optimizer: true, ..NOTHING },
    OnDisk { optimizer: true, in_host: true, ..NOTHING },
    OnDisk { optimizer: true, in_host: true, stays_percent: 60, ..NOTHING },
    OnDisk { weights: true, optimizer: true, stays_percent: 100, ..NOTHING },
];

/// The embedding is more than one chunk, and its last chunk is partial.
fn spec(tied: bool) -> Spec {
    Spec::llama(LlamaSizes {
        layers: 3,
        head_dim: 32,
        ffn: 128,
        vocab: 20_001,
        max_positions: 1024,
        tied,
        ..LlamaSizes::TINY
    })
}

fn how(on_disk: OnDisk) -> InStep {
    InStep { on_disk, ..crate::step::how(Places::linear().with_tiles(Some(128)), TOKENS) }
}

fn trainer(threads: usize, dtype: DType, tied: bool, on_disk: OnDisk, folder: &Path) -> Trainer {
    let device = Device::new(Arc::new(Cpu::new(threads, None)), 4 << 30);
    let disk = open_state_disk(&device, &spec(tied), dtype, &how(on_disk), folder).unwrap();
    let (model, mut params) = Model::declare_on(&device, &spec(tied), dtype, disk);
    initialise(&device, &model, &mut params, Init::new(1));
    Trainer::new(&device, model, params)
}

fn data() -> [MicroBatch; 2] {
    [micro(TOKENS), micro(TOKENS)]
}

#[test]
fn the_bits_are_those_of_memory_and_the_plan_is_exact() {
    for (dtype, tied) in [(DType::Bf16, true), (DType::F32, false)] {
        let mut expected = None;
        for (index, on_disk) in EVERYWHERE.into_iter().enumerate() {
            let folder = tempfile::tempdir().unwrap();
            let how = how(on_disk);
            let mut trainer = trainer(1 + index % 3, dtype, tied, on_disk, folder.path());
            let setup = trainer.device.pool.usage().peak_reserved;
            let moved = |trainer: &Trainer| {
                trainer.params.disk().map_or(0, |disk| disk.stats().written_bytes + disk.stats().read_bytes)
            };
            let mut losses = Vec::new();
            let mut last = 0;
            for _ in 0..3 {
                last = moved(&trainer);
                losses.push(trainer.step(&data(), &how).unwrap().loss.wait_f32().to_bits());
            }
            last = moved(&trainer) - last;
            let planned =
                plan(trainer.device.machine.profile(), &spec(tied), dtype, &how, 2, TOKENS).unwrap();
            let measured = trainer.device.pool.usage();
            assert!(setup < planned.usage.peak_reserved);
            assert_eq!(planned.usage.peak_live, measured.peak_live, "{dtype:?}, {on_disk:?}");
            assert_eq!(planned.usage.peak_reserved, measured.peak_reserved, "{dtype:?}, {on_disk:?}");
            let peak = trainer.params.disk().map_or(0, |disk| disk.stats().peak_reserved_bytes);
            let (there, elsewhere) = if on_disk.in_host {
                ((planned.host_peak_bytes, planned.host_bytes), (planned.disk_peak_bytes, planned.disk_bytes))
            } else {
                ((planned.disk_peak_bytes, planned.disk_bytes), (planned.host_peak_bytes, planned.host_bytes))
            };
            assert_eq!((there, elsewhere), ((peak, last), (0, 0)), "{dtype:?}, {on_disk:?}");
            let bits = (losses, bits(&trainer));
            let expected = expected.get_or_insert_with(|| bits.clone());
            assert!(expected.0 == bits.0, "{dtype:?}, {on_disk:?}: {:?} {:?}", expected.0, bits.0);
            assert!(expected.1 == bits.1, "{dtype:?}, {on_disk:?}: weights or state");
        }
    }
}

#[test]
fn a_step_without_a_token_to_train_on_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for on_disk in EVERYWHERE {
        let how = how(on_disk);
        let mut one = trainer(1, DType::Bf16, true, on_disk, folder.path());
        one.step(&data(), &how).unwrap();
        let before = bits(&one);
        let nothing = MicroBatch { labels: vec![-100; TOKENS], ..micro(TOKENS) };
        assert_ne!(one.step(&[nothing], &how).unwrap().skipped.wait_f32(), 0.0);
        assert!(bits(&one) == before, "{on_disk:?}");
    }
}

#[test]
fn checkpoints_go_from_disk_to_memory_and_back() {
    let (disk, memory) = (EVERYWHERE[3], EVERYWHERE[0]);
    for (from, to) in [(disk, memory), (memory, disk), (disk, disk)] {
        let [files, saves] = [0, 1].map(|_| tempfile::tempdir().unwrap());
        let checkpoints = Checkpoints::new(saves.path(), 2);
        let mut one = trainer(1, DType::Bf16, false, from, files.path());
        one.step(&data(), &how(from)).unwrap();
        let before = bits(&one);
        let progress = Progress { step: 1, ..Progress::default() };
        let mut saving = checkpoints.begin(&one, &progress).unwrap();
        for _ in 0..2 {
            one.step_with(&data(), &how(from), |_, _| {
                saving.release();
                Ok(())
            })
            .unwrap();
        }
        saving.finish(&one.device).unwrap();
        assert!(bits(&one) != before);

        let mut other = trainer(1, DType::Bf16, false, to, files.path());
        let live = other.device.pool.usage().peak_reserved;
        assert_eq!(checkpoints.load_latest(&mut other).unwrap(), Some(progress));
        assert_eq!(other.device.pool.usage().peak_reserved, live, "loading needs no memory of the pool");
        assert!(bits(&other) == before, "{from:?} to {to:?}");
        for _ in 0..2 {
            other.step(&data(), &how(to)).unwrap();
        }
        assert!(bits(&other) == bits(&one), "{from:?} to {to:?}: the same two steps");
    }
}

fn with_options(dtype: DType, options: &Options) -> Trainer {
    let device = Device::new(Arc::new(Cpu::new(2, None)), 4 << 30);
    let disk = StateDisk::open(&device, options, EVERYWHERE[3], dtype).unwrap();
    let (model, mut params) = Model::declare_on(&device, &spec(true), dtype, Some(disk));
    initialise(&device, &model, &mut params, Init::new(1));
    Trainer::new(&device, model, params)
}

/// Delays, short and interrupted operations change nothing; a fault ends the step with an error that names the file.
#[test]
fn an_adversary_changes_no_bit_and_faults_are_reported() {
    let how = how(EVERYWHERE[3]);
    let [files, memory] = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let mut plain = trainer(1, DType::Bf16, true, EVERYWHERE[0], memory.path());
    let losses: Vec<f32> = (0..2).map(|_| plain.step(&data(), &how).unwrap().loss.wait_f32()).collect();
    let options = |fault_one_in, seed| Options {
        chaos: Some(Chaos { seed, fault_one_in }),
        piece_bytes: 64 << 10,
        ..Options::new(files.path(), 64 << 20)
    };
    for seed in 0..2 {
        let mut one = with_options(DType::Bf16, &options(0, seed));
        for loss in &losses {
            assert_eq!(one.step(&data(), &how).unwrap().loss.wait_f32().to_bits(), loss.to_bits());
        }
        assert!(bits(&one) == bits(&plain));
    }
    let mut failures = 0;
    for seed in 0..4 {
        let mut one = with_options(DType::Bf16, &options(3000, seed));
        let failed = (0..2).find_map(|_| one.step(&data(), &how).err());
        if let Some(error) = failed {
            assert!(error.to_string().contains("the spill file of rank 0"), "{error}");
            assert!(one.step(&data(), &how).is_err());
            failures += 1;
        }
    }
    assert!(failures > 0);
    let mut small =
        with_options(DType::Bf16, &Options { capacity_bytes: 1 << 20, chaos: None, ..options(0, 0) });
    let refused = small.step(&data(), &how).unwrap_err().to_string();
    assert!(refused.contains("has no room for weight"), "{refused}");
}

/// Weights are fetched and freed without a backward pass too.
#[test]
fn evaluation_streams_from_disk() {
    let logits = [EVERYWHERE[0], EVERYWHERE[2]].map(|on_disk| {
        let files = tempfile::tempdir().unwrap();
        let one = trainer(1, DType::Bf16, true, on_disk, files.path());
        let before = one.device.pool.usage().live;
        let micro = micro(TOKENS);
        let packed = PackedTokens { ids: &micro.ids, positions: &micro.positions, docs: &micro.docs };
        let batch = one.model.batch(&one.device, packed, how(on_disk).caps);
        let scope = || Scope {
            device: &one.device,
            params: &one.params,
            batch: (&batch).into(),
            counters: &one.counters,
        };
        let hidden = one.model.forward(&mut Eval::new(scope(), None, None));
        let logits = one.model.head(0.0).logits(&scope(), &hidden);
        let values = one.device.to_f32(&logits);
        drop((hidden, logits, batch));
        assert_eq!(one.device.pool.usage().live, before);
        values
    });
    assert!(logits[0] == logits[1]);
}

#[test]
fn an_export_streams_from_disk() {
    let exported = [EVERYWHERE[0], EVERYWHERE[2]].map(|on_disk| {
        let [files, out] = [0, 1].map(|_| tempfile::tempdir().unwrap());
        let one = trainer(1, DType::Bf16, true, on_disk, files.path());
        save(&one.device, &one.model, &one.params, out.path(), SaveOptions::new(DType::F32)).unwrap();
        std::fs::read(out.path().join("model.safetensors")).unwrap()
    });
    assert!(exported[0] == exported[1]);
}
