//! Refusals, faults, and an adversary.

use std::time::{Duration, Instant};

use super::plan::program;
use super::*;
use crate::spill::{Access, Chaos, Error};

fn refusal(device: &Device, options: &Options) -> String {
    Spill::open(device, options).err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn what_cannot_be_opened_says_why() {
    let folder = folder();
    let device = machine::plain(BUDGET);
    let check = |options: Options, parts: &[&str]| {
        let message = refusal(&device, &options);
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        assert_eq!(device.pool.usage().live, 0);
    };
    check(Options::new("/no/such/folder", 1 << 20), &["create", "/no/such/folder", "make the folder"]);
    // More than any disk.
    check(
        Options { capacity_bytes: 1 << 50, ..options(&folder) },
        &["allocate", "1125899906842624 bytes", "; "],
    );
    check(Options { num_workers: 0, ..options(&folder) }, &["num_workers is 0", "at least 1"]);
    check(Options { piece_bytes: 5000, ..options(&folder) }, &["piece_bytes is 5000", "multiple of 4096"]);
    let unreachable = machine::reaching(0, BUDGET).0;
    assert!(refusal(&unreachable, &options(&folder)).contains("gives no copies"));
}

#[test]
fn the_file_has_no_name() {
    let folder = folder();
    let device = machine::plain(BUDGET);
    let spill = Spill::open(&device, &options(&folder)).unwrap();
    round_trip(&device, &spill, filled(&device, 1, [100, 1000], DType::F32), Codec::AsIs);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_value_without_room_is_refused_and_the_rest_goes_on() {
    let folder = folder();
    let device = machine::plain(BUDGET);
    let options = Options { capacity_bytes: 3 * 4096 + 4095, ..options(&folder) };
    let spill = Spill::open(&device, &options).unwrap();
    let write = |len| spill.write(filled(&device, 1, [1, len], DType::U8), Codec::AsIs, TAG);
    let kept = write(8192).unwrap().retire().unwrap();
    let error = write(4097).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Full { bytes: 8192, live: 8192, capacity: 12288, .. }));
    let message = error.to_string();
    for part in ["rank 0", "mlp.act (layer 3)", "8192 of 12288 in use", "raise the file's capacity"] {
        assert!(message.contains(part), "{message}");
    }
    drop(write(4096).unwrap().retire().unwrap());
    drop(kept);
    drop(write(12288).unwrap().retire().unwrap());
    assert_eq!(spill.stats().peak_reserved_bytes, 12288);
}

