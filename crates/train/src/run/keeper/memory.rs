//! Copies of a rank's state in memory: its own, and that of the rank whose partner it is. A run returns to them when a
//! rank fails, and to a checkpoint on disk if there are none.
//!
//! All ranks make a copy at the same point between two steps, and send it to the partner in chunks. The previous copy
//! is kept until all ranks have confirmed the new one.

use std::sync::Arc;

use fathom_grad::{ParamId, Params, Value};
use fathom_tensor::{Category, DType, Device};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::reference::Reference;
use crate::run::Progress;
use crate::step::Trainer;

/// Bytes of a message between partners.
const CHUNK_BYTES: usize = 4 << 20;

/// Header of a copy, before the values.
#[derive(Serialize, Deserialize)]
struct Head {
    progress: Progress,
    updates: u64,
}

/// The state of one rank after a step.
pub(super) struct Copy {
    pub step: u64,
    pub bytes: Arc<Vec<u8>>,
}

/// The copies that one rank keeps, at most two of each kind, oldest first.
#[derive(Default)]
pub(super) struct Memory {
    own: Vec<Copy>,
    /// Copies of the rank [`source`].
    partner: Vec<Copy>,
    /// Memory of an older copy, for reuse.
    room: Vec<u8>,
}

/// The rank that keeps the copies of `rank`: half of all ranks further, so that adjacent ranks may fail together.
pub(super) fn partner(rank: usize, ranks: usize) -> usize {
    (rank + (ranks / 2).max(1)) % ranks
}

/// The rank whose copies `rank` keeps.
pub(super) fn source(rank: usize, ranks: usize) -> usize {
    (rank + ranks - (ranks / 2).max(1)) % ranks
}

/// The values that steps change, in order: this rank's own parts of sharded ones. A rebuilt rank already has the
/// others.
fn values(trainer: &Trainer) -> Vec<Value> {
    let of = |id: ParamId| {
        let state = trainer.optimizer().state(id).into_iter().flat_map(fathom_grad::State::values);
        std::iter::once(trainer.params.get(id).value.own_part()).chain(state.cloned())
    };
    let moving = trainer.reference().and_then(Reference::moving).into_iter().flat_map(Params::iter);
    let moving = moving.map(|(_, param)| param.value.own_part());
    let changing = trainer.params.iter().map(|(id, _)| id).filter(|id| trainer.changes(*id));
    let all = changing.flat_map(of).chain(moving);
    all.filter(|value| !value.is_empty()).collect()
}

impl Copy {
    /// Copies the current state, reusing `room` if possible.
    fn of(trainer: &Trainer, progress: &Progress, mut room: Vec<u8>) -> Result<Copy> {
        let device = &trainer.device;
        trainer.params.settle(device);
        let step = progress.step;
        let progress = Progress { amax: trainer.amax(), ..progress.clone() };
        let head = Head { updates: trainer.optimizer().updates(device), progress };
        let head = serde_json::to_vec(&head).map_err(|error| Error::Save(error.to_string()))?;
        room.clear();
        room.extend((head.len() as u64).to_le_bytes());
        room.extend(head);
        for value in values(trainer) {
            value.read(|_, tensor| room.extend(device.machine.read(tensor).wait()));
        }
        // Messages consist of whole words.
        room.resize(room.len().next_multiple_of(4), 0);
        Ok(Copy { step, bytes: Arc::new(room) })
    }

    /// Restores a trainer to this state; returns its progress.
    pub fn restore(&self, trainer: &mut Trainer) -> Result<Progress> {
        let device = trainer.device.clone();
        let short = || Error::Save("a copy in memory is shorter than the state".into());
        let (len, rest) = self.bytes.split_first_chunk::<8>().ok_or_else(short)?;
        let (head, mut rest) = rest.split_at_checked(u64::from_le_bytes(*len) as usize).ok_or_else(short)?;
        let Head { progress, updates } =
            serde_json::from_slice(head).map_err(|error| Error::Save(error.to_string()))?;
        for value in values(trainer) {
            let bytes = value.len() * value.dtype().bytes();
            let (now, later) = rest.split_at_checked(bytes).ok_or_else(short)?;
            let size = value.dtype().bytes();
            value.fill(|range, tensor| {
                device.machine.write(tensor, &now[range.start * size..range.end * size])
            });
            rest = later;
        }
        trainer.optimizer_mut().set_updates(&device, updates);
        trainer.set_amax(progress.amax.as_ref());
        Ok(Progress { amax: None, ..progress })
    }
}

