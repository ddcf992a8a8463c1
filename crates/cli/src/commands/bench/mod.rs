//! `fathom bench`: figures of this machine, one JSON object a line.
//!
//! Random operands, one warm-up, medians of repeats. While other processes compute, a row says `"loaded":true`: such a
//! figure judges nothing.

mod attention;
mod curate;
mod decode;
mod formats;
mod gemm;
mod link;
mod load;
mod mesh;
mod ops;
mod profile;
mod random;
mod row;
mod save;
mod step;
mod watch;

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use fathom_cpu::Cpu;
use fathom_cpu::isa::Isa;
use fathom_model::{LlamaSizes, Spec};
use fathom_tensor::{Category, DType, Device, Tensor};

use crate::args::{Bench, Benchmark};
use crate::device;

/// Lengths of the table of figures.
const TOKENS: [usize; 3] = [2048, 8192, 16384];

/// Runs the verb.
pub fn run(args: &Bench) -> Result<()> {
    match args.what.unwrap_or(Benchmark::Profile) {
        Benchmark::Gemm => gemm::run(args),
        Benchmark::Attention => attention::run(args),
        Benchmark::Step => step::run(args),
        Benchmark::Decode => decode::run(args),
        Benchmark::Load => load::run(args),
        Benchmark::Profile => profile::run(args),
        Benchmark::Curate => curate::run(args),
        Benchmark::Save => save::run(args),
        Benchmark::Formats => formats::run(args),
    }
}

/// The processor in two guises: itself, for what only it can do, and as a device.
struct Bed {
    cpu: Arc<Cpu>,
    device: Device,
    dtype: DType,
}

impl Bed {
    fn new(args: &Bench) -> Result<Bed> {
        let cpu = Arc::new(Cpu::new(args.threads, isa(args)?));
        let device = Device::new(cpu.clone(), device::default_budget());
        Ok(Bed { cpu, device, dtype: device::dtype(&args.dtype)? })
    }

    fn threads(&self) -> usize {
        self.device.machine.profile().threads
    }

    fn scratch(&self, bytes: u64) -> Tensor {
        self.device.empty(1, bytes as usize, DType::U8, Category::Workspace)
    }

    fn random(&self, rows: usize, cols: usize, seed: u64) -> Tensor {
        let tensor = self.device.empty(rows, cols, self.dtype, Category::Data);
        random::fill(&self.device, &tensor, seed);
        tensor
    }
}

/// The level to stay at or below: the flag, else the environment.
fn isa(args: &Bench) -> Result<Option<Isa>> {
    let Some(name) = &args.isa else { return device::isa_mask() };
    let known = || Isa::ALL.map(Isa::name).join(", ");
    Isa::from_name(name).map(Some).with_context(|| format!("--isa {name}: not one of {}", known()))
}

fn tokens(args: &Bench) -> Result<Vec<usize>> {
    if args.tokens.contains(&0) {
        bail!("--tokens 0: a sequence needs at least one token");
    }
    Ok(if args.tokens.is_empty() { TOKENS.to_vec() } else { args.tokens.clone() })
}

/// The Llama of the flags, for sequences of `tokens`.
fn llama(args: &Bench, tokens: usize) -> Result<Spec> {
    let (heads, kv_heads) = (args.heads, args.kv_heads.unwrap_or((args.heads / 2).max(1)));
    if heads == 0 || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        bail!("--heads {heads} --kv-heads {kv_heads}: query heads must share key heads evenly");
    }
    let head_dim = args.head_dim.first().copied().unwrap_or(args.hidden / heads);
    if head_dim == 0 || !head_dim.is_multiple_of(8) || head_dim > 512 {
        bail!("--head-dim {head_dim} (else --hidden over --heads) must be a multiple of 8 up to 512");
    }
    if [args.hidden, args.layers, args.ffn, args.vocab].contains(&0) {
        bail!("--hidden, --layers, --ffn and --vocab must be at least 1");
    }
    Ok(Spec::llama(LlamaSizes {
        hidden: args.hidden,
        layers: args.layers,
        heads,
        kv_heads,
        head_dim,
        ffn: args.ffn,
        vocab: args.vocab,
        rope_theta: 10_000.0,
        max_positions: tokens,
        tied: false,
    }))
}
