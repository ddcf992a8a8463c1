//! NVRTC, the run-time compiler, opened by path: compiles source to machine code for one chip. Needs no device and no
//! toolkit.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::{Library, Symbol};

use super::table::{HEADERS, Source};
use super::{Entry, options};

/// Failure to compile a source.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages show what the fields are.
pub enum Error {
    /// The library, or one of its functions, is missing.
    #[error("NVRTC at {}: {reason}; install it (pip install nvidia-cuda-nvrtc) or name its folder", path.display())]
    Open { path: PathBuf, reason: String },
    /// The compiler refused a kernel.
    #[error("NVRTC cannot compile {source_name}.cu for {chip}: {log}")]
    Compile { source_name: &'static str, chip: String, log: String },
}

type Program = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Bytes = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// An opened compiler.
pub struct Nvrtc {
    library: Library,
    /// Kept open: the compiler opens these by bare name, which finds the copy already loaded.
    _builtins: Vec<Library>,
    path: PathBuf,
}

/// Machine code.
#[derive(Clone, Debug)]
pub struct CompiledModule {
    /// The module, as the driver loads it.
    pub cubin: Vec<u8>,
    /// Log of compiler and assembler.
    pub log: String,
}

/// Resources of an entry point, from the assembler's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Its symbol.
    pub entry: String,
    /// Registers per thread.
    pub registers: u32,
    /// Bytes spilled to memory because registers did not suffice.
    pub spill_stores: u32,
    /// Bytes read back.
    pub spill_loads: u32,
}