impl Memory {
    /// Copies this rank's state and exchanges copies with the partners. All ranks call this together.
    pub fn copy(&mut self, trainer: &Trainer, progress: &Progress) -> Result<()> {
        self.keep_up_to(progress.step.saturating_sub(1));
        if self.own.len() > 1 {
            self.own.remove(0);
        }
        let room = std::mem::take(&mut self.room);
        self.own.push(Copy::of(trainer, progress, room)?);
        self.trade(&trainer.device)
    }

    /// Sends the newest own copy to the partner and receives that of the source.
    pub fn trade(&mut self, device: &Device) -> Result<()> {
        let (rank, ranks) = (device.mesh.rank(), device.mesh.grid().ranks());
        let Some(newest) = self.own.last().filter(|_| ranks > 1) else { return Ok(()) };
        let (to, from) = (partner(rank, ranks), source(rank, ranks));
        let bytes = ship(device, Some((to, &newest.bytes)), Some(from))?;
        let step = newest.step;
        if self.partner.len() > 1 {
            self.partner.remove(0);
        }
        self.partner.retain(|copy| copy.step < step);
        self.partner.push(Copy { step, bytes: Arc::new(bytes) });
        Ok(())
    }

    /// Drops older copies, since all ranks have the newest.
    pub fn confirm(&mut self) {
        self.partner.drain(..self.partner.len().saturating_sub(1));
        for old in self.own.drain(..self.own.len().saturating_sub(1)) {
            // The next copy reuses this memory, whose pages are already mapped.
            self.room = Arc::try_unwrap(old.bytes).unwrap_or_default();
        }
    }

    /// Drops copies made after a step to which the run has returned.
    pub fn keep_up_to(&mut self, step: u64) {
        self.own.retain(|copy| copy.step <= step);
        self.partner.retain(|copy| copy.step <= step);
    }

    /// True if there is no copy of this rank's own.
    pub fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// Drops everything, for a rank that is restarted.
    pub fn lose(&mut self) {
        *self = Memory::default();
    }

    /// The newest copy of this rank's own.
    pub fn newest(&self) -> Option<&Copy> {
        self.own.last()
    }

    pub fn own(&self, step: u64) -> Option<&Copy> {
        self.own.iter().find(|copy| copy.step == step)
    }

    /// Steps of this rank's own copies and of its source's; -1 for none.
    pub fn steps(&self) -> [i32; 4] {
        let step = |copies: &[Copy], at: usize| {
            copies.get(at).and_then(|copy| i32::try_from(copy.step).ok()).unwrap_or(-1)
        };
        [step(&self.own, 0), step(&self.own, 1), step(&self.partner, 0), step(&self.partner, 1)]
    }

    /// Sends copies of a step back from partners to ranks that have none of their own. All ranks call this together;
    /// `have` tells for every rank whether it has one.
    pub fn give_back(&mut self, device: &Device, step: u64, have: &[bool]) -> Result<()> {
        let (rank, ranks) = (device.mesh.rank(), device.mesh.grid().ranks());
        let kept = self.partner.iter().find(|copy| copy.step == step);
        let of = source(rank, ranks);
        let to = kept.filter(|_| !have[of]).map(|copy| (of, copy.bytes.as_slice()));
        let from = (!have[rank]).then(|| partner(rank, ranks));
        let bytes = ship(device, to, from)?;
        if !have[rank] {
            self.own = vec![Copy { step, bytes: Arc::new(bytes) }];
        }
        Ok(())
    }
}

