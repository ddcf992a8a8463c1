//! Compiles kernels for a CPU, once for each source text, and calls them as CUDA's driver would.
#![allow(unsafe_code)]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::OnceLock;

use fathom_cuda::kernels::{HEADERS, Launch, SOURCES, Source};
use fathom_rehearsal::compiler::{self, Grid, Program};
pub use fathom_rehearsal::is_possible;

/// The compiled image of a source, cached from earlier runs.
fn image(source: &Source) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated-kernels");
    std::fs::create_dir_all(&folder).unwrap();
    let mut hash = DefaultHasher::new();
    (compiler::version(), source.text, &HEADERS).hash(&mut hash);
    let path = folder.join(format!("{}-{:016x}", source.name, hash.finish()));
    if let Ok(image) = std::fs::read(&path) {
        return image;
    }
    let image =
        compiler::compile(source.text, HEADERS).unwrap_or_else(|why| panic!("{}.cu: {why}", source.name));
    let fresh = path.with_extension(std::process::id().to_string());
    std::fs::write(&fresh, &image).unwrap();
    std::fs::rename(&fresh, &path).unwrap();
    image
}

/// Runs a launch to completion.
pub fn run(launch: &Launch) {
    static OPEN: OnceLock<Vec<OnceLock<Program>>> = OnceLock::new();
    if launch.is_empty() {
        return;
    }
    // One lock per source, so that tests compile several in parallel.
    let open = OPEN.get_or_init(|| SOURCES.iter().map(|_| OnceLock::new()).collect());
    let at = SOURCES.iter().position(|source| source.name == launch.entry.source).unwrap();
    // SAFETY: an image that the compiler made.
    let program = open[at].get_or_init(|| unsafe { Program::load(image(&SOURCES[at]).as_ptr()) }.unwrap());
    let kernel = program.kernel(launch.entry.name).unwrap();
    assert_eq!(launch.args.kinds(), kernel.kinds(), "{}", launch.entry.name);
    let (mut args, grid) = (launch.args, launch.grid);
    assert!(grid.threads <= kernel.threads, "{}: {} threads", launch.entry.name, grid.threads);
    // SAFETY: the arguments have the number and kinds of the kernel's parameters.
    let values = args.with_pointers(|pointers| unsafe { kernel.read(pointers.as_mut_ptr()) });
    let grid = Grid { blocks: grid.blocks, threads: grid.threads, shared_bytes: grid.shared_bytes };
    program.run(launch.entry.name, grid, &values).unwrap();
}
