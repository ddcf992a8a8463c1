//! Installation of the simulated libraries for programs, and the message when a kernel accesses invalid memory.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Once, OnceLock};

/// Library file names that Fathom searches for.
const FILES: [&str; 5] =
    ["libcuda.so.1", "libnvrtc.so.13", "libcublasLt.so.13", "libcudnn.so.9", "libnccl.so.2"];

/// True if there is a C++ compiler, without which no kernel runs; prints a note once if not.
pub fn is_possible() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let output = Command::new("c++").arg("--version").output();
        let found = output.is_ok_and(|output| output.status.success());
        if !found {
            println!("skipped: no C++ compiler (c++), so kernels are not emulated");
        }
        found
    })
}

/// Creates a folder of links with the names of CUDA's libraries, for `FATHOM_CUDA_LIBS`. The shared library is the one
/// that cargo builds next to a target's tests and programs.
///
/// # Errors
/// If it was not built, or the folder cannot be written.
pub fn install(folder: &Path) -> std::io::Result<()> {
    let library = find().ok_or_else(|| std::io::Error::other("libfathom_rehearsal.so was not built"))?;
    std::fs::create_dir_all(folder)?;
    for file in FILES {
        let link = folder.join(file);
        // Others may use or create the folder at the same time.
        if std::fs::read_link(&link).is_ok_and(|to| to == library) {
            continue;
        }
        let fresh = folder.join(format!("{file}.{}", std::process::id()));
        std::os::unix::fs::symlink(&library, &fresh)?;
        std::fs::rename(&fresh, link)?;
    }
    Ok(())
}

fn find() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folders = program.ancestors().skip(1).take(3);
    let files = folders.flat_map(|folder| [folder.join("deps"), folder.to_path_buf()]);
    files.map(|folder| folder.join("libfathom_rehearsal.so")).find(|file| file.is_file())
}

thread_local! {
    /// Name of the kernel running on this thread: address and length.
    static RUNNING: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Runs a kernel; if it accesses invalid memory, a line names the kernel.
pub(crate) fn during(name: &str, run: impl FnOnce()) {
    static HANDLED: Once = Once::new();
    HANDLED.call_once(|| {
        // SAFETY: a handler that only writes and ends the process.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = (fell as extern "C" fn(libc::c_int)) as usize;
            action.sa_flags = libc::SA_ONSTACK;
            libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
        }
    });
    RUNNING.set((name.as_ptr().addr(), name.len()));
    run();
    RUNNING.set((0, 0));
}

extern "C" fn fell(_: libc::c_int) {
    let (at, len) = RUNNING.get();
    let write = |from: *const u8, len: usize| {
        // SAFETY: a live buffer.
        unsafe { libc::write(2, from.cast(), len) };
    };
    let words =
        if len == 0 { "rehearsal: no memory there" } else { "rehearsal: no memory there, in kernel " };
    write(words.as_ptr(), words.len());
    write(std::ptr::with_exposed_provenance(at), len);
    write(b"\n".as_ptr(), 1);
    // SAFETY: ends the process.
    unsafe { libc::_exit(139) };
}