/// The newest step to which all ranks can return, and which of them have their own copy of it, from every rank's
/// [`Memory::steps`].
pub(super) fn common(steps: &[[i32; 4]]) -> Option<(u64, Vec<bool>)> {
    let ranks = steps.len();
    let own = |rank: usize, step: i32| steps[rank][..2].contains(&step);
    let can = |rank: usize, step: i32| own(rank, step) || steps[partner(rank, ranks)][2..].contains(&step);
    let known = steps.iter().flatten().copied().filter(|step| *step >= 0);
    let step = known.filter(|step| (0..ranks).all(|rank| can(rank, *step))).max()?;
    Some((step as u64, (0..ranks).map(|rank| own(rank, step)).collect()))
}

/// Sends bytes to a rank and receives another's, in chunks; both sides expect this.
fn ship(device: &Device, to: Option<(usize, &[u8])>, from: Option<usize>) -> Result<Vec<u8>> {
    device.pool.enter("copy", -1);
    let everybody = device.mesh.everybody();
    let mine = to.map_or(0, |(_, bytes)| bytes.len());
    let announced = device.from_i32(&[(mine >> 31) as i32, (mine & 0x7fff_ffff) as i32], Category::Comm);
    let coming = device.empty(1, 2, DType::I32, Category::Comm);
    let sends: Vec<_> = to.iter().map(|(to, _)| (*to, &announced)).collect();
    let receives: Vec<_> = from.iter().map(|from| (*from, &coming)).collect();
    everybody.exchange(device, "copy", &sends, &receives).wait();
    device.mesh.check()?;
    let theirs = match from {
        None => 0,
        Some(_) => {
            let bytes = device.machine.read(&coming).wait();
            let number =
                |at: usize| bytes[at..].first_chunk().map_or(0, |word| i32::from_le_bytes(*word) as usize);
            (number(0) << 31) | number(4)
        }
    };
    let staging = || device.empty(1, CHUNK_BYTES / 4, DType::I32, Category::Comm);
    let (leaving, arriving) = (staging(), staging());
    let mut taken = Vec::with_capacity(theirs);
    for start in (0..mine.max(theirs)).step_by(CHUNK_BYTES) {
        let chunk = |len: usize| start.min(len)..len.min(start + CHUNK_BYTES);
        let (out, into) = (chunk(mine), chunk(theirs));
        let (out_words, in_words) =
            (leaving.view_cols(0..out.len() / 4), arriving.view_cols(0..into.len() / 4));
        if let Some((_, bytes)) = to.filter(|_| !out.is_empty()) {
            device.machine.write(&out_words, &bytes[out]);
        }
        let sends: Vec<_> = to.iter().map(|(to, _)| (*to, &out_words)).collect();
        let receives: Vec<_> = from.iter().map(|from| (*from, &in_words)).collect();
        everybody.exchange(device, "copy", &sends, &receives).wait();
        device.mesh.check()?;
        if !into.is_empty() {
            taken.extend(device.machine.read(&in_words).wait());
        }
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_step_that_everybody_can_go_back_to() {
        // Ranks 0 and 1 are each other's partner.
        assert_eq!(common(&[[4, 6, 4, 6], [4, 6, 4, 6]]), Some((6, vec![true, true])));
        assert_eq!(common(&[[4, 6, 4, 6], [-1; 4]]), Some((6, vec![true, false])));
        assert_eq!(common(&[[4, 6, 4, -1], [4, 6, 4, 6]]), Some((6, vec![true, true])));
        assert_eq!(common(&[[4, 6, 4, -1], [-1; 4]]), Some((4, vec![true, false])));
        assert_eq!(common(&[[-1; 4], [-1; 4]]), None);
        // In a mesh of four, ranks 0 and 2 keep each other's copies: losing both is too many.
        let four = [[-1; 4], [3, -1, 3, -1], [3, -1, 3, -1], [3, -1, 3, -1]];
        assert_eq!(common(&four), Some((3, vec![false, true, true, true])));
        assert_eq!(common(&[four[0], four[1], four[0], four[3]]), None);
        for ranks in 2..9 {
            assert!((0..ranks).all(|rank| source(partner(rank, ranks), ranks) == rank));
        }
    }
}
