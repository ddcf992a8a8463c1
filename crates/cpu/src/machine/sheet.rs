//! The data sheet of a CPU: the requirements of its operations, computed without the processor.

use fathom_tensor::{AttentionSizes, OpDesc, Profile};

use super::operands::elem;
use super::{experts, narrow};
use crate::isa::Isa;
use crate::{attention, elementwise, gemm, packed, scan};

/// Granularity of charges: a page.
const GRANULE: u64 = 4096;

/// The data sheet of a CPU with this many threads and this instruction set; such a processor need not be present.
pub fn profile(threads: usize, isa: Isa) -> Profile {
    let (name, isa) = ("cpu".to_string(), isa.name().to_string());
    Profile { name, granule: GRANULE, isa, workspace, ..Profile::portable(threads) }
}

/// Scratch bytes of an operation, from the same functions that the kernels use.
pub(super) fn workspace(profile: &Profile, op: &OpDesc) -> u64 {
    let isa = Isa::from_name(&profile.isa).unwrap_or(Isa::Portable);
    let bytes = match *op {
        OpDesc::MatMul { m, n, k, input, output, .. } => {
            let (a, c) = (elem(input), elem(output));
            gemm::workspace_bytes(isa, profile.threads, &gemm::Shape { m, n, k, a, b: a, b_packed: false }, c)
        }
        OpDesc::WithTerms { m, n, k, input, output, terms } => {
            let (a, c) = (elem(input), elem(output));
            let shape = |n: usize, k: usize| gemm::Shape { m, n, k, a, b: a, b_packed: false };
            let own = |n: usize, k: usize| gemm::workspace_bytes(isa, profile.threads, &shape(n, k), c);
            let terms = || terms.iter().filter(|(n, _)| *n > 0);
            let apart = terms().fold(own(n, k), |most, (n, k)| most.max(own(*n, *k)));
            let sums: Vec<usize> = terms().map(|(_, k)| *k).collect();
            let together = gemm::bytes_with_terms(isa, profile.threads, &shape(n, k), c, &sums);
            apart.max(together.unwrap_or(0))
        }
        OpDesc::Packed { m, n, k, numbers: Some((input, output)) } => {
            let shape = gemm::Shape { m, n, k, a: elem(input), b: gemm::Elem::Bf16, b_packed: false };
            gemm::workspace_bytes(isa, profile.threads, &shape, elem(output))
        }
        OpDesc::Packed { m, k, .. } => packed::workspace_bytes(isa, profile.threads, m, k),
        OpDesc::PackedGrouped { rows, inner } => {
            packed::experts_workspace_bytes(isa, profile.threads, rows, inner)
        }
        OpDesc::Narrow { .. } => narrow::workspace(isa, profile.threads, op),
        OpDesc::Grouped { .. } => experts::workspace(isa, profile.threads, op),
        OpDesc::GatedNorm { rows, cols } => elementwise::gated_norm_workspace(rows, cols),
        OpDesc::Ssd { rows, heads, width, groups, state, places, backward } => {
            let sizes = scan::Sizes { heads, width, groups, state, task_heads: scan::TASK_HEADS };
            if backward {
                scan::bytes_backward(profile.threads, &sizes, [rows, places])
            } else {
                scan::bytes_forward(profile.threads, &sizes)
            }
        }
        OpDesc::Delta { rows, key_heads, heads, key, value, passes, backward } => {
            let further = if passes && !backward { key } else { 0 };
            let sizes = scan::DeltaSizes { key_heads, heads, key, value, further };
            if backward {
                scan::delta_bytes_backward(profile.threads, &sizes, rows)
            } else {
                scan::delta_bytes_forward(profile.threads, &sizes)
            }
        }
        OpDesc::Attention(sizes) => {
            let AttentionSizes { q_tokens, k_tokens, heads, kv_heads, head_dim, span, slices, .. } = sizes;
            let shape = attention::Shape { q_tokens, k_tokens, heads, kv_heads, head_dim, span };
            let dtype = elem(sizes.dtype);
            if sizes.backward {
                attention::workspace_bytes_backward(isa, profile.threads, &shape, dtype, slices)
            } else {
                attention::workspace_bytes_forward(isa, profile.threads, &shape, dtype, slices)
            }
        }
    };
    bytes as u64
}
