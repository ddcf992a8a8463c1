//! Assembly of a machine from the libraries found.

use std::sync::{Arc, Mutex};

use fathom_tensor::{Hardware, Profile, gpu};

use super::Cuda;
use super::call_counters::CallCounters;
use crate::blas::{CublasLt, GroupedProducts, Products, why_no_groups};
use crate::driver::{Driver, Facts, Real};
use crate::kernels::SCRATCH_BYTES;
use crate::libs::{Library, Probe, mapped};
use crate::memory::{Reads, Stamps, Streams, Writes};
use crate::programs::{Compiler, Programs, RunTime, cache_folder};
use crate::sdpa::{Attend, Cudnn};
use crate::{Error, Result};

/// The profile of a device: that of its chip if known, with this device's memory.
pub fn profile(facts: &Facts) -> Profile {
    let lower = facts.name.to_lowercase();
    let known = gpu::NAMES.iter().find(|name| lower.contains(*name)).and_then(|name| gpu::named(name));
    let (major, minor) = facts.capability;
    let other = Profile {
        name: lower.replace(' ', "-"),
        hardware: Hardware::Graphics,
        granule: gpu::GRANULE,
        host_bytes: None,
        rates: None,
        portions: gpu::portions(facts.memory_bytes),
        workspace: gpu::workspace,
        ..Profile::portable(facts.multiprocessors)
    };
    Profile {
        threads: facts.multiprocessors,
        isa: format!("sm_{major}{minor}"),
        memory_bytes: Some(facts.memory_bytes),
        ..known.unwrap_or(other)
    }
}

/// Libraries to use where they support an operation.
pub(crate) struct MachineLibraries {
    pub products: Option<Arc<dyn Products>>,
    /// The library, or the reason that there is none.
    pub grouped: std::result::Result<Arc<dyn GroupedProducts>, String>,
    pub attend: Option<Arc<dyn Attend>>,
}

impl Default for MachineLibraries {
    fn default() -> MachineLibraries {
        MachineLibraries { products: None, grouped: Err(String::new()), attend: None }
    }
}

/// Environment variable that selects attention's implementation: `cudnn` (default) or `kernels`.
const ATTENTION: &str = "FATHOM_CUDA_ATTENTION";

/// Environment variable that selects products by expert: `cublaslt` (default) or `kernels`.
const EXPERTS: &str = "FATHOM_CUDA_EXPERTS";

fn by_cudnn(said: Option<String>) -> Result<bool> {
    by_library(ATTENTION, "cudnn", said, "cudnn, or kernels to do without cuDNN")
}

fn by_groups(said: Option<String>) -> Result<bool> {
    by_library(EXPERTS, "cublaslt", said, "cublaslt, or kernels to do without its groups")
}

fn by_library(name: &'static str, library: &str, said: Option<String>, wanted: &'static str) -> Result<bool> {
    match said.as_deref() {
        None | Some("") => Ok(true),
        Some(word) if word == library => Ok(true),
        Some("kernels") => Ok(false),
        Some(other) => Err(Error::Variable { name, value: other.into(), wanted }),
    }
}

/// Starts cuDNN; if it fails, attention is slower and everything else unchanged.
fn cudnn(facts: &Facts) -> Option<Arc<dyn Attend>> {
    match Cudnn::new(facts.capability) {
        Ok(cudnn) => Some(Arc::new(cudnn)),
        Err(error) => {
            log::warn!("cuDNN does not start, kernels of our own attend: {error}");
            None
        }
    }
}

impl Cuda {
    /// Opens a device with the libraries that were found. All ranks that use this choose the same algorithms for the
    /// same products, and so get the same bits.
    ///
    /// # Errors
    /// If the device or a library refuses, with the reason.
    pub fn open(probe: &Probe, ordinal: usize) -> Result<Cuda> {
        Cuda::of(probe, ordinal, |_| None)
    }

    /// The same for a single rank: large products are measured when they first occur, and the fastest algorithm is
    /// used, which may differ from run to run.
    ///
    /// # Errors
    /// See [`Cuda::open`].
    pub fn open_alone(probe: &Probe, ordinal: usize) -> Result<Cuda> {
        Cuda::of(probe, ordinal, |driver| Some(driver.clone()))
    }

