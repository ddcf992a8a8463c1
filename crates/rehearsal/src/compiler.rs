//! NVRTC's functions, and compiled programs: for the CPU, by a C++ compiler, with the emulation header.
#![allow(clippy::missing_safety_doc)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use libloading::os::unix::Library;

const EMULATION: &str = include_str!("emu.h");

/// First bytes of an image; followed by the size of the rest, as eight bytes.
const MAGIC: &[u8; 8] = b"REHEARSE";

/// Statuses of nvrtc.h.
const SUCCESS: c_int = 0;
const INVALID_INPUT: c_int = 3;
const COMPILATION: c_int = 6;

/// A program before compilation.
pub struct Draft {
    name: String,
    text: String,
    headers: Vec<(String, String)>,
    log: String,
    image: Vec<u8>,
}

/// Launch configuration of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Number of blocks.
    pub blocks: [u32; 2],
    /// Threads per block.
    pub threads: u32,
    /// Dynamic shared memory per block.
    pub shared_bytes: u32,
}

type Run = unsafe extern "C" fn(c_uint, c_uint, c_uint, usize, *mut *mut c_void);

/// A kernel, as listed by the compiled library.
#[repr(C)]
pub struct Kernel {
    name: *const c_char,
    /// Largest number of threads per block.
    pub threads: u32,
    count: u32,
    sizes: [u32; 32],
    kinds: [u8; 32],
    run: Run,
}

impl Kernel {
    /// One letter per parameter: `p` address, `l` 64-bit and `i` 32-bit integer, `f` f32, and from `A` on structures of
    /// 8, 16 and more bytes.
    pub fn kinds(&self) -> &str {
        std::str::from_utf8(&self.kinds[..self.count as usize]).unwrap_or_default()
    }

    /// Copies arguments.
    ///
    /// # Safety
    /// There are as many addresses as the kernel has parameters, each with as many bytes as the parameter has.
    pub unsafe fn read(&self, params: *mut *mut c_void) -> Vec<Box<[u8]>> {
        let one = |index: usize| {
            // SAFETY: the caller's promise.
            unsafe {
                let from = *params.add(index);
                std::slice::from_raw_parts(from.cast::<u8>(), self.sizes[index] as usize).into()
            }
        };
        (0..self.count as usize).map(one).collect()
    }
}

/// A program for the CPU.
pub struct Program {
    // Stays open as long as its kernels are referenced.
    _library: Library,
    kernels: &'static [Kernel],
}

// SAFETY: the list is constant, and its functions may run on any thread.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl Program {
    /// Opens a compiled image.
    ///
    /// # Errors
    /// If it is not such an image.
    ///
    /// # Safety
    /// The address is that of an image of the compiler below, or of any eight bytes that differ from its header.
    pub unsafe fn load(image: *const u8) -> Result<Program, String> {
        // SAFETY: the caller's promise: there is a header, and behind a matching one as many bytes as it specifies.
        let bytes = unsafe {
            if std::slice::from_raw_parts(image, 8) != MAGIC {
                return Err("not an image of the rehearsal's compiler".into());
            }
            let count = image.add(8).cast::<u64>().read_unaligned() as usize;
            std::slice::from_raw_parts(image.add(16), count)
        };
        let file = tempfile::Builder::new().suffix(".so").tempfile().map_err(|error| error.to_string())?;
        std::fs::write(file.path(), bytes).map_err(|error| error.to_string())?;
        // SAFETY: a library without initialisers, whose list is declared as in the text below and ends with a null
        // name.
        unsafe {
            let library = Library::new(file.path()).map_err(|error| error.to_string())?;
            let list = library.get::<*const Kernel>(b"emu_entries").map_err(|error| error.to_string())?;
            let first = list.into_raw().cast::<Kernel>().cast_const();
            let count = (0..).take_while(|index| !(*first.add(*index)).name.is_null()).count();
            let kernels = std::slice::from_raw_parts(first, count);
            Ok(Program { _library: library, kernels })
        }
    }

    /// A kernel by name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        // SAFETY: names are strings of the library, which is open.
        let named = |kernel: &&Kernel| unsafe { CStr::from_ptr(kernel.name) }.to_str() == Ok(name);
        self.kernels.iter().find(named)
    }

    /// Runs a kernel.
    ///
    /// # Errors
    /// If there is no kernel of this name.
    pub fn run(&self, name: &str, grid: Grid, args: &[Box<[u8]>]) -> Result<(), String> {
        let kernel = self.kernel(name).ok_or("no such kernel")?;
        let mut pointers: Vec<*mut c_void> =
            args.iter().map(|arg| arg.as_ptr().cast_mut().cast::<c_void>()).collect();
        crate::install::during(name, || {
            // SAFETY: arguments were copied by their sizes; the memory that they refer to is the launch's
            // responsibility, and an invalid access ends the process with a message.
            unsafe {
                let [x, y] = grid.blocks;
                (kernel.run)(x, y, grid.threads, grid.shared_bytes as usize, pointers.as_mut_ptr());
            }
        });
        Ok(())
    }
}

