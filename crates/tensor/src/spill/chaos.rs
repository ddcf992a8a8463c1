//! An adversary between the workers and the file, for tests and `--chaos SEED`.

use std::io::{self, ErrorKind};
use std::time::Duration;

use super::file::{Backing, Step};
use super::space::PAGE;

/// Faults that the adversary may inject. Its effect on an operation depends only on the seed and on the operation's
/// transfer, piece and attempt, not on timing. The order in which workers take pieces is drawn as well, but also
/// depends on the race of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chaos {
    /// Draws delays (up to 200 microseconds), short and interrupted operations, and the order of pieces.
    pub seed: u64,
    /// One operation in about this many fails with an input/output error, or a full disk if it writes; 0 for none.
    pub fault_one_in: u32,
}

/// A well-mixed hash of several numbers (splitmix64's finaliser).
pub(crate) fn mix(parts: &[u64]) -> u64 {
    parts.iter().fold(0x9e37_79b9_7f4a_7c15, |state: u64, part| {
        let mut z = (state ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// A backing with injected faults.
pub(super) struct Adverse<B> {
    pub chaos: Chaos,
    pub under: B,
    pub direct: bool,
}

impl<B: Backing> Adverse<B> {
    /// Waits, fails, or returns how many of `len` bytes to move.
    fn disturb(&self, len: usize, step: Step, write: bool) -> io::Result<usize> {
        let Chaos { seed, fault_one_in } = self.chaos;
        let draw = |what: u64| {
            mix(&[seed, what, step.transfer, step.piece as u64, step.attempt as u64, write as u64])
        };
        if draw(0).is_multiple_of(8) {
            std::thread::sleep(Duration::from_micros(draw(1) % 200));
        }
        if fault_one_in > 0 && draw(2).is_multiple_of(fault_one_in as u64) {
            let full = write && draw(3).is_multiple_of(2);
            // Linux's error numbers: EIO and ENOSPC.
            return Err(io::Error::from_raw_os_error(if full { 28 } else { 5 }));
        }
        match draw(4) % 8 {
            0 => Err(ErrorKind::Interrupted.into()),
            1 | 2 if self.direct => {
                Ok((draw(5) as usize % len).next_multiple_of(PAGE as usize).clamp(PAGE as usize, len))
            }
            1 | 2 => Ok(draw(5) as usize % len + 1),
            _ => Ok(len),
        }
    }
}

impl<B: Backing> Backing for Adverse<B> {
    fn write_at(&self, bytes: &[u8], offset: u64, step: Step) -> io::Result<usize> {
        let len = self.disturb(bytes.len(), step, true)?;
        self.under.write_at(&bytes[..len], offset, step)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64, step: Step) -> io::Result<usize> {
        let len = self.disturb(bytes.len(), step, false)?;
        self.under.read_at(&mut bytes[..len], offset, step)
    }
}
