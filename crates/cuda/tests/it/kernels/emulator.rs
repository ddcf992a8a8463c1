//! Compiles kernels for a processor, once for each text, and calls them as CUDA's driver would.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use fathom_cuda::kernels::{HEADERS, Launch, SOURCES, Source};
use libloading::Library;

const EMULATION: &str = include_str!("../../../../rehearsal/src/emu.h");

type Run = unsafe extern "C" fn(
    *const c_char,
    *const c_char,
    c_uint,
    c_uint,
    c_uint,
    usize,
    *mut *mut c_void,
) -> c_int;

/// Whether a C++ compiler is there; says so once if not.
pub fn is_possible() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let found = Command::new("c++").arg("--version").output().is_ok_and(|output| output.status.success());
        if !found {
            println!("skipped: no C++ compiler (c++), so kernels are not emulated");
        }
        found
    })
}

fn text(source: &Source) -> String {
    let call = |name: &str| {
        format!(
            "  if (!std::strcmp(name, \"{name}\")) return emu::call({name}, kinds, grid, threads, shared, args);\n"
        )
    };
    let calls: String = source.entries.iter().map(|entry| call(entry.name)).collect();
    format!(
        "#include \"emu.h\"\n#include \"{}.cu\"\nextern \"C\" int emu_run(const char* name, const char* kinds, unsigned x, \
         unsigned y, unsigned threads, size_t shared, void** args) {{\n  dim3 grid; grid.x = x; grid.y = y;\n{calls}  return 1;\n}}\n",
        source.name
    )
}

fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

/// The library of a source, compiled unless an earlier run has left it.
fn library(source: &Source) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated-kernels");
    std::fs::create_dir_all(&folder).unwrap();
    let main = text(source);
    let mut hash = DefaultHasher::new();
    (&main, EMULATION, source.text, &HEADERS).hash(&mut hash);
    let stem = format!("{}-{:016x}", source.name, hash.finish());
    let path = folder.join(format!("{stem}.so"));
    if path.exists() {
        return path;
    }
    let (cpp, fresh) =
        (folder.join(format!("{stem}.cpp")), folder.join(format!("{stem}.{}.so", std::process::id())));
    std::fs::write(&cpp, main).unwrap();
    let compile = |extra: &[&str]| {
        let fixed = "-std=c++20 -O1 -fPIC -shared -w -U_FORTIFY_SOURCE -ffp-contract=off";
        let mut command = Command::new("c++");
        command.args(fixed.split(' ')).args(extra).arg("-I").arg(kernels()).arg(&cpp).arg("-o").arg(&fresh);
        command.output().unwrap()
    };
    let mut output = compile(&["-march=native"]);
    if !output.status.success() {
        output = compile(&[]);
    }
    assert!(output.status.success(), "{}.cu: {}", source.name, String::from_utf8_lossy(&output.stderr));
    std::fs::rename(&fresh, &path).unwrap();
    path
}

/// Runs a launch to its end.
pub fn run(launch: &Launch) {
    static OPEN: OnceLock<Vec<OnceLock<Library>>> = OnceLock::new();
    if launch.is_empty() {
        return;
    }
    // A lock for each source: tests compile several at a time.
    let open = OPEN.get_or_init(|| SOURCES.iter().map(|_| OnceLock::new()).collect());
    let at = SOURCES.iter().position(|source| source.name == launch.entry.source).unwrap();
    // SAFETY: a library of this test's own text, without initialisers.
    let library = open[at].get_or_init(|| unsafe { Library::new(library(&SOURCES[at])) }.unwrap());
    // SAFETY: the type is that of `emu_run` above.
    let run = *unsafe { library.get::<Run>(b"emu_run") }.unwrap();
    let [entry, kinds] = [launch.entry.name, launch.args.kinds()].map(|text| CString::new(text).unwrap());
    let (mut args, grid) = (launch.args, launch.grid);
    let status = args.with_pointers(|pointers| {
        // SAFETY: the launch's addresses are those of a processor's memory, charged while its tensors live; `emu_run` refuses
        // arguments that are not those of the kernel's signature.
        unsafe {
            let (x, y, shared) = (grid.blocks[0], grid.blocks[1], grid.shared_bytes as usize);
            run(entry.as_ptr(), kinds.as_ptr(), x, y, grid.threads, shared, pointers.as_mut_ptr())
        }
    });
    assert_eq!(status, 0, "{}: arguments {}", launch.entry.name, launch.args.kinds());
}