/// Kernels in a preprocessed source, with the threads they are compiled for.
fn entries(text: &str) -> Vec<(String, u32)> {
    let one = |piece: &str| {
        let (threads, rest) = piece.split_once(')')?;
        let rest = rest.trim_start_matches([']', ' ', '\n']).strip_prefix("void")?;
        let name = rest.split('(').next()?.trim().to_string();
        Some((name, threads.trim().parse().ok()?))
    };
    text.split("emu::bounds(").skip(1).filter_map(one).collect()
}

/// Compiler flags for making a library of kernels; the host's architecture is added if the compiler supports it.
const FLAGS: &str = "-O2 -fPIC -shared -U_FORTIFY_SOURCE -ffp-contract=off -o program.so main.cpp";
const NATIVE: &str = "-march=native";

/// A hash of everything that determines an image besides the source and its headers: the emulation, the compiler, the
/// processor.
pub fn version() -> u64 {
    static VERSION: OnceLock<u64> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let folder = std::env::temp_dir();
        let machine = run(&folder, &[NATIVE, "-dM", "-E", "-x", "c++", "/dev/null"]).unwrap_or_default();
        let mut hash = DefaultHasher::new();
        (EMULATION, FLAGS, machine).hash(&mut hash);
        hash.finish()
    })
}

/// Compiles kernels for the CPU from a source and the headers that it includes; returns an image for [`Program::load`].
///
/// # Errors
/// The compiler's message.
pub fn compile<'a>(
    text: &str,
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Vec<u8>, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let file = |name: &str| folder.path().join(name);
    let write =
        |name: &str, text: &str| std::fs::write(file(name), text).map_err(|error| format!("{name}: {error}"));
    write("emu.h", EMULATION)?;
    write("program.cu", text)?;
    for (name, text) in headers {
        write(name, text)?;
    }
    let start = "#include \"emu.h\"\n#include \"program.cu\"\n";
    write("plain.cpp", start)?;
    let text = run(folder.path(), &["-E", "-P", "plain.cpp"])?;
    let mut main = format!("{start}extern \"C\" const emu::Entry emu_entries[] = {{\n");
    for (name, threads) in entries(&text) {
        main += &format!("  emu::entry<{name}>(\"{name}\", {threads}),\n");
    }
    main += "  {} };\n";
    write("main.cpp", &main)?;
    let flags: Vec<&str> = FLAGS.split(' ').collect();
    let native = [&flags[..], &[NATIVE]].concat();
    run(folder.path(), &native).or_else(|_| run(folder.path(), &flags))?;
    let library = std::fs::read(file("program.so")).map_err(|error| error.to_string())?;
    Ok([&MAGIC[..], &(library.len() as u64).to_le_bytes(), &library].concat())
}

