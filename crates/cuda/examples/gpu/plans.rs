//! Builds cuDNN's plans of every case for described devices, including its compiler.

use std::time::Instant;

use fathom_cuda::libs::{Library, Probe, Search, probe};
use fathom_cuda::nccl::Nccl;
use fathom_cuda::sdpa::{Case, Element, Plan, Target, uid};
use fathom_tensor::gpu::AttentionScratch;
use fathom_tensor::{AttentionSizes, DType, OpDesc};

use super::Lines;

/// cuDNN's description of an H200.
const H200: &str = include_str!("device-h200.json");

/// Sizes of a case: tokens, query heads, key heads, columns per head.
type Sizes = [i64; 4];

/// One sequence with contiguous rows, attending causally.
fn plain([tokens, heads, kv_heads, head_dim]: Sizes) -> Case {
    Case::causal([heads, kv_heads], tokens, head_dim)
}

/// The layout of attention in a block: q, k and v adjacent in one tensor, and their gradients in another; packed
/// gradients have separate tensors.
fn fused(mut case: Case) -> Case {
    let stride = (case.heads + 2 * case.kv_heads) * case.head_dim;
    let gradients = if case.packed { &[][..] } else { &[uid::DQ, uid::DK, uid::DV] };
    for number in [uid::Q, uid::K, uid::V].iter().chain(gradients) {
        case.strides.set(*number, stride as usize);
    }
    case
}

/// Concatenated documents: rows' logarithms have rows of all heads.
fn packed(case: Case, sequences: i64) -> Case {
    let mut case = Case { sequences, packed: true, ..case };
    case.strides.set(uid::LSE, case.heads as usize);
    case
}

/// A few heads of a tensor with more.
fn of_more(mut case: Case, heads: i64) -> Case {
    if case.packed {
        case.strides.set(uid::LSE, heads as usize);
    }
    for number in [uid::Q, uid::OUT, uid::DOUT] {
        case.strides.set(number, (heads * case.head_dim) as usize);
    }
    case
}

/// Steps of context parallelism, whose results are merged with others, with 8192 tokens per rank.
fn parts() -> Vec<(&'static str, Case)> {
    let own = plain([8192, 32, 8, 128]);
    let all = |q_tokens, k_tokens| Case { q_tokens, k_tokens, causal: false, ..own };
    let documents = packed(own, 4);
    let narrow = plain([8192, 32, 8, 64]);
    let ring = [
        ("own keys", own),
        ("the first half of a rank's keys", all(8192, 4096)),
        ("a rank's keys, the second half of queries", all(4096, 8192)),
        ("the second half of queries, heads of 64 columns", Case { q_tokens: 4096, causal: false, ..narrow }),
        (
            "the second half of queries, heads of 256 columns",
            Case { q_tokens: 4096, causal: false, ..plain([8192, 16, 2, 256]) },
        ),
        ("the second half of queries, f16", Case { element: Element::F16, ..all(4096, 8192) }),
        (
            "the second half of queries, 16 heads that share nothing",
            Case { q_tokens: 4096, causal: false, ..plain([8192, 16, 16, 128]) },
        ),
        (
            "the second half of 131072 queries, one key head of 8",
            Case { q_tokens: 65_536, causal: false, ..plain([131_072, 8, 1, 128]) },
        ),
        ("a chunk of gathered keys", Case { q_tokens: 4096, k_tokens: 4096, ..own }),
        ("gathered keys before it", all(4096, 28_672)),
        ("documents, own keys", documents),
        ("documents, keys of another rank", Case { causal: false, ..documents }),
        ("64 documents, keys of another rank", Case { sequences: 64, causal: false, ..documents }),
        ("documents, gathered keys", Case { k_tokens: 65_536, causal: false, ..documents }),
        ("documents, own keys, window", Case { window: true, ..documents }),
        ("documents, heads of 64", Case { causal: false, ..packed(narrow, 4) }),
        ("documents, heads of 256", Case { causal: false, ..packed(plain([8192, 16, 2, 256]), 4) }),
        (
            "documents, heads that share nothing",
            Case { causal: false, ..packed(plain([8192, 16, 16, 128]), 4) },
        ),
    ];
    ring.map(|(name, case)| (name, of_ring(case))).to_vec()
}

