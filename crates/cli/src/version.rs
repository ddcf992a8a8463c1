//! Version information: version, commit, cargo features, and the processor's kernels.

use std::sync::OnceLock;

use fathom_cpu::isa::Isa;

/// Cargo features that affect the binary's functions.
const FEATURES: [(&str, bool); 3] = [
    ("curate", cfg!(feature = "curate")),
    ("ballista", cfg!(feature = "ballista")),
    ("mpi", cfg!(feature = "mpi")),
];

/// Commit of the build; unknown for sources without a repository.
const COMMIT: Option<&str> = option_env!("FATHOM_COMMIT");

/// Output of `--version` after the name.
pub fn long() -> &'static str {
    static LONG: OnceLock<String> = OnceLock::new();
    LONG.get_or_init(lines)
}

fn lines() -> String {
    let features: Vec<&str> = FEATURES.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
    let features = if features.is_empty() { "none".to_string() } else { features.join(", ") };
    format!(
        "{}\ncommit: {}\nfeatures: {features}\ninstruction set: {} ({})",
        env!("CARGO_PKG_VERSION"),
        COMMIT.unwrap_or("unknown"),
        Isa::detect().name(),
        std::env::consts::ARCH,
    )
}