/// Output of the compiler, or its error message.
fn run(folder: &Path, args: &[&str]) -> Result<String, String> {
    let mut command = Command::new("c++");
    command.current_dir(folder).args(["-std=c++20", "-w"]).args(args);
    let output = command.output().map_err(|error| format!("c++: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Reports a minor version that no NVIDIA compiler has, different for every emulation, compiler and processor, so that
/// caches of compiled code keyed by version stay correct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> c_int {
    // SAFETY: the header's contract.
    unsafe {
        *major = 13;
        *minor = 1000 + (version() % 1_000_000) as c_int;
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetErrorString(status: c_int) -> *const c_char {
    let words = match status {
        SUCCESS => c"NVRTC_SUCCESS",
        INVALID_INPUT => c"NVRTC_ERROR_INVALID_INPUT",
        COMPILATION => c"NVRTC_ERROR_COMPILATION",
        _ => c"NVRTC_ERROR unknown",
    };
    words.as_ptr()
}

/// # Safety
/// A zero-terminated string, or null.
unsafe fn text(at: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCreateProgram(
    program: *mut *mut Draft,
    source: *const c_char,
    name: *const c_char,
    count: c_int,
    headers: *const *const c_char,
    names: *const *const c_char,
) -> c_int {
    // SAFETY: the header's contract: strings, and lists with the given number of elements.
    unsafe {
        let (Some(source), Some(name)) = (text(source), text(name)) else { return INVALID_INPUT };
        let header = |index: usize| Some((text(*names.add(index))?, text(*headers.add(index))?));
        let Some(headers) = (0..count as usize).map(header).collect() else { return INVALID_INPUT };
        let draft = Draft { name, text: source, headers, log: String::new(), image: Vec::new() };
        program.write(Box::into_raw(Box::new(draft)));
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCompileProgram(
    program: *mut Draft,
    count: c_int,
    options: *const *const c_char,
) -> c_int {
    // SAFETY: the header's contract: a program that was created, and the given number of options.
    let (draft, options) = unsafe {
        let option = |index: usize| text(*options.add(index)).unwrap_or_default();
        (&mut *program, (0..count as usize).map(option).collect::<Vec<_>>())
    };
    let chip = options.iter().any(|option| option == "--gpu-architecture=sm_90a");
    let headers = draft.headers.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    let compiled = if chip { compile(&draft.text, headers) } else { Err("an sm_90a is rehearsed".into()) };
    match compiled {
        Ok(image) => {
            draft.image = image;
            SUCCESS
        }
        Err(why) => {
            draft.log = format!("{}: {why}", draft.name);
            COMPILATION
        }
    }
}

/// # Safety
/// The addresses have room for a size, and for as many bytes as that size.
unsafe fn give(bytes: &[u8], size: *mut usize, to: *mut c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if !size.is_null() {
            *size = bytes.len();
        }
        if !to.is_null() {
            std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, bytes.len());
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetProgramLogSize(program: *mut Draft, size: *mut usize) -> c_int {
    // SAFETY: the header's contract; the log is zero-terminated.
    unsafe { give(&log(program), size, std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetProgramLog(program: *mut Draft, to: *mut c_char) -> c_int {
    // SAFETY: the header's contract.
    unsafe { give(&log(program), std::ptr::null_mut(), to) }
}

/// # Safety
/// The program was created and not destroyed.
unsafe fn log(program: *mut Draft) -> Vec<u8> {
    // SAFETY: the caller's promise.
    let log = unsafe { &(*program).log };
    CString::new(log.replace('\0', " ")).unwrap_or_default().into_bytes_with_nul()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetCUBINSize(program: *mut Draft, size: *mut usize) -> c_int {
    // SAFETY: the header's contract.
    unsafe { give(&(*program).image, size, std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetCUBIN(program: *mut Draft, to: *mut c_char) -> c_int {
    // SAFETY: the header's contract.
    unsafe { give(&(*program).image, std::ptr::null_mut(), to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcDestroyProgram(program: *mut *mut Draft) -> c_int {
    // SAFETY: the header's contract: a program that was created, and is not used again.
    unsafe {
        drop(Box::from_raw(*program));
        *program = std::ptr::null_mut();
    }
    SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_with_their_threads() {
        let text = "extern \"C\" [[emu::bounds(256)]] void copy(Mat x) { }\nextern \"C\" [[emu::bounds( 32 )]]  void\nb (int n);";
        assert_eq!(entries(text), [("copy".to_string(), 256), ("b".to_string(), 32)]);
    }

    #[test]
    fn a_program_is_compiled_loaded_and_run() {
        if !crate::is_possible() {
            return;
        }
        let source = "extern \"C\" [[emu::bounds(64)]] void twice(float* x, int n) {\n\
                      const int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 2; }";
        let image = compile(source, []).unwrap();
        // SAFETY: the image that was just made.
        let program = unsafe { Program::load(image.as_ptr()) }.unwrap();
        assert_eq!(program.kernel("twice").unwrap().kinds(), "pi");
        let mut x: Vec<f32> = (0..100).map(|i| i as f32).collect();
        let args: Vec<Box<[u8]>> = vec![
            (x.as_mut_ptr().expose_provenance() as u64).to_ne_bytes().into(),
            100i32.to_ne_bytes().into(),
        ];
        assert_eq!(program.kernel("twice").unwrap().threads, 64);
        program.run("twice", Grid { blocks: [2, 1], threads: 64, shared_bytes: 0 }, &args).unwrap();
        assert!(x.iter().enumerate().all(|(i, x)| *x == 2.0 * i as f32));
    }
}
