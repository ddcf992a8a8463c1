//! Machines by name, and models from folders.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Once};

use anyhow::{Context, Result, bail};
use fathom_base::memory::Memory;
use fathom_base::{hub, human};
use fathom_cpu::Cpu;
use fathom_cpu::isa::Isa;
use fathom_grad::{Params, StateDisk};
use fathom_model::{HfFolder, Model, Portion, SafeTensors, Source, Spec};
use fathom_tensor::mesh::Mesh;
use fathom_tensor::{DType, Device};
use fathom_text::Tokenizer;
use fathom_text::tokenizer::FILES;
use fathom_train::parallel::Ranks;
use fathom_train::recipe::{Machine, MachineKind, Precision};

use crate::args::On;
use crate::{console, exported, gpu, profiles};

/// The memory budget where the system does not say what there is.
const UNKNOWN_MEMORY: u64 = 8 << 30;

/// The instruction-set mask that the environment asks for (`FATHOM_ISA`).
pub fn isa_mask() -> Result<Option<Isa>> {
    let Ok(name) = std::env::var("FATHOM_ISA") else { return Ok(None) };
    let names: Vec<&str> = Isa::ALL.iter().map(|isa| isa.name()).collect();
    let isa = Isa::from_name(&name);
    if isa.is_none() {
        bail!("FATHOM_ISA={name}: not one of {}", names.join(", "));
    }
    Ok(isa)
}

/// The machine of a flag, as a recipe calls it.
pub fn kind(machine: On) -> MachineKind {
    match machine {
        On::Auto => MachineKind::Auto,
        On::Cpu => MachineKind::Cpu,
        On::Cuda => MachineKind::Cuda,
    }
}

/// A recipe's part of machines for a verb without a recipe.
pub fn on(machine: On) -> Machine {
    Machine { kind: kind(machine), ..Machine::default() }
}

/// The machine that the recipe asks for, with a memory budget: what the recipe says, or most of what is available.
pub fn open(machine: &Machine) -> Result<Device> {
    match gpu::open(machine, Place::ALONE)? {
        Some(opened) => Ok(Device::new(opened.machine, opened.budget)),
        None => cpu(machine),
    }
}

/// The processor with a memory budget: what the recipe says, or most of what is available.
pub fn cpu(machine: &Machine) -> Result<Device> {
    let cpu = Cpu::new(machine.threads, isa_mask()?).with_rates(profiles::cpu_rates(machine, 1)?);
    let budget = machine.memory_bytes.unwrap_or_else(default_budget);
    Ok(Device::new(Arc::new(cpu), budget))
}

/// A rank among those that it shares a machine with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Ranks of the run.
    pub ranks: usize,
    /// Which of the ranks on its machine it is, from 0.
    pub local: usize,
    /// Ranks that run on the same cores.
    pub cores: usize,
    /// Ranks on the same machine.
    pub host: usize,
    /// Ranks that compute in the same memory: a device's, or the machine's.
    pub memory: usize,
    /// Ranks whose files are on the same disk.
    pub disk: usize,
}

impl Place {
    /// Of a run on one rank.
    pub const ALONE: Place = Place { ranks: 1, local: 0, cores: 1, host: 1, memory: 1, disk: 1 };
}

/// One of several ranks: its share of the cores and of the memory.
pub fn cpu_rank(machine: &Machine, mesh: Mesh, place: Place) -> Result<Device> {
    if let Some(opened) = gpu::open(machine, place)? {
        return Ok(Device::on_mesh(opened.machine, opened.budget, mesh));
    }
    let cores = (threads(machine.threads) / place.cores).max(1);
    let cpu = Cpu::new(cores, isa_mask()?).with_rates(profiles::cpu_rates(machine, place.cores)?);
    let budget = machine.memory_bytes.unwrap_or_else(default_budget) / place.host as u64;
    Ok(Device::on_mesh(Arc::new(cpu), budget, mesh))
}

