//! What this machine's processor and its memory give a job.

use fathom_base::memory::Memory;
use fathom_cpu::isa::Isa;

use crate::error::{Result, refuse};

/// The memory budget where the system does not say what there is.
pub const UNKNOWN_MEMORY: u64 = 8 << 30;

/// The most threads that a process may be given.
const MAX_THREADS: usize = 4096;

/// The instruction-set mask that the environment asks for (`FATHOM_ISA`).
///
/// # Errors
/// A name that is none of an instruction set.
pub fn isa_mask() -> Result<Option<Isa>> {
    let Ok(name) = std::env::var("FATHOM_ISA") else { return Ok(None) };
    let names: Vec<&str> = Isa::ALL.iter().map(|isa| isa.name()).collect();
    let isa = Isa::from_name(&name);
    if isa.is_none() {
        refuse!("FATHOM_ISA={name}: not one of {}", names.join(", "));
    }
    Ok(isa)
}

/// A number of threads; for 0 what the environment says (`FATHOM_THREADS`), else all cores.
///
/// # Errors
/// A variable that is no number of threads.
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

/// Nine tenths of the memory that is available now.
pub fn default_budget() -> u64 {
    most(|memory| memory.available_bytes)
}

/// Nine tenths of all memory that this process may use, whatever happens to be free.
pub fn whole_budget() -> u64 {
    most(|memory| memory.total_bytes)
}

fn most(bytes: impl Fn(Memory) -> u64) -> u64 {
    Memory::read().map_or(UNKNOWN_MEMORY, |memory| fathom_tensor::host_share(bytes(memory)))
}