    fn of(
        probe: &Probe,
        ordinal: usize,
        measures: impl FnOnce(&Arc<dyn Driver>) -> Option<Arc<dyn Driver>>,
    ) -> Result<Cuda> {
        if let Some(why) = &probe.why_not {
            return Err(Error::NoDevice(why.clone()));
        }
        let nvrtc = probe.libraries.iter().find(|found| found.library == Library::Nvrtc);
        let path = nvrtc.and_then(|found| found.path.clone());
        let path = path.ok_or_else(|| Error::NoDevice("NVRTC was not looked for".into()))?;
        let driver: Arc<dyn Driver> = Arc::new(Real::open(ordinal)?);
        let profile = profile(driver.facts());
        let products = Arc::new(CublasLt::new(gpu::MATMUL_SCRATCH, measures(&driver))?);
        let grouped: std::result::Result<Arc<dyn GroupedProducts>, String> =
            if by_groups(std::env::var(EXPERTS).ok())? {
                why_no_groups(driver.facts().capability).map(|()| products.clone() as _)
            } else {
                Err(String::new())
            };
        let attend = if probe.has(Library::Cudnn) && by_cudnn(std::env::var(ATTENTION).ok())? {
            cudnn(driver.facts())
        } else {
            None
        };
        let parts = MachineLibraries { products: Some(products), grouped, attend };
        for library in [Library::CublasLt, Library::Cudnn] {
            if let copies @ [_, _, ..] = &*mapped(library.file()) {
                log::warn!(
                    "{} is open {} times, as something brought a copy of its own: {copies:?}; the checked one is called",
                    library.name(),
                    copies.len()
                );
            }
        }
        Cuda::with(driver, profile, Box::new(RunTime::open(&path)?), parts)
    }

    /// Assembles a machine from these parts.
    ///
    /// # Errors
    /// If the driver refuses streams or memory.
    pub(crate) fn with(
        driver: Arc<dyn Driver>,
        profile: Profile,
        compiler: Box<dyn Compiler>,
        parts: MachineLibraries,
    ) -> Result<Cuda> {
        let MachineLibraries { products, grouped, attend } = parts;
        let scratch = driver.allocate(SCRATCH_BYTES)?;
        let streams = Arc::new(Streams::new(driver.clone())?);
        let reads = Arc::new(Reads::new(streams.clone())?);
        let writes = Writes::new(streams.clone())?;
        let cache = if cfg!(test) { None } else { cache_folder() };
        let programs = Programs::new(driver, compiler, cache);
        let (stamps, counters, said) = (Stamps::default(), CallCounters::default(), Mutex::default());
        Ok(Cuda {
            profile,
            streams,
            reads,
            writes,
            programs,
            products,
            grouped,
            attend,
            scratch,
            stamps,
            counters,
            said,
        })
    }
}

#[cfg(test)]
mod tests {
    use fathom_tensor::{AttentionSizes, DType, OpDesc};

    use super::*;
    use crate::kernels;

    #[test]
    fn attention_and_experts_go_where_the_environment_says() {
        let by = |said: &str| by_cudnn(Some(said.to_string()));
        assert!(by_cudnn(None).unwrap() && by("cudnn").unwrap() && !by("kernels").unwrap());
        let error = by("Kernels").unwrap_err().to_string();
        assert!(error.contains("FATHOM_CUDA_ATTENTION") && error.contains("Kernels"), "{error}");
        let by = |said: &str| by_groups(Some(said.to_string()));
        assert!(by("").unwrap() && by("cublaslt").unwrap() && !by("kernels").unwrap());
        assert!(by("cudnn").unwrap_err().to_string().contains("FATHOM_CUDA_EXPERTS"));
    }

    #[test]
    fn a_device_has_the_sheet_of_its_chip() {
        let facts = |name: &str| Facts {
            name: name.into(),
            capability: (9, 0),
            multiprocessors: 114,
            memory_bytes: 7,
            driver: 13_000,
            virtual_memory: true,
            pci: [0; 3],
        };
        let known = profile(&facts("NVIDIA H200"));
        assert_eq!((known.name.as_str(), known.memory_bytes, known.threads), ("h200", Some(7), 114));
        assert!(known.rates.is_some());
        let other = profile(&facts("NVIDIA A100-SXM4-80GB"));
        assert_eq!((other.name.as_str(), other.granule), ("nvidia-a100-sxm4-80gb", known.granule));
        assert!(other.rates.is_none());
    }

    #[test]
    fn plans_charge_at_least_what_kernels_take() {
        let sheet = gpu::named("h200").expect("a known device");
        for (tokens, slots) in [(1, 1), (1, 8), (127, 6), (4096, 8), (100_000, 1)] {
            for weight in [false, true] {
                let (input, output) = (DType::Bf16, DType::F32);
                let op = OpDesc::Grouped { tokens, slots, inner: 64, out: 64, input, output, weight };
                let taken =
                    kernels::grouped_scratch_bytes(tokens, slots, fathom_tensor::MOST_EXPERTS, weight);
                assert!(sheet.workspace(&op) >= taken, "{op:?} takes {taken}");
            }
        }
        for (q_tokens, heads, kv_heads, head_dim) in
            [(1, 128, 128, 8), (100_000, 128, 128, 64), (4096, 64, 8, 128)]
        {
            for backward in [false, true] {
                let (k_tokens, dtype, slices) = (q_tokens, DType::Bf16, 3);
                let op = OpDesc::Attention(AttentionSizes {
                    q_tokens,
                    k_tokens,
                    heads,
                    kv_heads,
                    head_dim,
                    dtype,
                    slices,
                    partial: backward,
                    span: 0,
                    backward,
                });
                let taken = kernels::attention_scratch_bytes(&op);
                assert!(sheet.workspace(&op) >= taken, "{op:?} takes {taken}");
            }
        }
    }
}
