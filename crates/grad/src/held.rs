//! The values that a segment holds for its backward pass: in memory, or offloaded to host memory or disk and fetched
//! back.
//!
//! A value is written when its segment's forward pass ends, and its memory is free when the next segment reaches its
//! attention. It is fetched and waited for at fixed steps of the schedule ([`crate::schedule`]), so the memory of a
//! step does not depend on the disk's speed. An offloaded value can be read more than once.

use fathom_tensor::spill::{Codec, FileRead, FileValue, FileWrite, Spill, Tag};
use fathom_tensor::{Category, DType, Device, Tensor};

use crate::graph::Val;
use crate::places::{Place, Places};

/// Memory for offloaded values.
#[derive(Clone, Default)]
pub struct Offload {
    /// Host memory.
    pub host: Option<Spill>,
    /// Disk.
    pub disk: Option<Spill>,
}

impl Offload {
    /// Only a disk.
    pub fn disk(spill: Spill) -> Offload {
        Offload { disk: Some(spill), host: None }
    }

    /// The engine of a place; `None` for places without one.
    pub fn engine(&self, place: Place) -> Option<&Spill> {
        match place {
            Place::Host => self.host.as_ref(),
            Place::Disk => self.disk.as_ref(),
            Place::Keep | Place::Recompute => None,
        }
    }

    /// All engines.
    pub fn engines(&self) -> impl Iterator<Item = &Spill> {
        self.host.iter().chain(&self.disk)
    }

    /// The first failure of any engine, to be checked at the end of a step.
    ///
    /// # Errors
    /// That failure.
    pub fn check(&self) -> fathom_tensor::spill::Result<()> {
        self.engines().try_for_each(Spill::check)
    }
}

/// Parameters of offloading a value.
pub(crate) struct OffloadArgs<'a> {
    pub spill: &'a Spill,
    pub codec: Codec,
    /// Number of first rows that stay in memory.
    pub rows_kept: usize,
    pub tag: Tag,
}

impl<'a> OffloadArgs<'a> {
    /// The parameters for a tensor from the table of places, if it is offloaded and there is an engine.
    pub fn of(
        (places, codec): (&Places, Codec),
        offload: &'a Offload,
        tensor: &Tensor,
        tag: Tag,
    ) -> Option<OffloadArgs<'a>> {
        let spill = offload.engine(places.place(tag.layer, tag.name))?;
        let (rows, part) = (tensor.rows() as f64, 1.0 - places.offload_fraction.clamp(0.0, 1.0));
        let rows_kept = ((rows * part) as usize).min(tensor.rows().saturating_sub(1));
        Some(OffloadArgs { spill, codec, rows_kept, tag })
    }
}

/// A value between forward and backward.
pub(crate) struct HeldValue {
    rows: usize,
    cols: usize,
    dtype: DType,
    spill: Option<Spill>,
    /// The first rows, if only the others were offloaded.
    first_rows: Option<Tensor>,
    stored: Option<FileValue>,
    at: At,
}

enum At {
    Here(Tensor),
    Leaving(FileWrite, Tensor),
    Offloaded,
    /// The rows being read, and all rows.
    Coming(FileRead, Tensor),
    /// A transfer failed. The step continues with meaningless values; its caller must check [`Offload::check`] before
    /// using any.
    Lost,
}