impl Nvrtc {
    /// Opens `libnvrtc.so.*` at this path, with the builtins in the same folder.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path) -> Result<Nvrtc, Error> {
        let failed =
            |error: &dyn std::fmt::Display| Error::Open { path: path.into(), reason: error.to_string() };
        // SAFETY: the initialisers of NVIDIA's libraries only register themselves.
        let load = |path: &Path| unsafe { Library::new(path) };
        let library = load(path).map_err(|error| failed(&error))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let entries = std::fs::read_dir(folder).map_err(|error| failed(&error))?;
        let mut builtins = Vec::new();
        for file in entries.flatten() {
            if file.file_name().to_string_lossy().starts_with("libnvrtc-builtins.so") {
                builtins.push(load(&file.path()).map_err(|error| failed(&error))?);
            }
        }
        Ok(Nvrtc { library, _builtins: builtins, path: path.into() })
    }

    /// # Safety
    /// The function of this name has type `T`.
    unsafe fn function<T>(&self, name: &str) -> Result<Symbol<'_, T>, Error> {
        // SAFETY: the caller's promise.
        let found = unsafe { self.library.get::<T>(name.as_bytes()) };
        found.map_err(|error| Error::Open { path: self.path.clone(), reason: error.to_string() })
    }

    /// Major and minor version.
    ///
    /// # Errors
    /// If the library has no such function.
    pub fn version(&self) -> Result<(i32, i32), Error> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the function's type is that of nvrtc.h, the addresses are those of two integers.
        unsafe { self.function::<Version>("nvrtcVersion")?(&mut major, &mut minor) };
        Ok((major, minor))
    }

    /// Compiles a source for a chip, such as `sm_90a`.
    ///
    /// # Errors
    /// The compiler's log if it refuses the source.
    pub fn compile(&self, source: &Source, chip: &str) -> Result<CompiledModule, Error> {
        let refuse = |log: String| Error::Compile { source_name: source.name, chip: chip.into(), log };
        let text = |text: &str| CString::new(text).map_err(|error| refuse(error.to_string()));
        let (code, name) = (text(source.text)?, text(&format!("{}.cu", source.name))?);
        let names = HEADERS.iter().map(|(name, _)| text(name)).collect::<Result<Vec<_>, _>>()?;
        let texts = HEADERS.iter().map(|(_, header)| text(header)).collect::<Result<Vec<_>, _>>()?;
        let given = options(chip).iter().map(|option| text(option)).collect::<Result<Vec<_>, _>>()?;
        let pointers = |list: &[CString]| list.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
        let (names, texts, given) = (pointers(&names), pointers(&texts), pointers(&given));
        let mut program = std::ptr::null_mut();
        // SAFETY: types are those of nvrtc.h; texts end with a zero and outlive the calls; lists have the lengths named.
        unsafe {
            let create = self.function::<Create>("nvrtcCreateProgram")?;
            let count = texts.len() as c_int;
            let status =
                create(&mut program, code.as_ptr(), name.as_ptr(), count, texts.as_ptr(), names.as_ptr());
            if status != 0 {
                return Err(refuse(self.error(status)?));
            }
            let compile = self.function::<Compile>("nvrtcCompileProgram")?;
            let status = compile(program, given.len() as c_int, given.as_ptr());
            let log = self.bytes(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog");
            let cubin = self.bytes(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN");
            self.function::<Destroy>("nvrtcDestroyProgram")?(&mut program);
            let log = String::from_utf8_lossy(&log?).trim_end_matches('\0').trim().to_string();
            if status != 0 {
                return Err(refuse(format!("{}\n{log}", self.error(status)?)));
            }
            Ok(CompiledModule { cubin: cubin?, log })
        }
    }

    /// # Safety
    /// The program is alive, and the functions have the types of their namesakes in nvrtc.h.
    unsafe fn bytes(&self, program: Program, size: &str, get: &str) -> Result<Vec<u8>, Error> {
        // SAFETY: the buffer has the bytes that the compiler requests.
        unsafe {
            let mut count = 0;
            self.function::<Size>(size)?(program, &mut count);
            let mut bytes = vec![0u8; count];
            if count > 0 {
                self.function::<Bytes>(get)?(program, bytes.as_mut_ptr().cast());
            }
            Ok(bytes)
        }
    }

    fn error(&self, status: c_int) -> Result<String, Error> {
        // SAFETY: the type is that of nvrtc.h; the text is a constant of the library.
        unsafe {
            let text = self.function::<ErrorString>("nvrtcGetErrorString")?(status);
            Ok(CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    }
}

impl CompiledModule {
    /// Usage of each entry point, including the functions that it calls, in log order.
    pub fn usage(&self) -> Vec<Usage> {
        let mut found: Vec<Usage> = Vec::new();
        for line in self.log.lines() {
            if let Some(rest) = line.split("Compiling entry function '").nth(1) {
                let entry = rest.split('\'').next().unwrap_or_default().to_string();
                found.push(Usage { entry, ..Usage::default() });
            }
            let Some(usage) = found.last_mut() else { continue };
            let number = |unit: &str| {
                let before = line.split(unit).next().filter(|before| before.len() < line.len())?;
                before.split_whitespace().last()?.parse().ok()
            };
            if let Some(bytes) = number(" bytes spill stores") {
                usage.spill_stores += bytes;
            }
            if let Some(bytes) = number(" bytes spill loads") {
                usage.spill_loads += bytes;
            }
            if let Some(registers) = number(" registers") {
                usage.registers = registers;
            }
        }
        found
    }

    /// Problems of the compiled source: missing entry points, and spills where none are allowed.
    pub fn complaints(&self, source: &Source) -> Vec<String> {
        let usage = self.usage();
        let complaint = |entry: &Entry| match usage.iter().find(|usage| usage.entry == entry.name) {
            None => Some(format!("{}: no entry point {}", source.name, entry.name)),
            Some(u) if entry.no_spill && u.spill_stores + u.spill_loads > 0 => {
                let (stores, loads) = (u.spill_stores, u.spill_loads);
                Some(format!("{}: {} spills {stores} bytes, reads {loads} back", source.name, entry.name))
            }
            Some(_) => None,
        };
        source.entries.iter().filter_map(complaint).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_assemblers_words_are_understood() {
        let log = "ptxas info    : Compiling entry function 'copy' for 'sm_90a'\n\
                   ptxas info    : Function properties for copy\n    \
                   0 bytes stack frame, 8 bytes spill stores, 16 bytes spill loads\n\
                   ptxas info    : Function properties for called\n    \
                   4 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads\n\
                   ptxas info    : Used 30 registers, used 0 barriers\n\
                   ptxas info    : Compiling entry function 'add' for 'sm_90a'\n\
                   ptxas info    : Used 12 registers";
        let compiled = CompiledModule { cubin: Vec::new(), log: log.into() };
        let usage = |entry: &str, registers, spill_stores, spill_loads| Usage {
            entry: entry.into(),
            registers,
            spill_stores,
            spill_loads,
        };
        assert_eq!(compiled.usage(), [usage("copy", 30, 12, 16), usage("add", 12, 0, 0)]);
    }
}
