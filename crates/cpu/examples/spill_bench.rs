//! The disk behind the memory: GB/s of the spill engine compared with `dd` with direct IO on the same folder.
//!
//! ```text
//! cargo run --release -p fathom-cpu --example spill_bench -- [FOLDER] [MIB] [REPEATS]
//! ```
//!
//! Every repeat runs dd and each way of spilling in turn; the medians are printed. Values are bf16, 64 MiB each, as
//! plain rows (no staging), as a strided view (staged), and in fp8 blocks (bytes of the tensor, not of the file).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use fathom_cpu::Cpu;
use fathom_tensor::spill::{Codec, Options, Spill, Tag};
use fathom_tensor::{Category, DType, Device, Tensor};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const VALUE: usize = 64 << 20;
const COLS: usize = 4096;

/// Incompressible bytes: disks of virtual machines write zeros several times faster than anything else.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..len / 8).flat_map(|_| next()).collect()
}

/// Runs dd to and from a preallocated file, like a spill file.
struct Dd {
    source: PathBuf,
    file: PathBuf,
}

impl Dd {
    /// The source lies in memory if the system has such a folder.
    fn new(folder: &Path, count: usize) -> Result<Dd> {
        let memory = Path::new("/dev/shm");
        let source = if memory.is_dir() { memory } else { folder }.join("spill_bench.source");
        let dd = Dd { source, file: folder.join("spill_bench.dd") };
        let mut out = std::fs::File::create(&dd.source)?;
        for value in 0..count {
            std::io::Write::write_all(&mut out, &noise(value as u64 + 1, VALUE))?;
        }
        dd.run(true)?;
        Ok(dd)
    }

    /// Seconds of one pass.
    fn run(&self, write: bool) -> Result<f64> {
        let ends = if write {
            [format!("if={}", self.source.display()), format!("of={}", self.file.display())]
        } else {
            [format!("if={}", self.file.display()), "of=/dev/null".to_string()]
        };
        let flags: &[&str] = if write { &["oflag=direct", "conv=notrunc"] } else { &["iflag=direct"] };
        let began = Instant::now();
        let output = Command::new("dd").args(ends).args(flags).arg("bs=4M").output()?;
        let seconds = began.elapsed().as_secs_f64();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        Ok(seconds)
    }
}

impl Drop for Dd {
    fn drop(&mut self) {
        for file in [&self.source, &self.file] {
            if let Err(error) = std::fs::remove_file(file) {
                eprintln!("cannot remove {}: {error}", file.display());
            }
        }
    }
}

/// Seconds to write and to read all values, several in flight.
fn pass(device: &Device, spill: &Spill, tensors: &[Tensor], codec: Codec) -> Result<[f64; 2]> {
    let tag = Tag { name: "bench", layer: -1 };
    let began = Instant::now();
    let writings: Vec<_> = tensors
        .iter()
        .map(|tensor| spill.write(tensor.clone(), codec, tag))
        .collect::<std::result::Result<_, _>>()?;
    let stored: Vec<_> =
        writings.into_iter().map(|writing| writing.retire()).collect::<std::result::Result<_, _>>()?;
    let written = began.elapsed().as_secs_f64();
    let began = Instant::now();
    let readings: Vec<_> = stored
        .iter()
        .zip(tensors)
        .map(|(stored, tensor)| spill.read(stored, tensor.clone()))
        .collect::<std::result::Result<_, _>>()?;
    for reading in readings {
        device.machine.read(&reading.retire()?.view_rows(0..1)).wait();
    }
    Ok([written, began.elapsed().as_secs_f64()])
}

/// The same values in every shape.
fn written(device: &Device, tensor: Tensor, seed: u64) -> Tensor {
    device.machine.write(&tensor, &noise(seed, VALUE));
    tensor
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = arguments.first().map_or_else(std::env::temp_dir, |folder| folder.into());
    let bytes = arguments.get(1).map_or(Ok(1024), |mib| mib.parse::<usize>())? << 20;
    let repeats = arguments.get(2).map_or(Ok(5), |repeats| repeats.parse::<usize>())?;
    let device = Device::new(Arc::new(Cpu::new(1, None)), 4 * bytes as u64 + (1 << 30));
    let count = (bytes / VALUE).max(1);
    let rows = VALUE / COLS / 2;
    let filled = |stride: usize| -> Vec<Tensor> {
        let tensors = (0..count).map(|_| device.zeros(rows, stride, DType::Bf16, Category::Activations));
        let views = tensors.map(|tensor| tensor.view_cols(0..COLS)).enumerate();
        views.map(|(index, view)| written(&device, view, index as u64 + 1)).collect()
    };
    let (plain, strided) = (filled(COLS), filled(COLS + 64));
    let capacity = (count * VALUE) as u64 + (1 << 20);
    let dd = Dd::new(&folder, count)?;
    let mut names = vec!["dd oflag=direct".to_string()];
    let mut engines = Vec::new();
    for num_workers in [1, 2, 4] {
        let options = Options { num_workers, ..Options::new(&folder, capacity) };
        let spill = Spill::open(&device, &options)?;
        println!("{num_workers} workers: {}, staging {:?}", spill.access(), options.staging());
        for (what, tensors, codec) in [
            ("plain", &plain, Codec::AsIs),
            ("strided", &strided, Codec::AsIs),
            ("fp8", &plain, Codec::Fp8Block),
        ] {
            names.push(format!("{what}, {num_workers} workers"));
            engines.push((spill.clone(), tensors, codec));
        }
    }
    // The first write to an extent also updates file-system metadata; dd's file has been written once as well.
    for (spill, tensors, codec) in &engines {
        pass(&device, spill, tensors, *codec)?;
    }
    let mut seconds = vec![[Vec::new(), Vec::new()]; names.len()];
    for _ in 0..repeats {
        seconds[0][0].push(dd.run(true)?);
        seconds[0][1].push(dd.run(false)?);
        for ((spill, tensors, codec), seconds) in engines.iter().zip(&mut seconds[1..]) {
            let [written, read] = pass(&device, spill, tensors, *codec)?;
            seconds[0].push(written);
            seconds[1].push(read);
        }
    }
    drop(dd);
    for (name, [written, read]) in names.iter().zip(seconds) {
        let rate = |seconds| (count * VALUE) as f64 / median(seconds) / 1e9;
        println!("{name:20} write {:5.2} GB/s, read {:5.2} GB/s", rate(written), rate(read));
    }
    Ok(())
}
