//! Scratch of a library's attention.

use crate::profile::{AttentionSizes, OpDesc};

/// Scratch of one call of cuDNN's attention (observed in 9.19 and 9.26 for a described H200), which takes a few key
/// heads at a time so that it stays bounded.
///
/// Packed documents are described by lists of starts. For those, cuDNN lays out its intermediates like the tensor that
/// they become: the sums like the rows' logarithms, the f32 gradient of the queries like theirs, and the gradients of
/// every query head like those of keys and values, with rows as many times wider (cudnn-frontend,
/// `scaled_dot_product_flash_attention.h`). Packed gradients are therefore made without gaps here and copied to their
/// destination.
///
/// Results that are merged with those of other keys ([`OpDesc::Attention`]'s `partial`) are also made here: outputs
/// with the rows' logarithms, and gradients, packed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionScratch {
    /// Key heads per call of the library.
    pub kv_heads: usize,
    /// Sequences that a plan for packed sequences has room for.
    pub sequences: usize,
    /// Starts and lengths of packed sequences.
    pub lists: u64,
    /// The rows' logarithms of one sequence, head after head, as cuDNN stores them.
    pub lse: u64,
    /// f32 of each query row: the result times its gradient.
    pub sums: u64,
    /// f32 gradients of the queries.
    pub wide: u64,
    /// Gradients of keys, and as many of values, for every query head, if heads share them.
    pub full: u64,
    /// Results to be merged; gradients of the queries of packed sequences, or to be merged.
    pub queries: u64,
    /// Gradients of keys, and as many of values, of packed sequences, or to be merged.
    pub keys: u64,
    /// The engine's own scratch in addition.
    pub own: u64,
    /// Scratch that our own kernels need instead of all that.
    pub fallback: u64,
}

/// Offsets of the parts of [`AttentionScratch`], in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttentionParts {
    /// Starts and lengths.
    pub lists: u64,
    /// The rows' logarithms.
    pub lse: u64,
    /// The rows' sums.
    pub sums: u64,
    /// f32 gradients of the queries.
    pub wide: u64,
    /// Gradients of the queries, the keys, the values; in the forward pass the first place holds the results.
    pub gradients: [u64; 3],
    /// Gradients of keys and of values for every query head. If sequences are not packed, the engine's own scratch
    /// begins here.
    pub full: [u64; 2],
    /// The engine's own scratch.
    pub own: u64,
    /// Total size.
    pub end: u64,
}

/// Limit on the scratch of one call; a gradient, or results to be merged, take no more key heads than fit.
const ATTENTION_LIMIT: u64 = 1 << 30;
/// Alignment of the parts of scratch.
const ATTENTION_ALIGN: u64 = 256;
/// Tensors that have a list of starts: q, k, v, the result, the logarithms, and four gradients.
const ATTENTION_LISTS: u64 = 9;

/// Bytes of a list that cuDNN reads; each begins at a multiple of 16, as the graphs promise.
pub fn attention_list(numbers: usize, number_bytes: usize) -> u64 {
    (numbers * number_bytes).next_multiple_of(16) as u64
}

impl AttentionScratch {
    /// Scratch of a call; `None` if it is not attention.
    pub fn of(op: &OpDesc) -> Option<AttentionScratch> {
        AttentionScratch::within(op, ATTENTION_LIMIT)
    }

    /// Scratch of a call within the bytes that were charged for it or for one with more keys.
    pub fn within(op: &OpDesc, bytes: u64) -> Option<AttentionScratch> {
        let OpDesc::Attention(sizes) = *op else { return None };
        let AttentionSizes { q_tokens, k_tokens, heads, kv_heads, head_dim, slices, backward, .. } = sizes;
        // Libraries take two-byte operands.
        let partial = sizes.partial && sizes.dtype.bytes() == 2;
        // One slice means one document.
        let (sequences, packed) = (slices.max(1).next_power_of_two(), slices > 1);
        let lists = ATTENTION_LISTS * attention_list(sequences + 1, 8) + 2 * attention_list(sequences, 4);
        let group = heads / kv_heads.max(1);
        let of = |kv_heads: usize| {
            let rows = (q_tokens * kv_heads * group) as u64;
            let (columns, keys) = (rows * head_dim as u64, (k_tokens * kv_heads * head_dim) as u64);
            let [sums, wide, full] = match (backward, packed) {
                (false, _) => [0; 3],
                (true, false) => [4 * rows, 4 * columns, 2 * keys * group as u64],
                // Twice the size of two-byte elements: the frontend does not rely on less.
                (true, true) => [4 * (q_tokens * heads) as u64, 4 * columns, 4 * keys * group as u64],
            };
            let [queries, of_keys] = match (backward, packed || partial) {
                (false, _) => [if partial { 2 * columns } else { 0 }, 0],
                (true, true) => [2 * columns, 2 * keys],
                (true, false) => [0; 2],
            };
            AttentionScratch {
                kv_heads,
                sequences,
                lists,
                lse: 4 * rows,
                sums,
                wide,
                full: if group == 1 { 0 } else { full },
                queries,
                keys: of_keys,
                own: 1 << 20,
                fallback: if backward { 4 * (q_tokens * heads) as u64 } else { 0 },
            }
        };
        if !backward && !partial {
            return Some(of(kv_heads));
        }
        // The logarithms of packed rows stay in place, so those of each call's first head lie at a multiple of 16
        // bytes.
        let even = |count: usize| !packed || count == kv_heads || (count * group).is_multiple_of(4);
        let counts = (1..=kv_heads).filter(|count| kv_heads.is_multiple_of(*count) && even(*count));
        let fits = |count: &usize| of(*count).bytes() <= ATTENTION_LIMIT.min(bytes);
        let found = counts.clone().rev().find(fits).or_else(|| counts.clone().next());
        Some(of(found.unwrap_or(kv_heads)))
    }

