//! Opens libraries for the rest of the process, and queries their versions.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW, Symbol};

use super::find::in_folder;
use super::library::{Library, Version};
use crate::{Error, Result};

/// A library that stays open.
struct Open {
    library: Library,
    path: PathBuf,
    handle: Handle,
    version: Version,
}

/// All open libraries, at most one file of each.
static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());

/// The address of a function of an open library, or the reason that there is none.
pub(crate) fn symbol(library: Library, name: &str) -> std::result::Result<*mut c_void, String> {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let found = open.iter().find(|open| open.library == library).ok_or("not opened")?;
    // SAFETY: the address is not called here, and the library stays open.
    let symbol: std::result::Result<Symbol<*mut c_void>, _> = unsafe { found.handle.get(name.as_bytes()) };
    symbol.map(|symbol| *symbol).map_err(|error| one_line(&error.to_string()))
}

/// Libraries that `library` looks up by bare name, and finds only if they are already open.
fn companions(library: Library) -> &'static [&'static str] {
    match library {
        Library::Nvrtc => &["libnvrtc-builtins.so.13"],
        // cuDNN from 9.28 on requests cuBLAS, which requests cuBLASLt.
        Library::CublasLt => &["libcublas.so.13"],
        _ => &[],
    }
}

/// Opens a library locally, so that a second copy, brought by another library, keeps its own symbols.
fn open(path: &Path) -> Result<Handle> {
    // SAFETY: NVIDIA's libraries run only their own start-up code.
    unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|error| Error::Load { path: path.to_path_buf(), message: words(&error) })
}

/// An error with its causes, in one line.
fn words(error: &dyn std::error::Error) -> String {
    let cause = error.source().map_or_else(String::new, |cause| format!(": {}", words(cause)));
    format!("{}{cause}", one_line(&error.to_string()))
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Opens a library and its companions permanently, and returns its version.
///
/// # Errors
/// If the loader refuses it, it does not respond, or another file of it is already open.
pub fn version(library: Library, path: &Path) -> Result<Version> {
    let mut all = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(open) = all.iter().find(|open| open.library == library) {
        if open.path == path {
            return Ok(open.version);
        }
        let message = format!("{} is in use already", open.path.display());
        return Err(Error::Load { path: path.to_path_buf(), message });
    }
    let before = if library == Library::Nvrtc { companions(library) } else { &[] };
    before.iter().for_each(|name| open_companion(path, name));
    let handle = open(path)?;
    let version =
        ask(library, &handle).map_err(|message| Error::Load { path: path.to_path_buf(), message })?;
    all.push(Open { library, path: path.to_path_buf(), handle, version });
    if library == Library::CublasLt {
        companions(library).iter().for_each(|name| open_companion(path, name));
    }
    Ok(version)
}

/// Opens a library in the same folder if present.
fn open_companion(path: &Path, name: &str) {
    let file = path.parent().and_then(|folder| in_folder(folder, name));
    if let Some(handle) = file.and_then(|file| open(&file).ok()) {
        std::mem::forget(handle);
    }
}

fn ask(library: Library, handle: &Handle) -> std::result::Result<Version, String> {
    let read = |value: &mut c_int, name: &str| -> std::result::Result<(), String> {
        // SAFETY: `cuDriverGetVersion` and `ncclGetVersion` write to an int and return a status.
        unsafe {
            let call: Symbol<unsafe extern "C" fn(*mut c_int) -> c_int> =
                handle.get(name.as_bytes()).map_err(|error| one_line(&error.to_string()))?;
            match call(value) {
                0 => Ok(()),
                status => Err(format!("{name} returned {status}")),
            }
        }
    };
    let number = |name: &str| -> std::result::Result<u32, String> {
        // SAFETY: `cublasLtGetVersion` and `cudnnGetVersion` take no arguments and return a size.
        unsafe {
            let call: Symbol<unsafe extern "C" fn() -> usize> =
                handle.get(name.as_bytes()).map_err(|error| one_line(&error.to_string()))?;
            Ok(call() as u32)
        }
    };
    let mut value: c_int = 0;
    match library {
        Library::Driver => {
            read(&mut value, "cuDriverGetVersion")?;
            Ok((value as u32 / 1000, value as u32 % 1000 / 10, 0))
        }
        Library::Nccl => {
            read(&mut value, "ncclGetVersion")?;
            Ok(split(value as u32, 10_000, 100))
        }
        Library::CublasLt => Ok(split(number("cublasLtGetVersion")?, 10_000, 100)),
        Library::Cudnn => Ok(split(number("cudnnGetVersion")?, 10_000, 100)),
        Library::Nvrtc => nvrtc(handle),
    }
}

fn nvrtc(handle: &Handle) -> std::result::Result<Version, String> {
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: `nvrtcVersion` writes to two ints and returns a status.
    let status = unsafe {
        let call: Symbol<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int> =
            handle.get(b"nvrtcVersion").map_err(|error| one_line(&error.to_string()))?;
        call(&mut major, &mut minor)
    };
    if status == 0 {
        Ok((major as u32, minor as u32, 0))
    } else {
        Err(format!("nvrtcVersion returned {status}"))
    }
}

/// Decodes `major x a + minor x b + patch`.
fn split(number: u32, a: u32, b: u32) -> Version {
    (number / a, number % a / b, number % b)
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn numbers_split_as_the_libraries_put_them_together() {
        assert_eq!(split(91_900, 10_000, 100), (9, 19, 0));
        assert_eq!(split(130_100, 10_000, 100), (13, 1, 0));
        assert_eq!(split(22_809, 10_000, 100), (2, 28, 9));
    }
}
