//! Packed weights have the bits of the CPU's kernels.

use fathom_tensor::{BlockFormat, Category, DType, Device, Pack, Unpack};

use super::{compare, numbers};

#[test]
fn weights_are_packed_and_unpacked() {
    for format in [BlockFormat::Nf4, BlockFormat::Int8] {
        for [rows, cols] in [[1, 1], [1, 63], [1, 64], [1, 1001], [3, 64], [5, 192], [2, 2048]] {
            for dtype in [DType::F32, DType::Bf16] {
                let call = |device: &Device| {
                    let mut x = numbers(rows * cols, 5);
                    x.iter_mut().take(64).for_each(|x| *x = 0.0);
                    let x = device.from_f32(rows, cols, &x, Category::Data);
                    let packed = device.empty(rows, format.row_bytes(cols), DType::U8, Category::Data);
                    device.machine.pack(&Pack { format, x: &x, out: &packed });
                    let out = device.empty(rows, cols, dtype, Category::Data);
                    device.machine.unpack(&Unpack { format, packed: &packed, out: &out });
                    vec![packed, out]
                };
                compare(call, |got, expected, [emulated, cpu]| {
                    let read = |device: &Device, tensor| device.machine.read(tensor).wait();
                    let same = read(emulated, got) == read(cpu, expected);
                    assert!(same, "{got:?} of {format:?} [{rows}, {cols}]");
                });
            }
        }
    }
}
