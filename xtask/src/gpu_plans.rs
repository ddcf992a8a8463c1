//! Builds the cuDNN plan of every attention case for an emulated H200, on a machine without a device. cuDNN is
//! downloaded as a Python wheel or taken from the folders in `FATHOM_CUDA_LIBS`, and the driver it opens is a stub.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::gpu_check::{NVRTC, Wheel, root};

/// The version bundled with PyTorch 2.11.
const CUDNN: Wheel = Wheel {
    package: "nvidia-cudnn-cu13",
    version: "9.19.0.56",
    library: ["nvidia/cudnn/lib", "libcudnn.so."],
};
const CUBLAS: Wheel =
    Wheel { package: "nvidia-cublas", version: "13.1.0.3", library: ["nvidia/cu13/lib", "libcublasLt.so."] };

/// Not needed for plans, but used to check that the functions called exist in the library.
const NCCL: Wheel =
    Wheel { package: "nvidia-nccl-cu13", version: "2.28.9", library: ["nvidia/nccl/lib", "libnccl.so."] };

const STUB: &str = include_str!("stub_driver.c");

/// Downloads what is missing, then builds every plan. If the package index is unreachable or there is no C compiler,
/// prints one line and returns `None`.
///
/// # Errors
/// A message when cargo cannot be run.
pub fn run() -> Result<Option<Vec<String>>, String> {
    let named = std::env::var_os("FATHOM_CUDA_LIBS").filter(|folders| !folders.is_empty());
    let mut folders: Vec<PathBuf> = named.iter().flat_map(std::env::split_paths).collect();
    for wheel in [&CUDNN, &CUBLAS, &NVRTC].into_iter().filter(|_| named.is_none()) {
        match wheel.fetch() {
            Ok(library) => folders.extend(library.parent().map(Path::to_path_buf)),
            Err(reason) => {
                let Wheel { package, version, .. } = wheel;
                println!("plans of attention skipped: {package} {version} is unavailable: {reason}");
                return Ok(None);
            }
        }
    }
    if named.is_none() {
        match NCCL.fetch() {
            Ok(library) => folders.extend(library.parent().map(Path::to_path_buf)),
            Err(reason) => {
                println!("NCCL skipped: {} {} is unavailable: {reason}", NCCL.package, NCCL.version)
            }
        }
    }
    match stub() {
        Ok(folder) => folders.push(folder),
        Err(reason) => {
            println!("plans of attention skipped: no stub of a driver: {reason}");
            return Ok(None);
        }
    }
    let folders: OsString = std::env::join_paths(folders).map_err(|error| error.to_string())?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(root())
        .args(["run", "--release", "--quiet", "--example", "gpu", "--", "plans"])
        .env("FATHOM_CUDA_LIBS", folders)
        .status()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    Ok(Some(if status.success() { Vec::new() } else { vec!["plans of attention: see above".to_string()] }))
}

/// Builds the stub driver and returns its folder.
fn stub() -> Result<PathBuf, String> {
    let folder = root().join("target/gpu-wheels/stub-driver");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let (text, library) = (folder.join("stub_driver.c"), folder.join("libcuda.so.1"));
    std::fs::write(&text, STUB).map_err(|error| format!("{}: {error}", text.display()))?;
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-w", "-Wl,-soname,libcuda.so.1", "-o"])
        .args([&library, &text])
        .arg("-ldl")
        .output()
        .map_err(|error| format!("cannot run cc: {error}"))?;
    if output.status.success() {
        Ok(folder)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("cc fails").to_string())
    }
}
