//! A frozen quantized weight: its bytes are in memory, on disk or sharded over ranks; a segment that needs the weight
//! has its elements while it runs. Bytes are fetched a segment ahead; elements are unpacked when the segment begins.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use fathom_tensor::ggml::octets::OCTET;
use fathom_tensor::grouped::TOGETHER;
use fathom_tensor::{BlockFormat, Category, DType, Device, Pack, Packing, Tensor, Unpack};

use crate::disk::CHUNK;

/// Bytes in memory, on disk or on several ranks.
pub(crate) trait Bytes {
    /// The layer that they belong to in messages, -1 for none.
    fn layer(&self) -> i32;
    /// They, if they are always in memory.
    fn resident(&self) -> Option<&Tensor>;
    /// Starts to fetch them.
    fn fetch(&self, device: &Device);
    /// Waits until they are in memory.
    fn wait(&self) -> Tensor;
    /// Frees the memory into which they were fetched.
    fn release(&self);
    /// Sets them: `work(bytes, target)` for ascending ranges.
    fn fill(&self, work: &mut dyn FnMut(Range<usize>, &Tensor));
}

/// The bytes, and the elements while a segment needs them.
pub(crate) struct PackedValue<B> {
    device: Device,
    format: BlockFormat,
    /// Shape of the elements.
    shape: [usize; 2],
    dtype: DType,
    /// Bytes of [`BlockFormat::packed_shape`].
    bytes: B,
    visit: RefCell<Visit>,
}

#[derive(Default)]
struct Visit {
    users: u32,
    plain: Option<Tensor>,
}

/// A frozen weight that is read in packed form: its bytes are always in memory. Operations that do not accept packed
/// weights have its elements while they use them.
pub(crate) struct PackedWeight {
    device: Device,
    bytes: Tensor,
    dtype: DType,
}

impl PackedWeight {
    pub fn new(device: &Device, packing: Packing, dtype: DType) -> PackedWeight {
        let bytes = device.empty(1, packing.bytes(), DType::U8, Category::Params);
        PackedWeight { device: device.clone(), bytes: bytes.packed(Rc::new(packing)), dtype }
    }

    /// The packed weight.
    pub fn bytes(&self) -> &Tensor {
        &self.bytes
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The elements.
    ///
    /// # Panics
    /// If they are transposed, a layout only for products with experts.
    #[track_caller]
    pub fn plain(&self) -> Tensor {
        let Some(packing) = self.bytes.packing() else { panic!("{:?} has no packing", self.bytes) };
        assert!(!packing.turned, "elements of {:?}, which is turned", self.bytes);
        let (cols, mut row, mut at) = (packing.cols, 0, 0);
        let plain = self.device.empty(packing.rows(), cols, self.dtype, Category::Workspace);
        for (format, rows) in packing.runs.iter().copied() {
            let bytes = rows * format.row_bytes(cols);
            let packed = &self.bytes.view_cols(at..at + bytes).reshape(rows, format.row_bytes(cols));
            let out = &plain.view_rows(row..row + rows);
            self.device.machine.unpack(&Unpack { format, packed, out });
            (row, at) = (row + rows, at + bytes);
        }
        plain
    }
}

/// Copies rows of a weight, packed or not, to f32 `to` [rows, columns]: packed ones are unpacked without intermediate
/// rounding.
pub(crate) fn copy_rows(device: &Device, weight: &Tensor, rows: Range<usize>, to: &Tensor) {
    let Some(packing) = weight.packing() else {
        return device.machine.copy(&weight.view_rows(rows), to);
    };
    let (cols, mut first, mut at) = (packing.cols, 0, 0);
    for (format, count) in packing.runs.iter().copied() {
        let bytes = format.row_bytes(cols);
        let (start, end) = (rows.start.max(first), rows.end.min(first + count));
        if start < end {
            // Interleaved rows are unpacked by eight.
            let together = if matches!(format, BlockFormat::Octets(_)) { OCTET } else { 1 };
            let whole = (start - first) / together * together..(end - first).next_multiple_of(together);
            let packed = weight.view_cols(at + whole.start * bytes..at + whole.end * bytes);
            let packed = &packed.reshape(whole.len(), bytes);
            let plain = device.empty(whole.len(), cols, DType::F32, Category::Workspace);
            device.machine.unpack(&Unpack { format, packed, out: &plain });
            let skipped = start - first - whole.start;
            let own = plain.view_rows(skipped..skipped + end - start);
            device.machine.copy(&own, &to.view_rows(start - rows.start..end - rows.start));
        }
        (first, at) = (first + count, at + count * bytes);
    }
}

/// Changes the scales of a weight, block by block.
pub type Rescale<'a> = &'a mut dyn FnMut(&mut [f32]);

impl<B: Bytes> PackedValue<B> {
    pub fn new(
        device: &Device,
        format: BlockFormat,
        shape: [usize; 2],
        dtype: DType,
        bytes: B,
    ) -> PackedValue<B> {
        PackedValue { device: device.clone(), format, shape, dtype, bytes, visit: RefCell::default() }
    }

    pub fn format(&self) -> BlockFormat {
        self.format
    }