/// The queries lie in one tensor with the keys; everything else has separate rows.
fn of_ring(mut case: Case) -> Case {
    let stride = (case.heads + 2 * case.kv_heads) * case.head_dim;
    case.strides.set(uid::Q, stride as usize);
    case
}

/// Steps under a window: a rank's own chunks, and earlier keys of which some are out of reach, in chunks of 512 tokens
/// and larger ones.
fn windows() -> Vec<(&'static str, Case)> {
    let own = plain([8192, 32, 8, 128]);
    let left = |of: Case, q_tokens, k_tokens| Case { q_tokens, k_tokens, causal: false, window: true, ..of };
    let chunks = |of: Case, keys| Case { sequences: 64, ..packed(left(of, 512, keys), 64) };
    let narrow = plain([8192, 32, 8, 64]);
    let wide = plain([8192, 16, 2, 256]);
    let apart = plain([8192, 16, 16, 128]);
    let steps = [
        ("64 own chunks, window", Case { causal: true, ..chunks(own, 512) }),
        ("keys before 64 chunks, window", chunks(own, 512)),
        ("gathered keys before 64 chunks, window", chunks(own, 4096)),
        ("keys before 64 chunks, window, f16", Case { element: Element::F16, ..chunks(own, 512) }),
        ("keys before 64 chunks, window, heads of 64", chunks(narrow, 512)),
        ("keys before 64 chunks, window, heads of 256", chunks(wide, 512)),
        ("keys before 64 chunks, window, heads that share nothing", chunks(apart, 512)),
        (
            "keys before 8 of 131072 tokens, one key head of 8",
            packed(left(plain([131_072, 8, 1, 128]), 8192, 8192), 8),
        ),
        ("an own chunk, window", Case { q_tokens: 4096, k_tokens: 4096, window: true, ..own }),
        ("keys before a chunk, window of 1024", left(own, 1023, 1023)),
        ("a chunk of keys, window of more", left(own, 3000, 4096)),
        ("keys before a chunk, window, f16", Case { element: Element::F16, ..left(own, 1023, 1023) }),
        ("keys before a chunk, window, heads of 64", left(narrow, 1023, 1023)),
        ("keys before a chunk, window, heads of 256", left(wide, 1023, 1023)),
        ("keys before a chunk, window, heads that share nothing", left(apart, 1023, 1023)),
    ];
    steps.map(|(name, case)| (name, of_ring(case))).to_vec()
}

fn cases() -> Vec<(&'static str, Case)> {
    let gqa = plain([4096, 32, 8, 128]);
    let documents = packed(Case { q_tokens: 8192, k_tokens: 8192, ..gqa }, 4);
    let narrow = plain([4096, 32, 8, 64]);
    vec![
        ("causal, 32 and 8 heads", gqa),
        ("q, k and v in one tensor", fused(gqa)),
        ("f16", Case { element: Element::F16, ..gqa }),
        ("everybody to everybody", Case { causal: false, ..gqa }),
        ("16 heads that share nothing", plain([4096, 16, 16, 128])),
        ("window of 1024", fused(Case { window: true, ..gqa })),
        ("4 sequences in 8192 tokens", documents),
        ("the same in one tensor", fused(documents)),
        ("the same with a window", fused(Case { window: true, ..documents })),
        ("64 sequences", fused(Case { sequences: 64, ..documents })),
        ("1024 sequences of at most 8192 in 131072 tokens", fused(Case { sequences: 1024, ..documents })),
        ("256 sequences of at most 131072", fused(packed(plain([131_072, 8, 2, 128]), 256))),
        ("heads of 64 columns", fused(narrow)),
        ("heads of 64, packed", fused(packed(narrow, 4))),
        ("16 heads that share nothing, packed", fused(packed(plain([4096, 16, 16, 128]), 4))),
        ("131072 tokens in 8 sequences, some heads", of_more(packed(plain([131_072, 8, 2, 128]), 8), 32)),
        ("a prompt of at most 512 tokens", fused(packed(plain([512, 32, 8, 64]), 1))),
        ("heads of 96 columns", fused(plain([4096, 32, 32, 96]))),
        ("heads of 256 columns", fused(plain([4096, 16, 2, 256]))),
        ("131072 tokens, one key head of 8", of_more(plain([131_072, 8, 1, 128]), 64)),
        ("1048576 tokens, one key head of 8", of_more(plain([1 << 20, 8, 1, 128]), 64)),
        ("a length of no power", fused(plain([4095, 32, 8, 128]))),
        ("keys of another rank", Case { q_tokens: 2048, k_tokens: 8192, causal: false, ..gqa }),
    ]
}

