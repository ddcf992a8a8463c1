//! A machine without data makes the same charges, extents and counts.

use super::*;
use crate::spill::chaos::mix;
use crate::spill::{Access, FileRead, FileValue, FileWrite, Result, Stats};
use crate::{Mark, PoolUsage};

/// A value of the program below.
enum Slot {
    Empty,
    Here(Tensor),
    Leaving(FileWrite),
    Offloaded(FileValue),
    Coming(FileValue, FileRead),
}

/// A program drawn from a seed: tensors are made, written, retired, read and dropped in an order that does not depend
/// on data.
pub(super) fn program(device: &Device, spill: &Spill, seed: u64, steps: u64) -> Result<Vec<Vec<u8>>> {
    let mut slots: Vec<Slot> = (0..6).map(|_| Slot::Empty).collect();
    for step in 0..steps {
        let draw = |what| mix(&[seed, step, what]);
        let index = draw(0) as usize % slots.len();
        device.pool.enter("program", index as i32);
        let slot = std::mem::replace(&mut slots[index], Slot::Empty);
        slots[index] = match slot {
            Slot::Empty => {
                let (rows, cols) = (1 + draw(1) as usize % 40, 1 + draw(2) as usize % 600);
                let dtype = [DType::F32, DType::Bf16, DType::U8][draw(3) as usize % 3];
                Slot::Here(filled(device, draw(4), [rows, cols], dtype))
            }
            Slot::Here(tensor) => {
                let coded = tensor.dtype() == DType::Bf16 && draw(1).is_multiple_of(2);
                let codec = if coded { Codec::Fp8Block } else { Codec::AsIs };
                let tag = Tag { name: "value", layer: index as i32 };
                Slot::Leaving(spill.write(tensor, codec, tag)?)
            }
            Slot::Leaving(writing) => Slot::Offloaded(writing.retire()?),
            Slot::Offloaded(stored) => {
                let [rows, cols] = [stored.rows(), stored.cols()];
                let into = device.empty(rows, cols, stored.dtype(), Category::Activations);
                let reading = spill.read(&stored, into)?;
                Slot::Coming(stored, reading)
            }
            Slot::Coming(stored, reading) => match draw(1) % 3 {
                0 => Slot::Empty,
                1 => Slot::Here(reading.retire()?),
                _ => {
                    drop(stored);
                    Slot::Here(reading.retire()?)
                }
            },
        };
    }
    device.pool.enter("end", -1);
    let mut seen = Vec::new();
    for slot in slots {
        let tensor = match slot {
            Slot::Here(tensor) => tensor,
            Slot::Coming(_, reading) => reading.retire()?,
            _ => continue,
        };
        seen.push(bytes(device, &tensor));
    }
    Ok(seen)
}

struct Account {
    usage: PoolUsage,
    timeline: Vec<Mark>,
    stats: Stats,
}

fn account(device: &Device, options: &Options, seed: u64) -> (Account, Vec<Vec<u8>>) {
    device.pool.record();
    let spill = Spill::open(device, options).unwrap();
    let seen = program(device, &spill, seed, 400).unwrap();
    let stats = Stats { stall_s: 0.0, ..spill.stats() };
    drop(spill);
    (Account { usage: device.pool.usage(), timeline: device.pool.recorded(), stats }, seen)
}

#[test]
fn the_ledger_is_the_same() {
    let folder = folder();
    let options = options(&folder);
    for seed in 0..8 {
        let (run, seen) = account(&machine::plain(BUDGET), &options, seed);
        let (fenced, same) = account(&machine::fenced(&options, BUDGET).0, &options, seed);
        let (plan, nothing) = account(&machine::meta(BUDGET), &options, seed);
        for other in [&fenced, &plan] {
            assert_eq!((&run.usage, &run.stats), (&other.usage, &other.stats), "seed {seed}");
            assert_eq!(run.timeline, other.timeline, "seed {seed}");
        }
        assert!(run.stats.written_bytes > 0 && run.stats.read_bytes > 0);
        assert!(seen == same && nothing.iter().all(Vec::is_empty), "seed {seed}");
        assert_eq!(run.usage.live, 0);
        // A file of exactly the planned size is enough, and one page less is not.
        let planned = plan.stats.peak_reserved_bytes;
        let exact = Options { capacity_bytes: planned, ..options.clone() };
        assert_eq!(account(&machine::plain(BUDGET), &exact, seed).1, seen);
        let short = Options { capacity_bytes: planned - 1, ..options.clone() };
        for device in [machine::plain(BUDGET), machine::meta(BUDGET)] {
            let spill = Spill::open(&device, &short).unwrap();
            let refusal = program(&device, &spill, seed, 400).unwrap_err().to_string();
            assert!(refusal.contains("has no room for value (layer "), "{refusal}");
        }
    }
}

#[test]
fn a_plan_touches_no_folder() {
    let device = machine::meta(BUDGET);
    let spill = Spill::open(&device, &Options::new("/no/such/folder", u64::MAX)).unwrap();
    assert_eq!(spill.access(), &Access::Nowhere);
    let staged = device.pool.usage().by_category[Category::Staging];
    assert_eq!(staged, 4 * ((4 << 20) + 3 * 4096));
    let back = round_trip(&device, &spill, filled(&device, 0, [1000, 1000], DType::F32), Codec::AsIs);
    assert_eq!((back.shape(), spill.stats().peak_reserved_bytes), ([1000, 1000], 4001792));
}
