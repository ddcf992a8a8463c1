//! Compiles every kernel with an NVRTC library for every chip: `compile_kernels <libnvrtc.so.*> [chip...]`. Prints a
//! line for each source and chip, followed by any problems, and fails if there are some. `cargo xtask gpu-check` calls
//! it.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use fathom_cuda::kernels::nvrtc::Nvrtc;
use fathom_cuda::kernels::{CHIPS, SOURCES, Source};

/// Returns a line to print, and the problems found.
fn compile(compiler: &Nvrtc, source: &Source, chip: &str) -> (String, Vec<String>) {
    let start = Instant::now();
    match compiler.compile(source, chip) {
        Ok(compiled) => {
            let most = compiled.usage().iter().map(|usage| usage.registers).max().unwrap_or(0);
            let (name, entries, bytes) = (source.name, source.entries.len(), compiled.cubin.len());
            let seconds = start.elapsed().as_secs_f64();
            let line = format!(
                "{name:<15} {chip:<8} {entries:>2} entries, {bytes:>6} bytes, {most:>3} registers at most, {seconds:.2} s"
            );
            (line, compiled.complaints(source))
        }
        Err(error) => (format!("{:<15} {chip:<8} refused", source.name), vec![error.to_string()]),
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((library, chips)) = args.split_first() else {
        eprintln!("usage: compile_kernels <libnvrtc.so.*> [chip...]");
        return ExitCode::from(2);
    };
    let chips: Vec<&str> =
        if chips.is_empty() { CHIPS.to_vec() } else { chips.iter().map(String::as_str).collect() };
    let compiler = match Nvrtc::open(library.as_ref()) {
        Ok(compiler) => compiler,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    if let Ok((major, minor)) = compiler.version() {
        println!("NVRTC {major}.{minor}");
    }
    let tasks: Vec<(&Source, &str)> =
        SOURCES.iter().flat_map(|source| chips.iter().map(move |chip| (source, *chip))).collect();
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((source, chip)) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (line, complaints) = compile(&compiler, source, chip);
            println!("{line}");
            let complaints = complaints.into_iter().map(|complaint| format!("{chip}: {complaint}"));
            done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).extend(complaints);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(work);
        }
    });
    let complaints = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    complaints.iter().for_each(|complaint| println!("{complaint}"));
    if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
