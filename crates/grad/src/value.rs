//! A weight, or a part of its optimizer state: a tensor in memory, or chunks on disk.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use fathom_tensor::spill::{Reading, Stored};
use fathom_tensor::{Category, DType, Device, Reader, Share, Tensor};

use crate::disk::{Part, Role, StateDisk, chunks};

/// Rows x columns that are in memory, or on disk and in memory only while somebody needs them. Cheap to clone; clones are
/// the same value.
#[derive(Clone)]
pub struct Value {
    shape: [usize; 2],
    dtype: DType,
    home: Home,
}

#[derive(Clone)]
enum Home {
    Here(Tensor),
    Away(Rc<Away>),
}

/// A value on disk.
pub(crate) struct Away {
    pub disk: Rc<StateDisk>,
    pub role: Role,
    pub chunks: Vec<Stored>,
    layer: i32,
    visit: RefCell<Visit>,
}

/// A value's time in memory.
#[derive(Default)]
struct Visit {
    users: u32,
    at: At,
}

#[derive(Default)]
enum At {
    #[default]
    Absent,
    Coming(Tensor, Vec<Reading>),
    Here(Tensor),
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Value {
        Value { shape: tensor.shape(), dtype: tensor.dtype(), home: Home::Here(tensor) }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rows, cols] = self.shape;
        let place = if self.away().is_some() { " on disk" } else { "" };
        write!(f, "{:?}[{rows}, {cols}]{place}", self.dtype)
    }
}

impl Value {
    /// Room for a value on disk; what it holds is undefined.
    pub(crate) fn on_disk(
        disk: &Rc<StateDisk>,
        shape: [usize; 2],
        dtype: DType,
        role: Role,
        layer: i32,
    ) -> Value {
        let chunks = disk.reserve(shape[0] * shape[1], dtype, role, layer);
        let away = Away { disk: disk.clone(), role, chunks, layer, visit: RefCell::default() };
        Value { shape, dtype, home: Home::Away(Rc::new(away)) }
    }

    /// Whether values of this shape go to disk at all: vectors stay.
    pub(crate) fn moves(shape: [usize; 2]) -> bool {
        shape[0] > 1
    }

    pub(crate) fn away(&self) -> Option<&Away> {
        match &self.home {
            Home::Here(_) => None,
            Home::Away(away) => Some(away),
        }
    }

    /// The layer that it belongs to in messages, -1 for none.
    pub(crate) fn layer(&self) -> i32 {
        self.away().map_or(-1, |away| away.layer)
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
            Home::Away(_) => None,
        }
    }

    /// The tensor.
    ///
    /// # Panics
    /// If the value is on disk and nobody has fetched it.
    #[track_caller]
    pub fn tensor(&self) -> Tensor {
        match &self.home {
            Home::Here(tensor) => tensor.clone(),
            Home::Away(away) => match &away.visit.borrow().at {
                At::Here(tensor) => tensor.clone(),
                _ => panic!("{self:?} is used and was not fetched"),
            },
        }
    }

    /// Elements of a tensor in memory, as one row.
    pub(crate) fn flat(&self, range: Range<usize>) -> Tensor {
        self.tensor().reshape(1, self.len()).view_cols(range)
    }

    /// One more user: begins to read the value unless it is there or on its way.
    pub(crate) fn fetch(&self, device: &Device) {
        let Some(away) = self.away() else { return };
        let mut visit = away.visit.borrow_mut();
        visit.users += 1;
        if matches!(visit.at, At::Absent) {
            let [rows, cols] = self.shape;
            let tensor = device.empty(rows, cols, self.dtype, Category::Params);
            let flat = tensor.reshape(1, self.len());
            let read = |(range, stored): (Range<usize>, &Stored)| {
                away.disk.spill().read(stored, flat.view_cols(range)).ok()
            };
            let readings = chunks(self.len()).zip(&away.chunks).filter_map(read).collect();
            visit.at = At::Coming(tensor, readings);
        }
    }

    /// Waits for what was fetched.
    pub(crate) fn wait(&self) {
        let Some(away) = self.away() else { return };
        let mut visit = away.visit.borrow_mut();
        visit.at = match std::mem::take(&mut visit.at) {
            At::Coming(tensor, readings) => {
                // A failure is the engine's first error: `StateDisk::check` tells.
                readings.into_iter().for_each(|reading| drop(reading.retire()));
                At::Here(tensor)
            }
            other => other,
        };
    }

    /// One user less; the last one frees the memory.
    pub(crate) fn release(&self) {
        let Some(away) = self.away() else { return };
        let mut visit = away.visit.borrow_mut();
        visit.users -= 1;
        if visit.users == 0 {
            visit.at = At::Absent;
        }
    }

    fn sweep(&self, read: bool, work: &mut dyn FnMut(Range<usize>, &Tensor)) {
        let Some(away) = self.away() else {
            return work(0..self.len(), &self.flat(0..self.len()));
        };
        let ranges: Vec<Range<usize>> = chunks(self.len()).collect();
        let part = |item: usize| {
            let range = ranges[item].clone();
            vec![Part { value: self, range, read, write: !read }]
        };
        away.disk.sweep(ranges.len(), &part, &mut |item, views| work(ranges[item].clone(), &views[0]));
    }

    /// Gives the value new elements: calls `work(elements, where to write them)` for ranges in ascending order that cover
    /// it; the tensor is [1, n], and all of it must be written. Nothing larger than a chunk is made.
    ///
    /// # Panics
    /// If the value is being read, by a checkpoint or a segment.
    pub fn fill(&self, mut work: impl FnMut(Range<usize>, &Tensor)) {
        self.sweep(false, &mut work);
    }

    /// Calls `work(elements, tensor)` for ranges in ascending order that cover the value; the tensor is [1, n].
    pub fn read(&self, mut work: impl FnMut(Range<usize>, &Tensor)) {
        self.sweep(true, &mut work);
    }

    /// All elements, row by row, little-endian, on the host. Empty from a machine without data.
    pub fn bytes(&self, device: &Device) -> Vec<u8> {
        let mut all = Vec::new();
        self.read(|_, tensor| all.extend(device.machine.read(tensor).wait()));
        all
    }

    /// Lets another thread read the value as it is now while this one goes on; from disk, if it is there. Until the share
    /// ends, nothing may be written to it.
    pub fn share(&self, device: &Device) -> (Share, Reader) {
        match &self.home {
            Home::Here(tensor) => device.machine.share(tensor),
            Home::Away(away) => away.disk.spill().share(&away.chunks, self.shape),
        }
    }
}