/// Bytes the engine may use for itself, by the formula that plans are charged with.
fn allowed(case: &Case, backward: bool) -> u64 {
    let op = OpDesc::Attention(AttentionSizes {
        q_tokens: case.q_tokens as usize,
        k_tokens: case.k_tokens as usize,
        heads: case.heads as usize,
        kv_heads: case.kv_heads as usize,
        head_dim: case.head_dim as usize,
        dtype: DType::Bf16,
        slices: case.sequences as usize,
        partial: false,
        span: 0,
        backward,
    });
    let allowed = |scratch: AttentionScratch| {
        // A case is already a group of heads, and the rest that its graph does not name is the engine's.
        let shared = (case.k_tokens * case.heads * case.head_dim * 2) as u64;
        let own = if case.packed || !backward || case.heads == case.kv_heads { 0 } else { 2 * shared };
        scratch.own + own
    };
    AttentionScratch::of(&op).map_or(0, allowed)
}

/// Checks that NCCL has every function that is called and returns a communicator id, which needs no device.
fn nccl(lines: &mut Lines, found: &Probe) {
    let library = found.libraries.iter().find(|found| found.library == Library::Nccl);
    match library.and_then(|found| found.path.as_ref().zip(found.version.as_ref())) {
        None => lines.say("NCCL", true, "skipped: it is not there"),
        Some((path, version)) => {
            let named = Nccl::open(path).and_then(|nccl| nccl.unique_id());
            let ok = named.as_ref().is_ok_and(|id| id.0.iter().any(|byte| *byte != 0));
            lines.say("NCCL", ok, named.err().map_or_else(|| version.clone(), |error| error.to_string()));
        }
    }
}

/// Builds all plans.
pub fn run(lines: &mut Lines) {
    let found = probe(&Search::from_environment(), true);
    nccl(lines, &found);
    let Some(cudnn) = found.libraries.iter().find(|found| found.library == Library::Cudnn) else { return };
    if let Some(problem) = &cudnn.problem {
        return lines.say("cuDNN", false, problem);
    }
    lines.say("cuDNN", true, cudnn.version.clone().unwrap_or_default());
    let target = match Target::described(H200) {
        Ok(target) => target,
        Err(error) => return lines.say("a described H200", false, error.to_string()),
    };
    for (name, case) in cases().into_iter().chain(parts()).chain(windows()) {
        for (direction, backward) in [("forward", false), ("backward", true)] {
            let started = Instant::now();
            let graph = if backward { case.backward() } else { case.forward() };
            let (ok, text) = match graph.and_then(|graph| Plan::new(graph, &target)) {
                Ok(plan) => {
                    let allowed = allowed(&case, backward);
                    let seconds = started.elapsed().as_secs_f64();
                    let text = format!(
                        "engine {} tried, scratch {} of {allowed} bytes, {seconds:.2} s",
                        plan.tried, plan.workspace_bytes
                    );
                    (plan.workspace_bytes <= allowed, text)
                }
                Err(error) => (false, error.to_string()),
            };
            lines.say(format!("{name}, {direction}"), ok, text);
        }
    }
}
