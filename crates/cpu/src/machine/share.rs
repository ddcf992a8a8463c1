//! Tensors that other threads read while kernels run.
#![allow(unsafe_code)]

use std::ops::Range;

use fathom_tensor::{Reader, Share, Tensor};

use super::operands::start;

/// Location of a tensor's elements.
struct Source {
    start: *const u8,
    element: usize,
    stride: usize,
}

// SAFETY: the memory is only read, and nothing writes to it while the reader that holds this lives: every written
// operand comes from `operands::start_mut`, which panics for the storage of a shared tensor, and the issuing thread
// ends the share after the reader is gone.
unsafe impl Send for Source {}
// SAFETY: as above; reading from several threads needs nothing more.
unsafe impl Sync for Source {}

impl Source {
    fn read(&self, rows: Range<usize>, cols: Range<usize>, out: &mut Vec<u8>) {
        let bytes = cols.len() * self.element;
        let whole = bytes == self.stride * self.element;
        let (count, bytes) =
            if whole { (usize::from(!rows.is_empty()), bytes * rows.len()) } else { (rows.len(), bytes) };
        out.reserve(count * bytes);
        for index in 0..count {
            let at = ((rows.start + index) * self.stride + cols.start) * self.element;
            // SAFETY: `Reader::read` has checked the ranges against the tensor's shape, and the share keeps its storage
            // charged and the mapping alive.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(self.start.add(at), bytes) });
        }
    }
}

/// Lets other threads read the elements of `src`.
pub fn share(src: &Tensor) -> (Share, Reader) {
    let source = Source { start: start(src), element: src.dtype().bytes(), stride: src.stride() };
    let (share, pass) = Share::begin(src);
    let reader = Reader::new(src, pass, move |rows, cols, out| source.read(rows, cols, out));
    (share, reader)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fathom_tensor::{Category, DType, Device};

    use crate::Cpu;

    fn device() -> Device {
        Device::new(Arc::new(Cpu::new(2, None)), 1 << 24)
    }

    #[test]
    fn another_thread_reads_while_this_one_reads_too() {
        let device = device();
        let values: Vec<f32> = (0..60).map(|at| at as f32).collect();
        let tensor = device.from_f32(6, 10, &values, Category::Params);
        let part = tensor.view_cols(2..9);
        let (share, reader) = device.machine.share(&part);
        let thread = std::thread::spawn(move || {
            let (mut all, mut some) = (Vec::new(), vec![1, 2, 3]);
            reader.read(0..6, 0..7, &mut all).unwrap();
            reader.read(1..3, 4..6, &mut some).unwrap();
            (all, some)
        });
        assert!(tensor.is_shared());
        let sum = device.zeros(6, 10, DType::F32, Category::Data);
        device.machine.add(&tensor, &tensor, &sum);
        drop(share);
        assert!(!tensor.is_shared());
        device.machine.zero(&tensor);
        let (all, some) = thread.join().unwrap();
        let bytes = |list: &[f32]| list.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let rows: Vec<f32> = (0..6).flat_map(|row| (2..9).map(move |col| (10 * row + col) as f32)).collect();
        assert_eq!(all, bytes(&rows));
        assert_eq!(some, bytes(&[16.0, 17.0, 26.0, 27.0]));
    }

    #[test]
    #[should_panic(expected = "end its share first")]
    fn what_is_shared_is_not_written() {
        let device = device();
        let tensor = device.zeros(2, 3, DType::F32, Category::Params);
        let (_share, _reader) = device.machine.share(&tensor);
        device.machine.zero(&tensor.view_rows(1..2));
    }
}
