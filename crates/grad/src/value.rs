//! A weight, or a part of its optimizer state: a tensor in memory, chunks on disk, or a part on each of several ranks.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use fathom_tensor::mesh::{Flying, Group};
use fathom_tensor::spill::{Reading, Stored};
use fathom_tensor::{Category, DType, Device, Reader, Share, Tensor};

use crate::disk::{Part, Role, StateDisk, chunks};
use crate::parted::Parted;

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
    Away(Rc<Away>),
    Parted(Rc<Parted>),
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
pub(crate) struct Visit {
    users: u32,
    at: At,
}

#[derive(Default)]
enum At {
    #[default]
    Absent,
    Coming(Tensor, Coming),
    Here(Tensor),
}

/// How a value is fetched.
pub(crate) enum Coming {
    /// From disk.
    Disk(Vec<Reading>),
    /// From other ranks.
    Ranks(Flying),
}

impl Coming {
    /// Waits for it.
    fn arrive(self) {
        match self {
            // A failure is the engine's first error: `StateDisk::check` tells.
            Coming::Disk(readings) => readings.into_iter().for_each(|reading| drop(reading.retire())),
            Coming::Ranks(flying) => flying.wait(),
        }
    }
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Value {
        Value { shape: tensor.shape(), dtype: tensor.dtype(), home: Home::Here(tensor) }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rows, cols] = self.shape;
        let place = match self.home {
            Home::Here(_) => "",
            Home::Away(_) => " on disk",
            Home::Parted(_) => " on several ranks",
        };
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

    /// Whether values of this shape are offloaded at all: vectors are not.
    pub(crate) fn moves(shape: [usize; 2]) -> bool {
        shape[0] > 1
    }

    /// Of which ranks will have a part each, once [`Value::part`] has said which.
    pub(crate) fn parted(device: &Device, shape: [usize; 2], dtype: DType) -> Value {
        Value { shape, dtype, home: Home::Parted(Rc::new(Parted::new(device))) }
    }

    /// Gives every rank its part of a value made by [`Value::parted`]; what it holds is undefined.
    pub(crate) fn part(&self, device: &Device, group: &Group, ranges: Vec<Range<usize>>) {
        if let Home::Parted(parted) = &self.home {
            parted.place(device, self.dtype, group, ranges);
        }
    }

    pub(crate) fn away(&self) -> Option<&Away> {
        match &self.home {
            Home::Away(away) => Some(away),
            Home::Here(_) | Home::Parted(_) => None,
        }
    }

    /// Whether it is in memory only while it is used.
    pub(crate) fn comes(&self) -> bool {
        !matches!(self.home, Home::Here(_))
    }

    fn visit(&self) -> Option<&RefCell<Visit>> {
        match &self.home {
            Home::Here(_) => None,
            Home::Away(away) => Some(&away.visit),
            Home::Parted(parted) => Some(&parted.visit),
        }
    }

    /// The elements that are always here, in memory or on disk.
    pub fn own(&self) -> Range<usize> {
        match &self.home {
            Home::Parted(parted) => parted.own(),
            Home::Here(_) | Home::Away(_) => 0..self.len(),
        }
    }

    /// The same value, of which only [`Value::own`] is: in memory or on disk whatever its ranks do.
    pub fn own_part(&self) -> Value {
        match &self.home {
            Home::Parted(parted) => parted.tensor().clone().into(),
            Home::Here(_) | Home::Away(_) => self.clone(),
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
            Home::Away(_) | Home::Parted(_) => None,
        }
    }

    /// The tensor.
    ///
    /// # Panics
    /// If the value is not in memory and has not been fetched.
    #[track_caller]
    pub fn tensor(&self) -> Tensor {
        if let Home::Here(tensor) = &self.home {
            return tensor.clone();
        }
        let here = self.visit().and_then(|visit| match &visit.borrow().at {
            At::Here(tensor) => Some(tensor.clone()),
            At::Absent | At::Coming(..) => None,
        });
        here.unwrap_or_else(|| panic!("{self:?} is used and was not fetched"))
    }

    /// Elements of a tensor in memory, as one row; of a parted value some of this rank's.
    pub(crate) fn flat(&self, range: Range<usize>) -> Tensor {
        if let Home::Parted(parted) = &self.home {
            let own = parted.own();
            return parted.tensor().view_cols(range.start - own.start..range.end - own.start);
        }
        self.tensor().reshape(1, self.len()).view_cols(range)
    }

