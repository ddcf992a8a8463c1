//! `rehearse PROGRAM WORDS...`: runs a program on the simulated GPU.

use std::process::ExitCode;

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("rehearse: there is no pretended GPU but on Linux");
    ExitCode::FAILURE
}

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let Some((program, words)) = words.split_first() else {
        eprintln!("usage: rehearse PROGRAM [WORDS]; FATHOM_REHEARSAL=dry computes nothing");
        return ExitCode::from(2);
    };
    let installed = std::env::current_exe().and_then(|own| {
        let folder = own.with_file_name("rehearsal-libs");
        fathom_rehearsal::install(&folder)?;
        Ok(folder)
    });
    let folder = match installed {
        Ok(folder) => folder,
        Err(error) => {
            eprintln!("rehearse: {error}");
            return ExitCode::FAILURE;
        }
    };
    // Kernels compiled for the CPU are cached next to the libraries, not in the user's cache.
    let cache = folder.join("cache");
    let error =
        Command::new(program).args(words).env("FATHOM_CUDA_LIBS", &folder).env("FATHOM_CACHE", cache).exec();
    eprintln!("rehearse: {}: {error}", program.display());
    ExitCode::FAILURE
}
