//! A weight, or a part of its optimizer state: a tensor in memory, chunks on disk, a part on each of several ranks, or,
//! for a frozen weight, quantized bytes at one of these places.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use fathom_tensor::mesh::Group;
use fathom_tensor::spill::FileValue;
use fathom_tensor::{BlockFormat, Category, DType, Device, Packing, Reader, Share, Tensor};

use crate::disk::{ChunkHome, DiskValue, Role, StateDisk, SweptChunk, chunks};
use crate::packed::{PackedValue, PackedWeight, Rescale};
use crate::parted::ShardedValue;
use crate::visit::{Fetch, Visit};

/// A matrix that is in memory always, or only while it is used. Cheap to clone; clones are the same value.
#[derive(Clone)]
pub struct Value {
    shape: [usize; 2],
    dtype: DType,
    home: Home,
}

#[derive(Clone)]
enum Home {
    Here(Tensor),
    Offloaded(Rc<DiskValue>),
    Parted(Rc<ShardedValue>),
    Packed(Rc<PackedValue>),
    Blocked(Rc<PackedWeight>),
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Value {
        Value { shape: tensor.shape(), dtype: tensor.dtype(), home: Home::Here(tensor) }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rows, cols] = self.shape;
        let place = match &self.home {
            Home::Here(_) => "",
            Home::Offloaded(_) => " on disk",
            Home::Parted(_) => " on several ranks",
            Home::Blocked(blocked) => return write!(f, "{:?}", blocked.bytes()),
            Home::Packed(packed) => {
                return write!(f, "{:?}[{rows}, {cols}] packed as {:?}", self.dtype, packed.bytes());
            }
        };
        write!(f, "{:?}[{rows}, {cols}]{place}", self.dtype)
    }
}

impl Value {
    /// Allocates a value on disk; its contents are undefined.
    pub(crate) fn on_disk(
        disk: &Rc<StateDisk>,
        shape: [usize; 2],
        dtype: DType,
        role: Role,
        layer: i32,
    ) -> Value {
        let chunks = disk.reserve(shape[0] * shape[1], dtype, role, layer);
        let offloaded =
            DiskValue { disk: disk.clone(), role, dtype, chunks, layer, visit: RefCell::default() };
        Value { shape, dtype, home: Home::Offloaded(Rc::new(offloaded)) }
    }

    /// True if values of this shape can be offloaded: vectors are not.
    pub(crate) fn moves(shape: [usize; 2]) -> bool {
        shape[0] > 1
    }

    /// A value sharded over ranks, after [`Value::part`] has assigned the parts.
    pub(crate) fn parted(device: &Device, shape: [usize; 2], dtype: DType) -> Value {
        Value { shape, dtype, home: Home::Parted(Rc::new(ShardedValue::new(device))) }
    }

    /// Elements of `dtype` stored as `bytes` ([`BlockFormat::packed_shape`]), written only by [`Value::fill`].
    pub(crate) fn packed(
        device: &Device,
        format: BlockFormat,
        shape: [usize; 2],
        dtype: DType,
        bytes: Value,
    ) -> Value {
        let packed = PackedValue::new(device, format, shape, dtype, bytes);
        Value { shape, dtype, home: Home::Packed(Rc::new(packed)) }
    }

    /// Elements of `dtype` stored and multiplied as blocks, written only through [`Value::as_blocked`].
    pub(crate) fn blocked(device: &Device, packing: Packing, shape: [usize; 2], dtype: DType) -> Value {
        let [rows, cols] = [packing.rows(), packing.cols];
        let fits = if packing.turned { rows * cols == shape[0] * shape[1] } else { shape == [rows, cols] };
        assert!(fits, "blocks of {packing:?} for {shape:?}");
        Value { shape, dtype, home: Home::Blocked(Rc::new(PackedWeight::new(device, packing, dtype))) }
    }