#[test]
fn the_first_fault_is_the_last_word() {
    let folder = folder();
    for seed in 0..20 {
        let device = machine::plain(BUDGET);
        let chaos = Some(Chaos { seed, fault_one_in: 1 });
        let options = Options { chaos, num_workers: 4, ..options(&folder) };
        let spill = Spill::open(&device, &options).unwrap();
        let write = || spill.write(filled(&device, 1, [100, 1000], DType::F32), Codec::AsIs, TAG);
        let (first, second) = (write().unwrap(), write().map_err(|error| error.to_string()));
        let message = loop {
            // Several workers are about to fail; this is the first failure.
            if let Err(error) = spill.check() {
                break error.to_string();
            }
            std::thread::yield_now();
        };
        for part in ["cannot write", "at offset", "the spill file of rank 0 in", "mlp.act (layer 3)", "; "] {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(first.retire().map(|_| ()).unwrap_err().to_string(), message);
        let second = second.and_then(|writing| writing.retire().map_err(|error| error.to_string()));
        assert_eq!(second.map(|_| ()).unwrap_err(), message);
        assert_eq!(write().map(|_| ()).unwrap_err().to_string(), message);
        drop(spill);
        assert_eq!(device.pool.usage().live, 0);
    }
}

#[test]
fn a_panic_in_a_worker_is_an_error() {
    let folder = folder();
    let options = options(&folder);
    let (device, copies) = machine::fenced(&options, BUDGET);
    let spill = Spill::open(&device, &options).unwrap();
    let write = || spill.write(filled(&device, 1, [100, 1000], DType::F32), Codec::AsIs, TAG);
    let stored = write().unwrap().retire().unwrap();
    *copies.fault.lock().unwrap() = Some("the copy engine is gone".to_string());
    let message = write().unwrap().retire().map(|_| ()).unwrap_err().to_string();
    assert!(
        message.contains("mlp.act (layer 3)") && message.contains("the copy engine is gone"),
        "{message}"
    );
    let into = device.empty(100, 1000, DType::F32, Category::Activations);
    assert_eq!(spill.read(&stored, into).map(|_| ()).unwrap_err().to_string(), message);
}

/// Runs one interleaving: the same bytes as without the adversary, or one error that persists. Returns whether it
/// succeeded.
fn survive(options: &Options, chaos: Chaos, program_seed: u64, expected: &[Vec<u8>]) -> bool {
    let device = machine::plain(BUDGET);
    let began = Instant::now();
    let spill = Spill::open(&device, &Options { chaos: Some(chaos), ..options.clone() }).unwrap();
    let result = program(&device, &spill, program_seed, STEPS);
    let fine = match result {
        Ok(seen) => {
            assert!(seen == expected, "{chaos:?}");
            true
        }
        Err(error @ Error::Io { .. }) => {
            assert!(chaos.fault_one_in > 0, "{chaos:?}: {error}");
            assert_eq!(spill.check().unwrap_err().to_string(), error.to_string(), "{chaos:?}");
            false
        }
        Err(other) => panic!("{chaos:?}: {other}"),
    };
    drop(spill);
    assert_eq!(device.pool.usage().live, 0, "{chaos:?}");
    assert!(began.elapsed() < Duration::from_secs(60), "{chaos:?}");
    fine
}

const STEPS: u64 = 40;

/// `--chaos`: delays, short and interrupted operations, faults, full disks, pieces in any order.
#[test]
fn any_interleaving_ends_in_the_same_bytes_or_one_error() {
    let folder = folder();
    let interleavings = |lane: u64| {
        let (mut fine, mut faulty) = (0, 0);
        for program_seed in 0..10 {
            // Every access and several depths: the adversary's file operations are real ones.
            let options = Options {
                direct: (lane + program_seed).is_multiple_of(2),
                num_workers: 1 + (program_seed as usize % 4),
                piece_bytes: [8192, 16384, 65536][program_seed as usize % 3],
                capacity_bytes: 2 << 20,
                ..options(&folder)
            };
            let calm = machine::plain(BUDGET);
            let spill = Spill::open(&calm, &options).unwrap();
            let expected = program(&calm, &spill, program_seed, STEPS).unwrap();
            for seed in 0..50 {
                let fault_one_in = [0, 60, 500][seed as usize % 3];
                let chaos = Chaos { seed: lane * 1000 + seed, fault_one_in };
                if survive(&options, chaos, program_seed, &expected) { fine += 1 } else { faulty += 1 }
            }
        }
        (fine, faulty)
    };
    let (fine, faulty) = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..4).map(|lane| scope.spawn(move || interleavings(lane))).collect();
        lanes
            .into_iter()
            .map(|lane| lane.join().unwrap())
            .fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1))
    });
    assert_eq!(fine + faulty, 2000);
    assert!(fine > 500 && faulty > 100, "{fine} ended well, {faulty} in a fault");
}

/// The adversary's actions are determined by its seed.
#[test]
fn a_seed_meets_the_same_fate_again() {
    let folder = folder();
    let options = Options { num_workers: 1, ..options(&folder) };
    for seed in 0..10 {
        let fate = || {
            let device = machine::plain(BUDGET);
            let chaos = Some(Chaos { seed, fault_one_in: 40 });
            let spill = Spill::open(&device, &Options { chaos, ..options.clone() }).unwrap();
            let tensors = (0..3).map(|i| filled(&device, i, [10, 4096], DType::U8));
            let fate = tensors.map(|tensor| spill.write(tensor, Codec::AsIs, TAG)?.retire().map(|_| ()));
            fate.map(|result| result.err().map(|error| error.to_string())).collect::<Vec<_>>()
        };
        assert_eq!(fate(), fate(), "seed {seed}");
    }
}

/// File systems differ; either way the access is reported.
#[test]
fn the_access_is_reported() {
    let folder = folder();
    let device = machine::plain(BUDGET);
    let spill = Spill::open(&device, &options(&folder)).unwrap();
    match spill.access() {
        Access::Direct => assert_eq!(spill.access().to_string(), "direct IO"),
        Access::Buffered { why } => assert!(why.contains("refuses direct IO"), "{why}"),
        Access::Memory | Access::Nowhere => panic!("a machine with data has a file"),
    }
    let spill = Spill::open(&device, &Options { direct: false, ..options(&folder) }).unwrap();
    assert_eq!(spill.access().to_string(), "buffered IO (direct IO is switched off)");
}