    /// Total size.
    pub fn bytes(&self) -> u64 {
        self.parts().end.max(self.fallback)
    }

    /// Offsets of the parts.
    pub fn parts(&self) -> AttentionParts {
        let mut at = 0;
        let mut next = |bytes: u64| {
            let start = at;
            at += bytes.next_multiple_of(ATTENTION_ALIGN);
            start
        };
        AttentionParts {
            lists: next(self.lists),
            lse: next(self.lse),
            sums: next(self.sums),
            wide: next(self.wide),
            gradients: [next(self.queries), next(self.keys), next(self.keys)],
            full: [next(self.full), next(self.full)],
            own: next(self.own),
            end: next(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    fn op(
        [q_tokens, k_tokens]: [usize; 2],
        [heads, kv_heads]: [usize; 2],
        slices: usize,
        [partial, backward]: [bool; 2],
    ) -> OpDesc {
        let (head_dim, dtype) = (128, DType::Bf16);
        OpDesc::Attention(AttentionSizes {
            q_tokens,
            k_tokens,
            heads,
            kv_heads,
            head_dim,
            dtype,
            slices,
            partial,
            span: 0,
            backward,
        })
    }

    #[test]
    fn attention_takes_as_many_heads_as_its_bound_allows() {
        let scratch = |tokens, heads, kv_heads, slices| {
            AttentionScratch::of(&op([tokens; 2], [heads, kv_heads], slices, [false, true])).unwrap()
        };
        for (tokens, heads, kv_heads, slices, at_once) in [
            (4096, 64, 8, 1, 8),
            (8192, 64, 8, 1, 8),
            (16_384, 64, 8, 1, 4),
            (131_072, 64, 8, 1, 1),
            (1 << 20, 8, 1, 1, 1),
            (4096, 64, 8, 4, 8),
            (8192, 64, 8, 4, 8),
            (16_384, 64, 8, 4, 4),
            // Logarithms of packed rows begin at multiples of 16 bytes, so four heads with one key head each are the
            // least.
            (131_072, 32, 32, 4, 4),
            (131_072, 28, 4, 4, 4),
            (131_072, 28, 4, 1, 1),
        ] {
            let found = scratch(tokens, heads, kv_heads, slices);
            assert_eq!(found.kv_heads, at_once, "{tokens} tokens, {heads} and {kv_heads} heads, {slices}");
            let columns = (tokens * at_once * heads / kv_heads * 128) as u64;
            let shared = if heads == kv_heads { 0 } else { columns };
            let size = if slices == 1 { 2 } else { 4 };
            assert_eq!((found.wide, found.full), (4 * columns, size * shared));
            let parts = found.parts();
            assert!(parts.lists < parts.lse && parts.lse < parts.sums && parts.sums < parts.wide);
            assert!(parts.wide < parts.gradients[0] && parts.gradients[2] <= parts.full[0]);
            assert!(parts.full[1] <= parts.own);
            assert_eq!(parts.own + found.own, found.bytes());
        }
    }
    #[test]
    fn parts_that_join_others_have_room_and_nothing_else_grows() {
        let of = |slices, how| AttentionScratch::of(&op([8192; 2], [32, 8], slices, how)).unwrap();
        for slices in [1, 4] {
            let [whole, part] = [false, true].map(|partial| of(slices, [partial, false]));
            assert_eq!((whole.queries, whole.kv_heads), (0, 8));
            assert_eq!(part, AttentionScratch { queries: 2 * 8192 * 32 * 128, ..whole });
            let [whole, part] = [false, true].map(|partial| of(slices, [partial, true]));
            let (queries, keys) = (2 * 8192 * 32 * 128, 2 * 8192 * 8 * 128);
            assert_eq!(part, AttentionScratch { queries, keys, ..whole });
            assert_eq!(part == whole, slices > 1, "packed gradients are made there anyway");
        }
        // Long results are made a few heads at a time.
        let long = AttentionScratch::of(&op([1 << 20; 2], [32, 8], 1, [true, false])).unwrap();
        assert!(long.kv_heads < 8 && long.bytes() < (2 << 30));
    }

    #[test]
    fn fewer_keys_than_were_charged_for_need_no_more() {
        for slices in [1, 4] {
            for backward in [false, true] {
                let of = |keys| op([16_384, keys], [64, 8], slices, [true, backward]);
                let charged = AttentionScratch::of(&of(16_384)).unwrap();
                assert_eq!(AttentionScratch::within(&of(16_384), charged.bytes()), Some(charged));
                for keys in [1, 100, 8192, 16_000] {
                    let found = AttentionScratch::within(&of(keys), charged.bytes()).unwrap();
                    assert!(found.bytes() <= charged.bytes() && found.kv_heads >= charged.kv_heads);
                }
            }
        }
    }
}