    /// Its blocks, in memory ([`Tensor::packing`]), if it is stored as blocks.
    pub fn as_blocked(&self) -> Option<&Tensor> {
        match &self.home {
            Home::Blocked(blocked) => Some(blocked.bytes()),
            Home::Here(_) | Home::Offloaded(_) | Home::Parted(_) | Home::Packed(_) => None,
        }
    }

    /// The same bytes as a value that products use in packed form ([`Value::as_blocked`]); `None` if this is not
    /// packed, not in memory, or has rows that are not whole blocks.
    pub fn multiplied_as_packed(&self) -> Option<Value> {
        let Home::Packed(packed) = &self.home else { return None };
        Some(Value { home: Home::Blocked(Rc::new(packed.blocked()?)), ..self.clone() })
    }

    /// The tensor, or the blocks of a value that is stored as blocks.
    ///
    /// # Panics
    /// Those of [`Value::tensor`].
    #[track_caller]
    pub fn operand(&self) -> Tensor {
        self.as_blocked().cloned().unwrap_or_else(|| self.tensor())
    }

    /// Its format and bytes, [`BlockFormat::packed_shape`], if it is packed.
    pub fn as_packed(&self) -> Option<(BlockFormat, &Value)> {
        match &self.home {
            Home::Packed(packed) => Some((packed.format(), packed.bytes())),
            Home::Here(_) | Home::Offloaded(_) | Home::Parted(_) | Home::Blocked(_) => None,
        }
    }

    /// The stored value: itself, or its packed bytes.
    pub(crate) fn held(&self) -> &Value {
        self.as_packed().map_or(self, |(_, bytes)| bytes)
    }

    /// Assigns every rank its part of a value made by [`Value::parted`]; the contents are undefined.
    pub(crate) fn part(&self, device: &Device, group: &Group, ranges: Vec<Range<usize>>) {
        match &self.home {
            Home::Parted(parted) => parted.place(device, self.dtype, group, ranges),
            Home::Packed(packed) => packed.bytes().part(device, group, ranges),
            Home::Here(_) | Home::Offloaded(_) | Home::Blocked(_) => {}
        }
    }

    pub(crate) fn offloaded(&self) -> Option<&DiskValue> {
        match &self.home {
            Home::Offloaded(offloaded) => Some(offloaded),
            Home::Here(_) | Home::Parted(_) | Home::Packed(_) | Home::Blocked(_) => None,
        }
    }

    /// True if it is in memory only while it is used.
    pub(crate) fn comes(&self) -> bool {
        !matches!(self.home, Home::Here(_) | Home::Blocked(_))
    }

    fn visit(&self) -> Option<&RefCell<Visit>> {
        match &self.home {
            Home::Here(_) | Home::Packed(_) | Home::Blocked(_) => None,
            Home::Offloaded(offloaded) => Some(&offloaded.visit),
            Home::Parted(parted) => Some(&parted.visit),
        }
    }

    /// The elements that are always here, in memory or on disk; for a packed value, bytes.
    pub fn own(&self) -> Range<usize> {
        match &self.home {
            Home::Parted(parted) => parted.own(),
            Home::Packed(packed) => packed.bytes().own(),
            Home::Here(_) | Home::Offloaded(_) | Home::Blocked(_) => 0..self.len(),
        }
    }

    /// A value with only [`Value::own`], in memory or on disk independently of other ranks. For a packed value, the
    /// bytes.
    pub fn own_part(&self) -> Value {
        match &self.home {
            Home::Parted(parted) => parted.tensor().clone().into(),
            Home::Packed(packed) => packed.bytes().own_part(),
            Home::Here(_) | Home::Offloaded(_) | Home::Blocked(_) => self.clone(),
        }
    }

    /// The layer that it belongs to in messages, -1 for none.
    pub(crate) fn layer(&self) -> i32 {
        self.held().offloaded().map_or(-1, |offloaded| offloaded.layer)
    }