    /// Adds a user: starts to fetch the value unless it is in memory or being fetched.
    pub(crate) fn fetch(&self, device: &Device) {
        let Some(visit) = self.visit() else { return };
        let mut visit = visit.borrow_mut();
        visit.users += 1;
        if matches!(visit.at, At::Absent) {
            let [rows, cols] = self.shape;
            let tensor = device.empty(rows, cols, self.dtype, Category::Params);
            let coming = self.come(device, &tensor.reshape(1, self.len()));
            visit.at = At::Coming(tensor, coming);
        }
    }

    fn come(&self, device: &Device, flat: &Tensor) -> Coming {
        match &self.home {
            Home::Here(_) => Coming::Disk(Vec::new()),
            Home::Parted(parted) => Coming::Ranks(parted.gather(device, flat)),
            Home::Away(away) => {
                let read = |(range, stored): (Range<usize>, &Stored)| {
                    away.disk.spill().read(stored, flat.view_cols(range)).ok()
                };
                Coming::Disk(chunks(self.len()).zip(&away.chunks).filter_map(read).collect())
            }
        }
    }

    /// Waits for what was fetched.
    pub(crate) fn wait(&self) {
        let Some(visit) = self.visit() else { return };
        let mut visit = visit.borrow_mut();
        visit.at = match std::mem::take(&mut visit.at) {
            At::Coming(tensor, coming) => {
                coming.arrive();
                At::Here(tensor)
            }
            other => other,
        };
    }

    /// Removes a user; the last one frees the memory.
    pub(crate) fn release(&self) {
        let Some(visit) = self.visit() else { return };
        let mut visit = visit.borrow_mut();
        visit.users -= 1;
        if visit.users == 0
            && let At::Coming(_, coming @ Coming::Ranks(_)) = std::mem::take(&mut visit.at)
        {
            // The others wait until theirs has been taken.
            coming.arrive();
        }
    }

    fn sweep(&self, read: bool, work: &mut dyn FnMut(Range<usize>, &Tensor)) {
        let away = match &self.home {
            Home::Here(tensor) => return work(0..self.len(), &tensor.reshape(1, self.len())),
            Home::Parted(parted) => return self.sweep_parted(parted, read, work),
            Home::Away(away) => away,
        };
        let ranges: Vec<Range<usize>> = chunks(self.len()).collect();
        let part = |item: usize| {
            let range = ranges[item].clone();
            vec![Part { value: self, range, read, write: !read }]
        };
        away.disk.sweep(ranges.len(), &part, &mut |item, views| work(ranges[item].clone(), &views[0]));
    }

    /// By chunks; what is written is kept of this rank's elements alone, and what is read comes from all ranks.
    fn sweep_parted(&self, parted: &Parted, read: bool, work: &mut dyn FnMut(Range<usize>, &Tensor)) {
        let device = parted.device();
        if read {
            self.fetch(device);
            self.wait();
            work(0..self.len(), &self.tensor().reshape(1, self.len()));
            return self.release();
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

    /// Gives the value new elements: calls `work(elements, where to write them)` for ranges in ascending order that cover
    /// it; the tensor is [1, n], and all of it must be written. Nothing larger than a chunk is made.
    ///
    /// # Panics
    /// If the value is being read, by a checkpoint or a segment.
    pub fn fill(&self, mut work: impl FnMut(Range<usize>, &Tensor)) {
        self.sweep(false, &mut work);
    }

    /// Calls `work(elements, tensor)` for ranges in ascending order that cover the value; the tensor is [1, n]. Ranks that have a
    /// part of it each call this together.
    pub fn read(&self, mut work: impl FnMut(Range<usize>, &Tensor)) {
        self.sweep(true, &mut work);
    }

    /// All elements, row by row, little-endian, on the host. Empty from a machine without data.
    pub fn bytes(&self, device: &Device) -> Vec<u8> {
        let mut all = Vec::new();
        self.read(|_, tensor| all.extend(device.machine.read(tensor).wait()));
        all
    }

    /// Lets another thread read the value while this one continues; from disk, if it is offloaded. Nothing may be written to it
    /// until the share ends.
    ///
    /// # Panics
    /// If this rank holds only a part of it: [`Value::own_part`] can be shared.
    #[track_caller]
    pub fn share(&self, device: &Device) -> (Share, Reader) {
        match &self.home {
            Home::Here(tensor) => device.machine.share(tensor),
            Home::Parted(_) => panic!("{self:?} is shared as a whole"),
            Home::Away(away) => away.disk.spill().share(&away.chunks, self.shape),
        }
    }
}
