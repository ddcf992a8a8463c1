//! Values that keep their place in the file: written over, and read by other threads.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

#[test]
fn a_value_is_written_over_in_place() {
    let folder = folder();
    let device = machine::plain(BUDGET);
    let spill = Spill::open(&device, &options(&folder)).unwrap();
    let shape = [1, 10_000];
    let stored = spill.reserve(shape, DType::F32, Codec::AsIs, TAG).unwrap();
    let charged = spill.stats().live_bytes;
    let buffer = device.empty(1, 10_000, DType::F32, Category::Staging);
    for seed in 0..4 {
        device.machine.write(&buffer, &pattern(seed, 40_000));
        spill.rewrite(&stored, buffer.clone()).unwrap().retire().unwrap();
        device.machine.write(&buffer, &pattern(9, 40_000));
        spill.read(&stored, buffer.clone()).unwrap().retire().unwrap();
        assert_eq!(bytes(&device, &buffer), pattern(seed, 40_000));
    }
    let stats = spill.stats();
    assert_eq!((stats.live_bytes, stats.peak_reserved_bytes), (charged, charged));
    assert_eq!((stats.num_writes, stats.num_reads), (4, 4));
}

#[test]
fn a_value_is_written_or_read_but_not_both() {
    let folder = folder();
    let device = machine::plain(BUDGET);
    let spill = Spill::open(&device, &options(&folder)).unwrap();
    let stored = spill.reserve([1, 5000], DType::F32, Codec::AsIs, TAG).unwrap();
    let buffer = || device.empty(1, 5000, DType::F32, Category::Staging);
    let refused = |work: &dyn Fn() -> bool| catch_unwind(AssertUnwindSafe(work)).is_err();
    let writing = spill.rewrite(&stored, filled(&device, 1, [1, 5000], DType::F32)).unwrap();
    assert!(refused(&|| spill.read(&stored, buffer()).is_ok()));
    assert!(refused(&|| spill.rewrite(&stored, buffer()).is_ok()));
    writing.retire().unwrap();
    let readings = [0, 1].map(|_| spill.read(&stored, buffer()).unwrap());
    assert!(refused(&|| spill.rewrite(&stored, buffer()).is_ok()));
    drop(readings);
    let (share, reader) = spill.share([&stored], [50, 100]);
    assert!(refused(&|| spill.rewrite(&stored, buffer()).is_ok()));
    drop((reader, share));
    spill.rewrite(&stored, filled(&device, 2, [1, 5000], DType::F32)).unwrap().retire().unwrap();
}

#[test]
fn another_thread_reads_values_laid_end_to_end() {
    for direct in [true, false] {
        let folder = folder();
        let device = machine::plain(BUDGET);
        let spill = Spill::open(&device, &Options { direct, ..options(&folder) }).unwrap();
        let sizes = [5000, 5000, 2000];
        let stored = sizes.map(|len| spill.reserve([1, len], DType::F32, Codec::AsIs, TAG).unwrap());
        let mut all = Vec::new();
        for (seed, value) in stored.iter().enumerate() {
            let values = filled(&device, seed as u64, [1, value.cols()], DType::F32);
            all.extend(bytes(&device, &values));
            spill.rewrite(value, values).unwrap().retire().unwrap();
        }
        let (share, reader) = spill.share(&stored, [120, 100]);
        let thread = std::thread::spawn(move || {
            let mut out = Vec::new();
            let mut read = |rows, cols| {
                reader.read(rows, cols, &mut out).unwrap();
                out.clone()
            };
            [read(0..120, 0..100), read(49..101, 0..100), read(48..52, 3..90), read(7..7, 0..100)]
        });
        // Values can still be read into memory meanwhile.
        let back = device.empty(1, 2000, DType::F32, Category::Data);
        spill.read(&stored[2], back).unwrap().retire().unwrap();
        drop(share);
        let [whole, rows, part, none] = thread.join().unwrap();
        let part_of = |row: usize| &all[row * 400 + 12..row * 400 + 360];
        assert!(whole == all && rows == all[49 * 400..101 * 400] && none.is_empty());
        assert_eq!(part, (48..52).flat_map(|row| part_of(row).to_vec()).collect::<Vec<u8>>());
    }
}