/// A number of threads; 0 for all cores.
pub fn threads(threads: usize) -> usize {
    let all = std::thread::available_parallelism().map_or(1, |n| n.get());
    if threads == 0 { all } else { threads }
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
    static SAID: Once = Once::new();
    Memory::read().map_or_else(
        || {
            SAID.call_once(|| {
                let taken = human::bytes(UNKNOWN_MEMORY);
                console::warn(&format!(
                    "this system does not say how much memory it has; {taken} are taken for it (machine.memory_bytes)"
                ));
            });
            UNKNOWN_MEMORY
        },
        |memory| fathom_tensor::host_share(bytes(memory)),
    )
}

/// The element type of a precision.
pub fn precision(precision: Precision) -> DType {
    match precision {
        Precision::Bf16 => DType::Bf16,
        Precision::F32 => DType::F32,
    }
}

/// The Hugging Face folder of a path: the path itself, or the `model` folder of a run.
pub fn model_folder(path: &Path) -> Result<PathBuf> {
    [path.to_path_buf(), path.join("model")]
        .into_iter()
        .find(|folder| folder.join("config.json").is_file())
        .with_context(|| {
            format!(
                "{}: neither a Hugging Face folder (config.json) nor a run with a `model` folder{}",
                path.display(),
                or_on_the_hub(path)
            )
        })
}

/// The end of a message about a path without a model: what to do if it is a name of the Hugging Face hub.
pub fn or_on_the_hub(path: &Path) -> String {
    hub::advice(path).map(|advice| format!("; {advice}")).unwrap_or_default()
}

/// A model with its weights.
pub struct Loaded {
    /// The architecture.
    pub model: Model,
    /// Its weights.
    pub params: Params,
}

/// Loads a model's weights, streamed, as `dtype` (as stored if `None`).
pub fn load(device: &Device, folder: &Path, dtype: Option<DType>) -> Result<Loaded> {
    load_on(device, folder, dtype, &|_, _| Ok(None), &Ranks::default())
}

/// Opens the disk behind the weights of a model.
pub type OpenDisk<'a> = dyn Fn(&Spec, DType) -> Result<Option<Rc<StateDisk>>> + 'a;

/// As [`load`], with disk behind the weights where `disk` gives one; the rank's part, as `ranks` share it.
pub fn load_on(
    device: &Device,
    folder: &Path,
    dtype: Option<DType>,
    disk: &OpenDisk<'_>,
    ranks: &Ranks,
) -> Result<Loaded> {
    exported::verify(folder)?;
    let opened = fathom_model::open(folder)?;
    if device.mesh.rank() == 0 {
        say_left_out(folder, &opened);
    }
    let dtype = dtype.unwrap_or_else(|| stored_dtype(&opened.source));
    let disk = disk(&opened.spec, dtype)?;
    let portion = portion(device, &opened.spec, ranks)?;
    let (model, mut params) = Model::declare_part(device, &opened.spec, dtype, disk, portion);
    fathom_model::load(device, &model, &mut params, &opened.source)?;
    Ok(Loaded { model, params })
}

/// Says once what of a folder is not read.
pub fn say_left_out(folder: &Path, opened: &HfFolder) {
    static SAID: Once = Once::new();
    if let Some(left_out) = opened.left_out {
        SAID.call_once(|| console::note(&format!("{}: {left_out}", folder.display())));
    }
}

/// A rank's part of a model.
pub fn portion(device: &Device, spec: &Spec, ranks: &Ranks) -> Result<Portion> {
    let portion = ranks.portion(spec, &device.mesh);
    portion.check(spec).map_err(anyhow::Error::msg)?;
    Ok(portion)
}

/// bf16 if every stored tensor is bf16, else f32.
fn stored_dtype(source: &SafeTensors) -> DType {
    let narrow = source.names().iter().all(|name| source.dtype(name) == Some(DType::Bf16));
    if narrow { DType::Bf16 } else { DType::F32 }
}

/// The tokenizer of a model's folder.
pub fn tokenizer(folder: &Path) -> Result<Tokenizer> {
    Ok(Tokenizer::from_dir(folder)?)
}

/// The files of a tokenizer in a folder.
pub fn tokenizer_files(folder: &Path) -> Vec<PathBuf> {
    FILES.map(|name| folder.join(name)).into_iter().filter(|file| file.is_file()).collect()
}