    /// Rows x columns.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape[0] * self.shape[1]
    }

    /// True when there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tensor, if the value is always in memory.
    pub fn resident(&self) -> Option<&Tensor> {
        match &self.home {
            Home::Here(tensor) => Some(tensor),
            Home::Offloaded(_) | Home::Parted(_) | Home::Packed(_) | Home::Blocked(_) => None,
        }
    }

    /// The tensor; for blocks their elements, for as long as the caller holds them.
    ///
    /// # Panics
    /// If the value is not in memory and was not fetched.
    #[track_caller]
    pub fn tensor(&self) -> Tensor {
        let packed = match &self.home {
            Home::Here(tensor) => return tensor.clone(),
            Home::Blocked(blocked) => return blocked.plain(),
            Home::Packed(packed) => packed.plain(),
            Home::Offloaded(_) | Home::Parted(_) => None,
        };
        let here = self.visit().and_then(|visit| visit.borrow().tensor());
        here.or(packed).unwrap_or_else(|| panic!("{self:?} is used and was not fetched"))
    }

    /// Elements of a tensor in memory, as one row; for a sharded value some of this rank's.
    pub(crate) fn flat(&self, range: Range<usize>) -> Tensor {
        if let Home::Parted(parted) = &self.home {
            let own = parted.own();
            return parted.tensor().view_cols(range.start - own.start..range.end - own.start);
        }
        self.tensor().reshape(1, self.len()).view_cols(range)
    }

    /// Some elements for a sweep that reads them, writes them, or both.
    pub(crate) fn chunk(&self, range: Range<usize>, read: bool, write: bool) -> SweptChunk<'_> {
        let home = match self.offloaded() {
            Some(offloaded) => ChunkHome::Disk(offloaded),
            None => ChunkHome::Memory(self.flat(range.clone())),
        };
        SweptChunk { home, range, read, write }
    }

    /// Adds a user: starts to fetch the value unless it is in memory or being fetched.
    pub(crate) fn fetch(&self, device: &Device) {
        if let Home::Packed(packed) = &self.home {
            return packed.fetch(device);
        }
        let Some(visit) = self.visit() else { return };
        visit.borrow_mut().enter(|| {
            let [rows, cols] = self.shape;
            let tensor = device.empty(rows, cols, self.dtype, Category::Params);
            let coming = self.come(device, &tensor.reshape(1, self.len()));
            (tensor, coming)
        });
    }

    fn come(&self, device: &Device, flat: &Tensor) -> Fetch {
        match &self.home {
            Home::Here(_) | Home::Packed(_) | Home::Blocked(_) => Fetch::Disk(Vec::new()),
            Home::Parted(parted) => Fetch::Ranks(parted.gather(device, flat)),
            Home::Offloaded(offloaded) => {
                let read = |(range, stored): (Range<usize>, &FileValue)| {
                    offloaded.disk.spill().read(stored, flat.view_cols(range)).ok()
                };
                Fetch::Disk(chunks(self.len()).zip(&offloaded.chunks).filter_map(read).collect())
            }
        }
    }

    /// Waits for a fetch; packed values are unpacked.
    pub(crate) fn wait(&self) {
        if let Home::Packed(packed) = &self.home {
            return packed.wait();
        }
        if let Some(visit) = self.visit() {
            visit.borrow_mut().wait();
        }
    }

    /// Removes a user; the last one frees the memory.
    pub(crate) fn release(&self) {
        if let Home::Packed(packed) = &self.home {
            return packed.release();
        }
        if let Some(visit) = self.visit() {
            visit.borrow_mut().leave();
        }
    }

    fn sweep(&self, read: bool, work: &mut dyn FnMut(Range<usize>, &Tensor)) {
        let offloaded = match &self.home {
            Home::Here(tensor) => return work(0..self.len(), &tensor.reshape(1, self.len())),
            Home::Parted(parted) => return self.sweep_parted(parted, read, work),
            Home::Blocked(blocked) => {
                assert!(read, "fill: {self:?} is filled with blocks");
                return self.read_whole(blocked.device(), work);
            }
            Home::Packed(packed) if !read => return packed.fill(work, None),
            Home::Packed(packed) => return self.read_whole(packed.device(), work),
            Home::Offloaded(offloaded) => offloaded,
        };
        let ranges: Vec<Range<usize>> = chunks(self.len()).collect();
        let part = |item: usize| vec![self.chunk(ranges[item].clone(), read, !read)];
        offloaded.disk.sweep(ranges.len(), &part, &mut |item, views| work(ranges[item].clone(), &views[0]));
    }

    fn read_whole(&self, device: &Device, work: &mut dyn FnMut(Range<usize>, &Tensor)) {
        self.fetch(device);
        self.wait();
        work(0..self.len(), &self.tensor().reshape(1, self.len()));
        self.release();
    }

    /// Processes a sharded value by chunks: writes keep only this rank's elements, and reads gather all ranks'.
    fn sweep_parted(&self, parted: &ShardedValue, read: bool, work: &mut dyn FnMut(Range<usize>, &Tensor)) {
        let device = parted.device();
        if read {
            return self.read_whole(device, work);
        }
        let own = parted.own();
        for range in chunks(self.len()) {
            let chunk = device.empty(1, range.len(), self.dtype, Category::Staging);
            work(range.clone(), &chunk);
            let (from, to) = (range.start.max(own.start), range.end.min(own.end));
            if from < to {
                let part = chunk.view_cols(from - range.start..to - range.start);
                device.machine.copy(&part, &self.flat(from..to));
            }
        }
    }

    /// Sets new elements: calls `work(elements, target)` for ascending ranges that cover the value; the target is [1,
    /// n], and must be written completely. Nothing larger than a chunk is allocated, except the bytes of a packed value
    /// that is not in memory; the elements of a packed value are written as f32 and then packed.
    ///
    /// # Panics
    /// If the value is being read, by a checkpoint or a segment.
    pub fn fill(&self, mut work: impl FnMut(Range<usize>, &Tensor)) {
        self.sweep(false, &mut work);
    }

    /// [`Value::fill`] for a packed value, whose scales `rescale` then changes, in the order of the blocks. False, with
    /// nothing done, if it is not packed.
    pub fn fill_packed(&self, work: &mut dyn FnMut(Range<usize>, &Tensor), rescale: Rescale<'_>) -> bool {
        let Home::Packed(packed) = &self.home else { return false };
        packed.fill(work, Some(rescale));
        true
    }

    /// Calls `work(elements, tensor)` for ascending ranges that cover the value; the tensor is [1, n]. Ranks that each
    /// have a part call this together.
    pub fn read(&self, mut work: impl FnMut(Range<usize>, &Tensor)) {
        self.sweep(true, &mut work);
    }

    /// All elements, row by row, little-endian, on the host. Empty from a machine without data.
    pub fn bytes(&self, device: &Device) -> Vec<u8> {
        let mut all = Vec::new();
        self.read(|_, tensor| all.extend(device.machine.read(tensor).wait()));
        all
    }

    /// Lets another thread read the value while this one continues; from disk, if it is offloaded. It must not be
    /// written until the share ends. For a packed value the bytes are read.
    ///
    /// # Panics
    /// If this rank stores only a part of the value: [`Value::own_part`] can be shared.
    #[track_caller]
    pub fn share(&self, device: &Device) -> (Share, Reader) {
        match &self.home {
            Home::Here(tensor) => device.machine.share(tensor),
            Home::Parted(_) => panic!("{self:?} is shared as a whole"),
            Home::Packed(packed) => packed.bytes().share(device),
            Home::Blocked(blocked) => device.machine.share(blocked.bytes()),
            Home::Offloaded(offloaded) => offloaded.disk.spill().share(&offloaded.chunks, self.shape),
        }
    }
}
