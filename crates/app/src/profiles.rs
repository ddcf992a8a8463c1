//! Machine profiles for plans, by name or from a file.

use std::path::Path;

use fathom_cpu::isa::Isa;
use fathom_cpu::profile;
use fathom_tensor::{Fabric, Hardware, Line, Profile, Rates, Sheet, gpu, host_share};
use fathom_train::recipe::Machine;

use crate::error::{Context, Result, refuse};
use crate::resources;

/// Returns the profile of a recipe's machine.
///
/// # Errors
/// An unknown name, or an invalid profile file.
pub fn of(machine: &Machine) -> Result<Profile> {
    let isa = Isa::select(resources::isa_mask()?);
    named(&machine.profile, resources::threads(machine.threads)?, isa)
}

/// Resolves `cpu`, the name of a graphics processor, or a file; `threads` and `isa` apply to `cpu`.
fn named(name: &str, threads: usize, isa: Isa) -> Result<Profile> {
    if name == "cpu" {
        let (rates, fabric) = (Some(nominal(threads, isa)), Some(Fabric::threads(NOMINAL_LINE)));
        return Ok(Profile { rates, fabric, ..profile(threads, isa) });
    }
    match gpu::named(name) {
        Some(profile) => Ok(profile),
        None => read(name),
    }
}

/// Returns the rates of this processor for one of `sharers` ranks that share it: those of its profile file, or nominal
/// ones. `None` if the profile is a graphics processor's.
///
/// # Errors
/// Those of [`of`].
pub fn cpu_rates(machine: &Machine, sharers: usize) -> Result<Option<Rates>> {
    let profile = of(machine)?;
    Ok(profile.rates.filter(|_| profile.hardware == Hardware::Processor).map(|rates| rates.among(sharers)))
}

/// Returns one rank's profile, of `ranks`: a graphics processor of its own with the usable share of host memory, or,
/// for threads of one process, a share of the processor.
///
/// # Errors
/// Those of [`of`].
pub fn of_rank(machine: &Machine, ranks: usize) -> Result<Profile> {
    let profile = of(machine)?;
    if profile.hardware == Hardware::Processor {
        return Ok(profile.among(ranks));
    }
    let node = profile.fabric.map_or(ranks, |fabric| fabric.node_ranks.min(ranks)).max(1);
    let given = machine.host_bytes.map(|bytes| bytes / node as u64);
    let host_bytes = given.or(profile.host_bytes.map(host_share));
    Ok(Profile { host_bytes, ..profile })
}

fn read(name: &str) -> Result<Profile> {
    let known = gpu::NAMES.join(", ");
    let text = std::fs::read_to_string(Path::new(name)).with_context(|| {
        format!("machine profile `{name}`: not cpu, {known}, nor a file (fathom bench profile --out FILE)")
    })?;
    let sheet: Sheet = serde_json::from_str(&text)
        .with_context(|| format!("{name}: not a machine profile (fathom bench profile --out FILE)"))?;
    let rates = sheet.rates.unwrap_or_default();
    let needed = [
        ("matmul_bf16_flops_per_s", rates.matmul_bf16_flops_per_s),
        ("matmul_f32_flops_per_s", rates.matmul_f32_flops_per_s),
        ("attention_forward_flops_per_s", rates.attention_forward_flops_per_s),
        ("attention_backward_flops_per_s", rates.attention_backward_flops_per_s),
        ("memory_bytes_per_s", rates.memory_bytes_per_s),
        ("elementwise_bytes_per_s", rates.elementwise_bytes_per_s),
    ];
    if let Some((key, _)) = needed.into_iter().find(|(_, rate)| rate.is_nan() || *rate <= 0.0) {
        refuse!(
            "{name}: rates.{key} must be above zero; measure it with `fathom bench profile --out {name}`"
        );
    }
    let lines = sheet.fabric.iter().flat_map(|fabric| [("node", fabric.node), ("network", fabric.network)]);
    for (key, line) in lines {
        if line.bytes_per_s.is_nan() || line.bytes_per_s <= 0.0 {
            refuse!("{name}: fabric.{key}.bytes_per_s must be above zero");
        }
    }
    if sheet.granule == 0 {
        refuse!("{name}: granule must be at least 1");
    }
    match sheet.name.as_str() {
        "cpu" => {
            let isa = Isa::from_name(&sheet.isa)
                .with_context(|| format!("{name}: isa `{}` is not one of this program's", sheet.isa))?;
            let of = profile(sheet.threads, isa);
            Ok(sheet.profile(&of))
        }
        other => match gpu::named(other) {
            Some(of) => Ok(sheet.profile(&of)),
            None => refuse!("{name}: a profile of `{other}`; known are cpu, {known}"),
        },
    }
}

/// Nominal rate of messages between two threads: near that of a Zen 5 machine with two cores.
const NOMINAL_LINE: Line = Line { bytes_per_s: 8e9, latency_s: 15e-6 };

/// Nominal rates per thread by instruction set, in GFLOP/s of bf16 and f32 products, without a measured profile: for
/// avx512_bf16 near those of a Zen 5 core, for the others estimates. `fathom bench profile --out` measures them.
fn nominal(threads: usize, isa: Isa) -> Rates {
    let (bf16, f32) = match isa.name() {
        "amx" => (1400.0, 120.0),
        "avx512_bf16" => (480.0, 230.0),
        "avx512" => (220.0, 220.0),
        "avx2" => (110.0, 110.0),
        _ => (12.0, 12.0),
    };
    let threads = threads as f64;
    // A few threads saturate the memory.
    let memory = 20e9 * threads.min(8.0);
    Rates {
        matmul_bf16_flops_per_s: bf16 * 1e9 * threads,
        matmul_f32_flops_per_s: f32 * 1e9 * threads,
        attention_forward_flops_per_s: 0.85 * bf16 * 1e9 * threads,
        attention_backward_flops_per_s: 0.9 * bf16 * 1e9 * threads,
        attention_pair_s: 0.0,
        memory_bytes_per_s: memory,
        elementwise_bytes_per_s: 0.7 * memory,
        call_s: 2e-6,
        disk_write_bytes_per_s: 2e9,
        disk_read_bytes_per_s: 3e9,
        host_bytes_per_s: 0.0,
    }
}
