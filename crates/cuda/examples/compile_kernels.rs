//! Compiles every kernel with an NVRTC library for every chip: `compile_kernels <libnvrtc.so.*> [chip...]`. Prints a line for
//! each source and chip, and what is wrong; fails if anything is. `cargo xtask gpu-check` calls it.

use std::process::ExitCode;
use std::time::Instant;

use fathom_cuda::kernels::{CHIPS, SOURCES, nvrtc::Nvrtc};

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
    let mut wrong = 0;
    for source in SOURCES {
        for chip in &chips {
            let start = Instant::now();
            let complaints = match compiler.compile(source, chip) {
                Ok(compiled) => {
                    let most = compiled.usage().iter().map(|usage| usage.registers).max().unwrap_or(0);
                    let (bytes, entries) = (compiled.cubin.len(), source.entries.len());
                    let seconds = start.elapsed().as_secs_f64();
                    println!(
                        "{:<10} {chip:<8} {entries:>2} entries, {bytes:>6} bytes, {most:>3} registers at most, {seconds:.2} s",
                        source.name
                    );
                    compiled.complaints(source)
                }
                Err(error) => vec![error.to_string()],
            };
            wrong += complaints.len();
            complaints.iter().for_each(|complaint| println!("{chip}: {complaint}"));
        }
    }
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
