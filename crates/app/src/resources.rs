//! Processor and memory that this machine offers a job.

use fathom_base::memory::Memory;
use fathom_cpu::isa::Isa;

use crate::error::{Result, refuse};

/// Memory budget if the system does not report its memory.
pub const UNKNOWN_MEMORY: u64 = 8 << 30;

/// Maximum number of threads of a process.
const MAX_THREADS: usize = 4096;

/// Returns the instruction set that the environment asks for (`FATHOM_ISA`).
///
/// # Errors
/// An unknown name.
pub fn isa_mask() -> Result<Option<Isa>> {
    let Ok(name) = std::env::var("FATHOM_ISA") else { return Ok(None) };
    let names: Vec<&str> = Isa::ALL.iter().map(|isa| isa.name()).collect();
    let isa = Isa::from_name(&name);
    if isa.is_none() {
        refuse!("FATHOM_ISA={name}: not one of {}", names.join(", "));
    }
    Ok(isa)
}

/// Returns the number of threads; for 0, that of the environment (`FATHOM_THREADS`), else one per core.
///
/// # Errors
/// A variable that is not a number of threads.
pub fn threads(threads: usize) -> Result<usize> {
    if threads > 0 {
        return Ok(threads);
    }
    let Ok(text) = std::env::var("FATHOM_THREADS") else {
        return Ok(std::thread::available_parallelism().map_or(1, |n| n.get()));
    };
    match text.parse() {
        Ok(threads @ 1..=MAX_THREADS) => Ok(threads),
        _ => refuse!("FATHOM_THREADS={text}: give a number of threads, from 1 to {MAX_THREADS}"),
    }
}

/// Returns nine tenths of the memory that is available now.
pub fn default_budget() -> u64 {
    most(|memory| memory.available_bytes)
}

/// Returns nine tenths of all memory that this process may use, whether or not it is free now.
pub fn whole_budget() -> u64 {
    most(|memory| memory.total_bytes)
}

fn most(bytes: impl Fn(Memory) -> u64) -> u64 {
    Memory::read().map_or(UNKNOWN_MEMORY, |memory| fathom_tensor::host_share(bytes(memory)))
}
