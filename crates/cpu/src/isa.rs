//! Instruction sets that the kernels may use, decided once at start.
//!
//! `FATHOM_ISA=portable|avx2|avx512|avx512_bf16|amx` masks everything above the named level, so that one machine can
//! test every path. A level above the processor's is lowered to the processor's.
#![allow(unsafe_code)]

#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod tiles;

/// Kernel families in ascending order; each implies those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust; also used on aarch64.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL.
    Avx512,
    /// AVX-512 with `vdpbf16ps`.
    Avx512Bf16,
    /// AMX tiles with bf16 products.
    Amx,
}

impl Isa {
    /// All levels, lowest first.
    pub const ALL: [Isa; 5] = [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx];

    /// Name used by `FATHOM_ISA` and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512_bf16",
            Isa::Amx => "amx",
        }
    }

    /// The level with this name, if there is one.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name)
    }

    /// The highest level supported by this processor and kernel.
    #[cfg(target_arch = "x86_64")]
    pub fn detect() -> Isa {
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        if !avx2 {
            Isa::Portable
        } else if !avx512 {
            Isa::Avx2
        } else if !is_x86_feature_detected!("avx512bf16") {
            Isa::Avx512
        } else if !request_amx() && !in_software() {
            Isa::Avx512Bf16
        } else {
            Isa::Amx
        }
    }

    /// The highest level supported by this processor.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn detect() -> Isa {
        Isa::Portable
    }

    /// `detect()`, lowered to `mask` if that is lower.
    pub fn select(mask: Option<Isa>) -> Isa {
        mask.map_or_else(Isa::detect, |mask| Isa::detect().min(mask))
    }
}

/// True if tile instructions are emulated, as in this crate's own tests, so that these run the AMX kernels everywhere.
#[cfg(target_arch = "x86_64")]
fn in_software() -> bool {
    #[cfg(all(test, target_os = "linux"))]
    return tiles::installed();
    #[cfg(not(all(test, target_os = "linux")))]
    false
}

/// Requests AMX tile state from the kernel; returns false if it is not available. The order matters: a tile instruction
/// without the permission kills the process. (Intel SDM vol. 1 ch. 18; Linux `arch_prctl`.)
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn request_amx() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILEDATA: i64 = 18;
    #[target_feature(enable = "xsave")]
    fn xcr0() -> u64 {
        // SAFETY: OSXSAVE was checked by the caller.
        unsafe { _xgetbv(0) }
    }
    if __cpuid(0).eax < 7 || (__cpuid(1).ecx >> 27) & 1 == 0 {
        return false;
    }
    let leaf7 = __cpuid_count(7, 0);
    if (leaf7.edx >> 24) & 1 == 0 || (leaf7.edx >> 22) & 1 == 0 {
        return false;
    }
    // SAFETY: xsave is present because OSXSAVE is set; the system call has no memory operands.
    unsafe {
        (xcr0() >> 17) & 0b11 == 0b11
            && libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0
    }
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn request_amx() -> bool {
    false
}
