//! Kernels on the device: compiled for the exact chip on first use, cached on disk, loaded, looked up by name.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::driver::{Driver, Function, Module};
use crate::kernels::nvrtc::Nvrtc;
use crate::kernels::{Entry, HEADERS, Source, options};
use crate::{Error, Result};

/// Compiles sources to machine code.
pub trait Compiler: Send + Sync {
    /// Version of the compiler, so that another compiler's code is not reused.
    fn version(&self) -> &str;
    /// Compiles a source for a chip.
    ///
    /// # Errors
    /// The compiler's message if it refuses the source.
    fn compile(&self, source: &Source, chip: &str) -> Result<Vec<u8>>;
}

/// NVRTC.
pub struct RunTime {
    nvrtc: Mutex<Nvrtc>,
    version: String,
}

impl RunTime {
    /// Opens the library at this path.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path) -> Result<RunTime> {
        let failed = |error: crate::kernels::nvrtc::Error| Error::Compile(error.to_string());
        let nvrtc = Nvrtc::open(path).map_err(failed)?;
        let (major, minor) = nvrtc.version().map_err(failed)?;
        Ok(RunTime { nvrtc: Mutex::new(nvrtc), version: format!("NVRTC {major}.{minor}") })
    }
}

impl Compiler for RunTime {
    fn version(&self) -> &str {
        &self.version
    }

    fn compile(&self, source: &Source, chip: &str) -> Result<Vec<u8>> {
        let nvrtc = self.nvrtc.lock().unwrap_or_else(PoisonError::into_inner);
        let compiled = nvrtc.compile(source, chip).map_err(|error| Error::Compile(error.to_string()))?;
        Ok(compiled.cubin)
    }
}

/// Folder of compiled kernels: `FATHOM_CACHE`, else below the user's cache folder; `None` if there is neither.
pub fn cache_folder() -> Option<PathBuf> {
    let under = |key: &str, rest: &str| {
        let value = std::env::var_os(key).filter(|value| !value.is_empty())?;
        Some(PathBuf::from(value).join(rest))
    };
    under("FATHOM_CACHE", "kernels")
        .or_else(|| under("XDG_CACHE_HOME", "fathom/kernels"))
        .or_else(|| under("HOME", ".cache/fathom/kernels"))
}

/// The kernels of one device.
pub struct Programs {
    driver: Arc<dyn Driver>,
    compiler: Box<dyn Compiler>,
    chip: String,
    cache: Option<PathBuf>,
    functions: RwLock<HashMap<Entry, Function>>,
    modules: Mutex<HashMap<&'static str, Module>>,
}

impl Programs {
    /// Kernels for the device's chip, cached in `cache` if given.
    pub fn new(driver: Arc<dyn Driver>, compiler: Box<dyn Compiler>, cache: Option<PathBuf>) -> Programs {
        let chip = driver.facts().arch();
        Programs { driver, compiler, chip, cache, functions: RwLock::default(), modules: Mutex::default() }
    }

    /// The kernel of an entry; the first of a source compiles and loads it.
    ///
    /// # Errors
    /// If the compiler refuses the source, or the driver the code.
    pub fn function(&self, entry: Entry) -> Result<Function> {
        if let Some(function) = self.functions.read().unwrap_or_else(PoisonError::into_inner).get(&entry) {
            return Ok(*function);
        }
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let module = match modules.get(entry.source) {
            Some(module) => *module,
            None => {
                let module = self.driver.load(&self.code(entry)?)?;
                modules.insert(entry.source, module);
                module
            }
        };
        let function = self.driver.function(module, entry.name)?;
        self.functions.write().unwrap_or_else(PoisonError::into_inner).insert(entry, function);
        Ok(function)
    }

    fn code(&self, entry: Entry) -> Result<Vec<u8>> {
        let source = Source::named(entry.source)
            .ok_or_else(|| Error::Compile(format!("{}: no source of kernels", entry.source)))?;
        let file = self.cache.as_ref().map(|folder| folder.join(self.file(source)));
        if let Some(code) = file.as_deref().and_then(kept) {
            return Ok(code);
        }
        let code = self.compiler.compile(source, &self.chip)?;
        // Without a cache the next start compiles again, which is not an error.
        if let Some(file) = file {
            let _ = keep(&file, &code);
        }
        Ok(code)
    }

    /// Cache file name of a source: a hash of everything that determines the code.
    fn file(&self, source: &Source) -> String {
        let mut hash = blake3::Hasher::new();
        let options = options(&self.chip);
        let headers = HEADERS.iter().flat_map(|(name, text)| [*name, *text]);
        let parts = [self.compiler.version(), source.text].into_iter().chain(headers);
        for part in parts.chain(options.iter().map(String::as_str)) {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        format!("{}-{}-{}.cubin", source.name, self.chip, &hash.finalize().to_hex()[..16])
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for module in self.modules.get_mut().unwrap_or_else(PoisonError::into_inner).values() {
            // Streams have been waited for; the driver unloads the rest when the process ends.
            let _ = self.driver.unload(*module);
        }
    }
}

/// The code in a cache file if it is intact; the file is a hash followed by the code.
fn kept(file: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(file).ok()?;
    let (hash, code) = bytes.split_at_checked(blake3::OUT_LEN)?;
    (blake3::hash(code).as_bytes() == hash).then(|| code.to_vec())
}

/// Writes a cache file atomically.
fn keep(file: &Path, code: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let part = file.with_extension(format!("{}.part", std::process::id()));
    let mut bytes = blake3::hash(code).as_bytes().to_vec();
    bytes.extend_from_slice(code);
    std::fs::write(&part, bytes)?;
    std::fs::rename(&part, file)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::driver::fake::Fake;
    use crate::kernels::SOURCES;

    /// A compiler whose code names its source, with a count of compilations.
    pub struct Writer(pub Arc<AtomicUsize>, pub &'static str);

    impl Compiler for Writer {
        fn version(&self) -> &str {
            self.1
        }
        fn compile(&self, source: &Source, chip: &str) -> Result<Vec<u8>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(format!("{} {chip}", source.name).into_bytes())
        }
    }

    #[test]
    fn code_is_compiled_once_and_kept_for_its_compiler() {
        let folder = tempfile::tempdir().unwrap();
        let compiled = Arc::new(AtomicUsize::new(0));
        let start = |version| {
            let compiler = Box::new(Writer(compiled.clone(), version));
            Programs::new(Arc::new(Fake::new(1 << 20)), compiler, Some(folder.path().join("kernels")))
        };
        let (entries, count) = (SOURCES[0].entries, || compiled.load(Ordering::Relaxed));
        let programs = start("1");
        let first = programs.function(entries[0]).unwrap();
        assert_eq!(programs.function(entries[0]).unwrap(), first);
        programs.function(entries[1]).unwrap();
        assert_eq!(count(), 1);
        start("1").function(entries[0]).unwrap();
        assert_eq!(count(), 1);
        start("2").function(entries[0]).unwrap();
        assert_eq!(count(), 2);
        // A truncated file is written again.
        let file = folder.path().join("kernels").join(programs.file(&SOURCES[0]));
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
        start("1").function(entries[0]).unwrap();
        assert_eq!((count(), std::fs::read(&file).unwrap()), (3, bytes));
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_is_no_failure() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let compiler = Box::new(Writer(Arc::default(), "1"));
        let programs = Programs::new(Arc::new(Fake::new(1 << 20)), compiler, Some(file.path().join("x")));
        programs.function(SOURCES[0].entries[0]).unwrap();
    }
}
