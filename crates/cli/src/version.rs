//! Which Fathom this is: version, commit, cargo features, and the kernels that this processor has.

use std::sync::OnceLock;

use fathom_cpu::isa::Isa;

/// Cargo features that change what the binary can do.
const FEATURES: [(&str, bool); 3] = [
    ("curate", cfg!(feature = "curate")),
    ("ballista", cfg!(feature = "ballista")),
    ("mpi", cfg!(feature = "mpi")),
];

/// The commit that this was built from; sources that came without a repository do not know it.
const COMMIT: Option<&str> = option_env!("FATHOM_COMMIT");

/// What `--version` prints after the name.
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
