//! The table of kernels: the micro-kernel and the panel layout for an instruction set and a pair of storage types.
#![allow(unsafe_code)]

use super::kernel::{Kind, nothing};
use super::{Elem, portable};
use crate::isa::Isa;

/// Bytes of workspace for [`Kind::slim`].
pub(super) fn slim_bytes(n: usize, k: usize) -> usize {
    n.next_multiple_of(16) * k.next_multiple_of(2) * 2 + 64
}

static PORTABLE: Kind = Kind {
    mr: portable::MR,
    nr: portable::NR,
    unit: 1,
    kc: 256,
    size: 4,
    block: (128, 256),
    keep: 0,
    edges: (14, 14),
    group: 4,
    pack_first_bytes: 0,
    pack_a: portable::pack_a,
    pack_b: portable::pack_b,
    micro: portable::micro,
    prefetch_lines: 0,
    enter: nothing,
    leave: nothing,
    load: super::block::load,
    store: super::block::store,
    round: None,
    stream_bytes: usize::MAX,
    few: None,
    slim: None,
    few_widens: false,
};

/// The kernel for operands stored as `a` and `b`. Two bf16 operands use a bf16 unit if there is one; everything else is
/// widened to f32 in the panels.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn kind(_isa: Isa, _a: Elem, _b: Elem) -> &'static Kind {
    &PORTABLE
}

/// The kernel for operands stored as `a` and `b`. Two bf16 operands use a bf16 unit if there is one; everything else is
/// widened to f32 in the panels.
#[cfg(target_arch = "x86_64")]
pub(super) fn kind(isa: Isa, a: Elem, b: Elem) -> &'static Kind {
    let both_bf16 = a == Elem::Bf16 && b == Elem::Bf16;
    match isa {
        Isa::Portable => &PORTABLE,
        Isa::Avx2 => &super::avx2::KIND,
        Isa::Amx if both_bf16 => &super::amx::KIND,
        Isa::Avx512Bf16 if both_bf16 => &super::avx512::KIND_BF16,
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => &super::avx512::KIND_F32,
    }
}
