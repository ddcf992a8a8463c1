//! The faults of one rank, and those that are about to happen.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fathom_grad::Params;
use fathom_tensor::Device;

use super::faults::{Faults, Kind};
use crate::step::Trainer;

/// Delay that a slow rank adds to each step.
pub(super) const SLOW: Duration = Duration::from_millis(100);

/// The faults of one rank, and those that are about to happen.
pub(super) struct Injector {
    faults: Mutex<Faults>,
    rank: usize,
    stop: Arc<AtomicBool>,
    /// The step whose update has not started; 0 for none.
    step: AtomicU64,
    /// The next gradient to be written becomes NaN.
    spoils: AtomicBool,
}

impl Injector {
    /// The faults of a rank whose stop flag is `stop`.
    pub fn new(faults: Faults, rank: usize, stop: Arc<AtomicBool>) -> Injector {
        let (step, spoils) = (AtomicU64::new(0), AtomicBool::new(false));
        Injector { faults: Mutex::new(faults), rank, stop, step, spoils }
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if a fault hits this rank in a step.
    pub fn strikes(&self, kind: Kind, step: u64) -> bool {
        self.faults().strike(kind, self.rank, step)
    }

    /// Sets the step whose update is next.
    pub fn set_step(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    /// Takes the step whose update is about to start; 0 for none.
    pub fn take_step(&self) -> u64 {
        self.step.swap(0, Ordering::Relaxed)
    }

    /// Whether to spoil the gradient that was just written; true once in a step with this fault.
    pub fn takes_gradient(&self) -> bool {
        self.spoils.load(Ordering::Relaxed) && self.spoils.swap(false, Ordering::Relaxed)
    }

    /// Applies slowness, a request to stop, and a flipped bit.
    pub(super) fn before_step(&self, policy: &Trainer) {
        let (device, params, step) = (&policy.device, &policy.params, policy.number);
        if self.strikes(Kind::Term, step) {
            self.stop.store(true, Ordering::Relaxed);
        }
        if self.strikes(Kind::Slow, step) {
            std::thread::sleep(SLOW);
        }
        if self.faults().flips(step) {
            // Updates still owed by other ranks would restore the bit; they take part in this wait.
            params.settle(device);
            if self.strikes(Kind::Flip, step) {
                flip(device, params);
            }
            self.faults().past(|fault| (fault.kind, fault.step) == (Kind::Flip, step));
        }
        self.spoils.store(self.strikes(Kind::Nan, step), Ordering::Relaxed);
        self.set_step(step);
    }
}

/// Flips a bit of the first weight's first element.
pub(super) fn flip(device: &Device, params: &Params) {
    let first = params.iter().map(|(_, param)| param.value.own_part());
    let first = first.filter(|value| !value.is_empty()).find_map(|value| value.resident().cloned());
    if let Some(weight) = first {
        let element = weight.reshape(1, weight.len()).view_cols(0..1);
        let mut bytes = device.machine.read(&element).wait();
        bytes[0] ^= 1 << 3;
        device.machine.write(&element, &bytes);
    }
}
