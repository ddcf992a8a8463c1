//! Denormal numbers are zeros while a kernel runs.
//!
//! An operation on a number below the smallest normal one (1.2e-38 in f32) costs an Intel core some 150 cycles, and
//! attention of a trained model produces millions of them: `exp` of a score far below the row's largest. Processors are
//! therefore set to read and write them as zeros ("denormals are zero" and "flush to zero"; Intel SDM vol. 1, 10.2.3
//! and 11.5; Arm ARM, FPCR.FZ). On every instruction set, kernels compute what they would from zeros of the same sign.
//! Copies may keep the bits.
//!
//! The setting is per thread. A thread of the pool has it permanently; the issuing thread has it while a kernel runs,
//! and its own setting again afterwards, because a program that embeds Fathom may rely on denormals.
#![allow(unsafe_code)]

use std::marker::PhantomData;

/// Control bits of MXCSR: "flush to zero" (15) and "denormals are zero" (6).
#[cfg(target_arch = "x86_64")]
const ZEROS: u32 = 1 << 15 | 1 << 6;
/// Control bit FZ of FPCR, which does both.
#[cfg(target_arch = "aarch64")]
const ZEROS: u64 = 1 << 24;

/// Guard: while it lives, the thread treats denormals as zeros.
pub struct AsZeros {
    before: Control,
    /// The setting belongs to this thread, so the guard must not be dropped on another.
    here: PhantomData<*const ()>,
}

impl AsZeros {
    /// Denormals are zeros on this thread until the guard is dropped.
    pub fn new() -> AsZeros {
        let before = control();
        if before & ZEROS != ZEROS {
            set_control(before | ZEROS);
        }
        AsZeros { before, here: PhantomData }
    }
}

impl Drop for AsZeros {
    fn drop(&mut self) {
        if self.before & ZEROS != ZEROS {
            set_control(self.before);
        }
    }
}

#[cfg(target_arch = "x86_64")]
type Control = u32;
#[cfg(target_arch = "aarch64")]
type Control = u64;
/// Other processors are left unchanged.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
type Control = u32;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ZEROS: u32 = 0;

#[cfg(target_arch = "x86_64")]
fn control() -> Control {
    let mut mxcsr = 0u32;
    // SAFETY: writes the four bytes of `mxcsr`; every x86-64 processor has SSE.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut mxcsr, options(nostack, preserves_flags)) };
    mxcsr
}

#[cfg(target_arch = "x86_64")]
fn set_control(mxcsr: Control) {
    // SAFETY: reads four bytes. Only the two bits of `ZEROS` ever differ from the thread's previous value: rounding and
    // exceptions stay, and no code here depends on the value of a denormal.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mxcsr, options(nostack, preserves_flags)) };
}

#[cfg(target_arch = "aarch64")]
fn control() -> Control {
    let fpcr: u64;
    // SAFETY: reads a register that every thread may read.
    unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) fpcr, options(nomem, nostack, preserves_flags)) };
    fpcr
}

#[cfg(target_arch = "aarch64")]
fn set_control(fpcr: Control) {
    // SAFETY: only the bit of `ZEROS` ever differs from the thread's previous value, and no code here depends on the
    // value of a denormal.
    unsafe { std::arch::asm!("msr fpcr, {}", in(reg) fpcr, options(nostack, preserves_flags)) };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn control() -> Control {
    0
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn set_control(_: Control) {}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::threads::Threads;

    /// True if half of the smallest normal number is not zero.
    fn denormals_exist() -> bool {
        black_box(f32::MIN_POSITIVE) * black_box(0.5) != 0.0
    }

    #[test]
    fn a_pools_threads_take_denormals_as_zeros_and_the_caller_only_while_it_works() {
        for count in [1, 3] {
            let threads = Threads::new(count);
            for tasks in [1, 100] {
                let found = AtomicUsize::new(0);
                threads.run(tasks, &|_, _| {
                    found.fetch_add(usize::from(denormals_exist()), Ordering::Relaxed);
                });
                assert_eq!(found.into_inner(), 0, "{count} threads, {tasks} tasks");
                assert!(denormals_exist(), "the caller's setting was not restored");
            }
        }
    }

    #[test]
    fn the_callers_setting_returns_after_a_panic_too() {
        let threads = Threads::new(2);
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            threads.run(64, &|task, _| assert!(task != 40, "meant to fail"));
        }));
        assert!(failed.is_err() && denormals_exist());
    }

    #[test]
    fn guards_nest() {
        let outer = AsZeros::new();
        drop(AsZeros::new());
        assert!(!denormals_exist());
        drop(outer);
        assert!(denormals_exist());
    }
}
