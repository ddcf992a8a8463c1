//! The table of kernels: sources, and their entry points with the threads per block.

/// A `.cu` file.
#[derive(Debug)]
pub struct Source {
    /// File name without extension.
    pub name: &'static str,
    /// Source text; its includes are in [`HEADERS`].
    pub text: &'static str,
    /// Its entry points.
    pub entries: &'static [Entry],
}

/// An entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Name of its [`Source`].
    pub source: &'static str,
    /// Symbol name.
    pub name: &'static str,
    /// Threads per block, always.
    pub threads: u32,
    /// True if spilling registers is an error of `xtask gpu-check`.
    pub no_spill: bool,
}

/// Headers that sources include: names and texts.
pub static HEADERS: [(&str, &str); 5] = [
    ("base.cuh", include_str!("../../kernels/base.cuh")),
    ("math.cuh", include_str!("../../kernels/math.cuh")),
    ("mma.cuh", include_str!("../../kernels/mma.cuh")),
    ("gemm.cuh", include_str!("../../kernels/gemm.cuh")),
    ("flash.cuh", include_str!("../../kernels/flash.cuh")),
];

const fn is_none(marks: &[&str]) -> bool {
    marks.is_empty()
}

/// Few registers survive a function call. `may_spill` marks kernels that keep a word or two of them in memory for that,
/// and are slow for other reasons.
macro_rules! kernels {
    ($($source:ident { $($entry:ident $threads:literal $($may_spill:ident)?),* $(,)? })*) => {
        /// All sources.
        pub static SOURCES: &[Source] = &[$(Source {
            name: stringify!($source),
            text: include_str!(concat!("../../kernels/", stringify!($source), ".cu")),
            entries: &[$($source::$entry),*],
        }),*];
        $(
            /// Entry points of the source of this name.
            #[allow(non_upper_case_globals, missing_docs)]
            pub(super) mod $source {
                use super::Entry;
                $(pub const $entry: Entry = Entry {
                    source: stringify!($source),
                    name: stringify!($entry),
                    threads: $threads,
                    no_spill: super::is_none(&[$(stringify!($may_spill))?]),
                };)*
            }
        )*
    };
}

kernels! {
    plain {
        copy 256, copy_bytes 256, zero_bytes 256, add 256, multiply 256, reciprocal_root 256, scale 256, softcap 256,
        transpose 256
    }
    sums {
        column_chunks 256, add_chunks 256, sum 1024, squares 1024, step_scale 32,
    }
    norm { norm_forward 256, norm_backward_input 256, norm_weight_chunks 256 }
    conv { conv 256, conv_state 256, conv_backward 256, conv_chunks 256 }
    gated { gated_norm 256, gated_norm_backward 256, gated_norm_chunks 256 }
    scan {
        ssd_forward 256 may_spill, ssd_reverse 256 may_spill, ssd_gradients 256 may_spill, ssd_keys 256, ssd_pass 256 may_spill, ssd_advance 256,
        delta_forward 256 may_spill, delta_reverse 256 may_spill, delta_gradients 256 may_spill, delta_keys 256, delta_pass 256 may_spill, delta_advance 256,
    }
    activate { activate 256, activate_backward 256, clamped 256, clamped_backward 256 }
    rope { rope_table 256, rope 256 }
    embed { embed 256, embed_backward 256 }
    blocks { pack_nf4 256, pack_int8 256, unpack 256 }
    loss { cross_entropy 512 }
    distance { row_distance 256 }
    divergence { divergence 512, divergence_of_best 512 }
    optimizer { adamw 256 }
    route { route 128, route_backward 128, router_losses 128 }
    lists {
        expert_counts 256, expert_offsets 1024, expert_order 256, expert_limit 256, weight_bins 256, weight_bounds 256,
        expert_load 256, dispatch 256, set_slots 256, balance_bias 256,
    }
    combine { combine 256, combine_backward 256, combine_weights 256, zero_empty 256 }
    group { group_tables 256, gather_slots 256, scatter_slots 256 }
    gemm_f32 { gemm_f32 256, grouped_f32 256, grouped_weight_f32 256 }
    gemm_bf16 { gemm_bf16 256, grouped_bf16 256, grouped_weight_bf16 256 }
    gemm_f16 { gemm_f16 256, grouped_f16 256, grouped_weight_f16 256 }
    narrow { narrow 256, encode 256, largest_of_sizes 32, largest_by_column 256, sizes 256 }
    sample { random_uniform 256, jitter 256, dropout 256, argmax 512, draw 512, leave_out 256 }
    flash_bf16_64 { flash_bf16_64 128, flash_dq_bf16_64 128, flash_dkv_bf16_64 128 }
    flash_bf16_128 { flash_bf16_128 128, flash_dq_bf16_128 128, flash_dkv_bf16_128 128 }
    flash_f16_64 { flash_f16_64 128, flash_dq_f16_64 128, flash_dkv_f16_64 128 }
    flash_f16_128 { flash_f16_128 128, flash_dq_f16_128 128, flash_dkv_f16_128 128 }
    attention {
        attention 128 may_spill, attention_join 256, attention_delta 256, attention_dq 128 may_spill,
        attention_dkv 128 may_spill, sink_chunks 128, bias_chunks 128 may_spill,
    }
}

impl Source {
    /// The source of this name.
    pub fn named(name: &str) -> Option<&'static Source> {
        SOURCES.iter().find(|source| source.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every entry of the table is in its source text with its threads, and vice versa.
    #[test]
    fn the_table_is_what_the_texts_say() {
        for source in SOURCES {
            // A header's macro may define the entries, which the source instantiates for its types.
            let header = HEADERS.iter().find(|(name, text)| {
                text.contains("#define ENTRIES(") && source.text.contains(&format!("\"{name}\""))
            });
            let text = header.map_or(source.text, |(_, text)| text);
            // Names for which the macro's entries are instantiated.
            let made = source.text.lines().filter_map(|line| line.strip_prefix("ENTRIES("));
            let made: Vec<&str> = made.filter_map(|rest| rest.split(',').next()).collect();
            let declared: Vec<(u32, String)> = text
                .lines()
                .filter_map(|line| line.strip_prefix("ENTRY("))
                .filter_map(|rest| {
                    let (threads, rest) = rest.split_once(") ")?;
                    Some((threads.parse().ok()?, rest.split('(').next()?.to_string()))
                })
                .flat_map(|(threads, name)| match name.strip_suffix("##name") {
                    Some(stem) => made.iter().map(|made| (threads, format!("{stem}{made}"))).collect(),
                    None => vec![(threads, name)],
                })
                .collect();
            let mut expected: Vec<_> =
                source.entries.iter().map(|e| (e.threads, e.name.to_string())).collect();
            let mut declared = declared;
            expected.sort();
            declared.sort();
            assert_eq!(declared, expected, "{}", source.name);
        }
    }

    #[test]
    fn includes_are_headers_of_the_table() {
        let texts = SOURCES.iter().map(|s| s.text).chain(HEADERS.iter().map(|(_, text)| *text));
        for line in texts.flat_map(str::lines).filter(|line| line.starts_with("#include")) {
            let name = line.trim_start_matches("#include").trim().trim_matches('"');
            assert!(HEADERS.iter().any(|(header, _)| *header == name), "{line}");
        }
    }
}