    /// The same bytes in the form for products, if they are in memory and rows are whole blocks and whole groups of 32.
    pub fn blocked(&self) -> Option<PackedWeight> {
        let [rows, cols] = self.shape;
        if self.format.lines(self.shape) != self.shape || !cols.is_multiple_of(TOGETHER) {
            return None;
        }
        let packing = Packing { cols, runs: vec![(self.format, rows)], turned: false };
        let bytes = self.bytes.resident()?.reshape(1, packing.bytes()).packed(Rc::new(packing));
        Some(PackedWeight { device: self.device.clone(), bytes, dtype: self.dtype })
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn bytes(&self) -> &B {
        &self.bytes
    }

    /// The elements, if they are unpacked.
    pub fn plain(&self) -> Option<Tensor> {
        self.visit.borrow().plain.clone()
    }

    /// Adds a user: starts to fetch the bytes if there was none.
    pub fn fetch(&self, device: &Device) {
        let mut visit = self.visit.borrow_mut();
        visit.users += 1;
        if visit.users == 1 {
            self.bytes.fetch(device);
        }
    }

    /// Waits for the bytes and unpacks them, unless that was done; fetched bytes are released.
    pub fn wait(&self) {
        let mut visit = self.visit.borrow_mut();
        if visit.plain.is_some() {
            return;
        }
        let packed = self.bytes.wait();
        let [rows, cols] = self.shape;
        self.device.pool.enter("unpack weights", self.bytes.layer());
        let plain = self.device.empty(rows, cols, self.dtype, Category::Params);
        let [lines, width] = self.format.lines(self.shape);
        let out = plain.reshape(lines, width);
        self.device.machine.unpack(&Unpack { format: self.format, packed: &packed, out: &out });
        drop(packed);
        self.bytes.release();
        visit.plain = Some(plain);
    }

    /// Removes a user; the last one frees the elements.
    pub fn release(&self) {
        let mut visit = self.visit.borrow_mut();
        visit.users -= 1;
        if visit.users == 0 && visit.plain.take().is_none() {
            self.bytes.release();
        }
    }

    /// [`Bytes::fill`] with f32 elements; `rescale` then changes the scales in the order of the blocks.
    pub fn fill(&self, work: &mut dyn FnMut(Range<usize>, &Tensor), rescale: Option<Rescale<'_>>) {
        let (device, format) = (&self.device, self.format);
        let [lines, width] = format.lines(self.shape);
        let [_, row_bytes] = format.packed_shape(self.shape);
        let own = self.bytes.resident().cloned();
        let staged = || device.empty(lines, row_bytes, DType::U8, Category::Staging);
        let packed = own.clone().unwrap_or_else(staged);
        let step = (CHUNK / width.max(1)).clamp(1, lines.max(1));
        for first in (0..lines).step_by(step) {
            let rows = first..lines.min(first + step);
            let x = device.empty(1, rows.len() * width, DType::F32, Category::Staging);
            work(rows.start * width..rows.end * width, &x);
            let x = x.reshape(rows.len(), width);
            device.machine.pack(&Pack { format, x: &x, out: &packed.view_rows(rows) });
        }
        if let Some(rescale) = rescale {
            let view = packed.view_cols(format.scales_at(width)..row_bytes);
            let bytes = device.machine.read(&view).wait();
            let words = bytes.as_chunks::<4>().0;
            let mut scales: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
            rescale(&mut scales);
            let bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
            device.machine.write(&view, &bytes);
        }
        if own.is_none() {
            let packed = packed.reshape(1, lines * row_bytes);
            self.bytes.fill(&mut |range, chunk| device.machine.copy(&packed.view_cols(range), chunk));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fathom_cpu::Cpu;
    use fathom_tensor::ggml::Kind;
    use fathom_tensor::ggml::octets::interleave;

    use super::*;

    /// Rows that begin and end within groups of eight, and within runs of other formats.
    #[test]
    fn rows_of_a_packed_weight_are_copied() {
        let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 24);
        let (q4, q8, cols) = (BlockFormat::Ggml(Kind::Q4_0), BlockFormat::Ggml(Kind::Q8_0), 64);
        let plain = Packing { cols, runs: vec![(q4, 19), (q8, 5), (q4, 16)], turned: false };
        let (mut bytes, mut wanted) = (Vec::new(), Vec::new());
        for row in 0..plain.rows() {
            let (_, format) = plain.row(row);
            let x: Vec<f32> = (0..cols).map(|at| ((row * cols + at) as f32 * 0.7).sin()).collect();
            let (mut packed, mut back) = (vec![0; format.row_bytes(cols)], vec![0.0; cols]);
            format.pack_row(&x, &mut packed);
            format.unpack_row(&packed, &mut back);
            bytes.extend(packed);
            wanted.extend(back);
        }
        let packing = plain.clone().interleaved();
        let mut first = 0;
        for (format, rows) in packing.runs.iter().copied() {
            if let BlockFormat::Octets(kind) = format {
                let (octet, (at, _)) = (OCTET * format.row_bytes(cols), plain.row(first));
                let run = &mut bytes[at..at + rows / OCTET * octet];
                run.chunks_exact_mut(octet).for_each(|rows| interleave(kind, rows));
            }
            first += rows;
        }
        let value = PackedWeight::new(&device, packing, DType::F32);
        device.machine.write(&value.bytes, &bytes);
        for rows in [0..40, 3..9, 7..8, 15..30, 17..18, 21..23, 25..39] {
            let to = device.empty(rows.len(), cols, DType::F32, Category::Data);
            copy_rows(&device, value.bytes(), rows.clone(), &to);
            assert!(device.to_f32(&to) == wanted[rows.start * cols..rows.end * cols], "{rows:?}");
        }
    }
}