impl HeldValue {
    /// The value, if all of it is in memory.
    pub fn tensor(&self) -> Option<&Tensor> {
        match &self.at {
            At::Here(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// Keeps the value in memory.
    pub fn here(tensor: Tensor) -> HeldValue {
        let (rows, cols, dtype) = (tensor.rows(), tensor.cols(), tensor.dtype());
        HeldValue { rows, cols, dtype, spill: None, first_rows: None, stored: None, at: At::Here(tensor) }
    }

    /// Offloads the value. The tensor must have no other readers from now on.
    pub fn leave(tensor: Tensor, how: &OffloadArgs<'_>, device: &Device) -> HeldValue {
        let mut held = HeldValue::here(tensor.clone());
        let OffloadArgs { spill, codec, rows_kept, tag } = *how;
        if rows_kept > 0 {
            device.pool.label(tag.name, false);
            let first = device.empty(rows_kept, tensor.cols(), tensor.dtype(), Category::Activations);
            device.machine.copy(&tensor.view_rows(0..rows_kept), &first);
            held.first_rows = Some(first);
        }
        let rest = tensor.view_rows(rows_kept..tensor.rows());
        held.spill = Some(spill.clone());
        held.at = spill.write(rest, codec, tag).map_or(At::Lost, |writing| At::Leaving(writing, tensor));
        held
    }

    /// Waits until the value is written, and frees its memory.
    pub fn settle(&mut self) {
        self.at = match std::mem::replace(&mut self.at, At::Lost) {
            At::Leaving(writing, _) => writing.retire().map_or(At::Lost, |stored| {
                self.stored = Some(stored);
                At::Offloaded
            }),
            other => other,
        };
    }

    /// Allocates memory and starts to read; a value not yet offloaded stays.
    pub fn fetch(&mut self, device: &Device) {
        self.at = match std::mem::replace(&mut self.at, At::Lost) {
            At::Leaving(writing, tensor) => writing.retire().map_or(At::Lost, |stored| {
                self.stored = Some(stored);
                At::Here(tensor)
            }),
            At::Offloaded => self.read(device).unwrap_or(At::Lost),
            other => other,
        };
    }

    fn read(&self, device: &Device) -> Option<At> {
        let (spill, stored) = (self.spill.as_ref()?, self.stored.as_ref()?);
        device.pool.label(stored.tag().name, false);
        let all = device.empty(self.rows, self.cols, self.dtype, Category::Activations);
        if let Some(first) = &self.first_rows {
            device.machine.copy(first, &all.view_rows(0..first.rows()));
        }
        let rest = all.view_rows(self.rows - stored.rows()..self.rows);
        Some(At::Coming(spill.read(stored, rest).ok()?, all))
    }

    /// The value in memory; waits for it if it is being read. An offloaded value can be fetched again.
    pub fn arrive(&mut self, device: &Device) -> Tensor {
        let back = match std::mem::replace(&mut self.at, At::Offloaded) {
            At::Here(tensor) => Some(tensor),
            At::Coming(reading, all) => reading.retire().ok().map(|_| all),
            At::Leaving(..) | At::Offloaded | At::Lost => None,
        };
        back.unwrap_or_else(|| {
            self.at = At::Lost;
            device.empty(self.rows, self.cols, self.dtype, Category::Activations)
        })
    }
}

/// The values that a segment holds.
pub(crate) struct HeldValues {
    pub vals: Vec<(Val, HeldValue)>,
    /// The values that the backward pass reads first.
    pub first_reads: Vec<Val>,
}

impl HeldValues {
    fn get(&mut self, val: Val) -> Option<&mut HeldValue> {
        self.vals.iter_mut().find(|(held, _)| *held == val).map(|(_, held)| held)
    }

    /// See [`HeldValue::settle`].
    pub fn settle(&mut self) {
        self.vals.iter_mut().for_each(|(_, held)| held.settle());
    }

    /// Starts to read one value.
    pub fn fetch(&mut self, val: Val, device: &Device) {
        if let Some(held) = self.get(val) {
            held.fetch(device);
        }
    }

    /// Starts to read the values that the backward pass needs first.
    pub fn fetch_first(&mut self, device: &Device) {
        for val in self.first_reads.clone() {
            self.fetch(val, device);
        }
    }

    /// See [`HeldValue::arrive`].
    ///
    /// # Panics
    /// If the value is not held.
    pub fn arrive(&mut self, val: Val, device: &Device) -> Tensor {
        match self.get(val) {
            Some(held) => held.arrive(device),
            None => panic!("value {val:?} is not held"),
        }
    }
}

/// Offloaded values known to a pass over a segment.
#[derive(Default)]
pub(crate) struct Far<'a> {
    /// Those of this segment, in the backward pass.
    pub own: Option<&'a mut HeldValues>,
    /// Those of the segment below.
    pub below: Option<&'a mut HeldValues>,
}
