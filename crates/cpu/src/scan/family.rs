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

use super::backward::Task as BackwardTask;
use super::delta;
use super::forward::{self, EndsTask, Task};

/// A family of kernels.
///
/// # Safety
/// Callers of its methods guarantee that the processor has the instruction set, and the contract of the function of the
/// same name.
pub(crate) unsafe trait Family: 'static {
    /// Its vectors.
    type S: Simd;
    /// Its products and packings.
    type U: Unit;
    /// Its functions of single elements.
    type L: Level;
    /// See [`super::forward::task`].
    unsafe fn forward(task: &Task<'_>);
    /// See [`super::backward::chunk_task`].
    unsafe fn backward(task: &BackwardTask<'_>);
    /// See [`super::backward::sweep`].
    unsafe fn sweep(task: &BackwardTask<'_>);
    /// See [`super::forward::ends_task`].
    unsafe fn ends(task: &EndsTask<'_>);
    /// See [`super::delta::task`].
    unsafe fn delta_forward(task: &delta::Task<'_>);
    /// See [`super::delta::unit`].
    unsafe fn delta_backward(task: &delta::Unit<'_>);
}

macro_rules! family {
    ($(#[$doc:meta])* $name:ident, $simd:ty, $unit:ty, $level:ty, $attribute:tt) => {
        $(#[$doc])*
        pub struct $name;
        // SAFETY: the functions are compiled with the features that the vectors need.
        unsafe impl Family for $name {
            type S = $simd;
            type U = $unit;
            type L = $level;
            # $attribute
            unsafe fn forward(task: &Task<'_>) {
                // SAFETY: passed on.
                unsafe { super::forward::task::<$name>(task) }
            }
            # $attribute
            unsafe fn backward(task: &BackwardTask<'_>) {
                // SAFETY: passed on.
                unsafe { super::backward::chunk_task::<$name>(task) }
            }
            # $attribute
            unsafe fn sweep(task: &BackwardTask<'_>) {
                // SAFETY: passed on.
                unsafe { super::backward::sweep::<$name>(task) }
            }
            # $attribute
            unsafe fn ends(task: &EndsTask<'_>) {
                // SAFETY: passed on.
                unsafe { forward::ends_task::<$name>(task) }
            }
            # $attribute
            unsafe fn delta_forward(task: &delta::Task<'_>) {
                // SAFETY: passed on.
                unsafe { delta::task::<$name>(task) }
            }
            # $attribute
            unsafe fn delta_backward(task: &delta::Unit<'_>) {
                // SAFETY: passed on.
                unsafe { delta::unit::<$name>(task) }
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

/// Calls a method of the family for an instruction set.
macro_rules! by_family {
    ($isa:expr, $method:ident($task:expr)) => {
        match $isa {
            $crate::isa::Isa::Portable => {
                <$crate::scan::family::PortableFamily as $crate::scan::family::Family>::$method($task)
            }
            #[cfg(target_arch = "x86_64")]
            $crate::isa::Isa::Avx2 => {
                <$crate::scan::family::Avx2Family as $crate::scan::family::Family>::$method($task)
            }
            #[cfg(target_arch = "x86_64")]
            _ => <$crate::scan::family::Avx512Family as $crate::scan::family::Family>::$method($task),
            #[cfg(not(target_arch = "x86_64"))]
            _ => <$crate::scan::family::PortableFamily as $crate::scan::family::Family>::$method($task),
        }
    };
}
pub(super) use by_family;
