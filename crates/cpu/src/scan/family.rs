//! The instruction sets that scans are compiled for. All of them multiply f32.

use crate::attention::simd::Simd;
use crate::attention::simd::portable::Portable;
#[cfg(target_arch = "x86_64")]
use crate::attention::simd::{avx2::Avx2, avx512::Avx512};
#[cfg(target_arch = "x86_64")]
use crate::attention::unit::{Avx2Unit, Avx512Unit};
use crate::attention::unit::{PortableUnit, Unit};
#[cfg(target_arch = "x86_64")]
use crate::elementwise::level::Fma;
use crate::elementwise::level::{Level, Plain};

use crate::isa::Isa;

/// The work of one thread, which each family compiles for itself.
pub(crate) trait FamilyTask {
    /// Does the work.
    ///
    /// # Safety
    /// The processor has the family's instruction set, and the task's memory is as the function that made it says.
    unsafe fn run<F: Family>(&self);
}

/// A family of kernels.
///
/// # Safety
/// `run` compiles a task with the features that the vectors need.
pub(crate) unsafe trait Family: 'static {
    /// Its vectors.
    type S: Simd;
    /// Its products and packings.
    type U: Unit;
    /// Its functions of single elements.
    type L: Level;
    /// Runs a task.
    ///
    /// # Safety
    /// That of [`FamilyTask::run`].
    unsafe fn run(task: &impl FamilyTask);
}

macro_rules! family {
    ($(#[$doc:meta])* $name:ident, $simd:ty, $unit:ty, $level:ty, $attribute:tt) => {
        $(#[$doc])*
        pub struct $name;
        // SAFETY: the function is compiled with the features that the vectors need.
        unsafe impl Family for $name {
            type S = $simd;
            type U = $unit;
            type L = $level;
            # $attribute
            unsafe fn run(task: &impl FamilyTask) {
                // SAFETY: passed on.
                unsafe { task.run::<$name>() }
            }
        }
    };
}

family!(
    /// Plain Rust.
    PortableFamily, Portable, PortableUnit, Plain, [inline]
);

#[cfg(target_arch = "x86_64")]
family!(
    /// AVX2 and FMA.
    Avx2Family, Avx2, Avx2Unit, Fma, [target_feature(enable = "avx2,fma")]
);

#[cfg(target_arch = "x86_64")]
family!(
    /// AVX-512.
    Avx512Family,
    Avx512<false>,
    Avx512Unit,
    Fma,
    [target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
);

/// Runs a task by the family for an instruction set.
///
/// # Safety
/// The processor has the instruction set; the task's own contract holds.
pub(crate) unsafe fn run(isa: Isa, task: &impl FamilyTask) {
    // SAFETY: the caller's.
    unsafe {
        match isa {
            Isa::Portable => PortableFamily::run(task),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Avx2Family::run(task),
            #[cfg(target_arch = "x86_64")]
            _ => Avx512Family::run(task),
            #[cfg(not(target_arch = "x86_64"))]
            _ => PortableFamily::run(task),
        }
    }
}
