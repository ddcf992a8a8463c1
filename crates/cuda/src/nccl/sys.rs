//! NCCL's functions, as declared in its header, looked up by name in the library at a path.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;

use libloading::os::unix::{Library as Handle, RTLD_GLOBAL, RTLD_NOW};

use super::table::Table;
use crate::{Error, Result};

/// NCCL's communicator handle.
pub(super) type RawComm = *mut c_void;
type RawStream = *mut c_void;

/// `ncclSuccess`.
pub(super) const SUCCESS: c_int = 0;
/// `ncclInProgress`: status of calls of non-blocking communicators.
pub(super) const IN_PROGRESS: c_int = 7;
/// `ncclUint8`.
pub(super) const BYTES: c_int = 1;
/// `ncclSum`.
pub(super) const SUM: c_int = 0;

/// `NCCL_CONFIG_UNDEF_INT`.
const UNDEFINED: c_int = c_int::MIN;

/// `ncclConfig_t` of version 2.18; later versions accept it and add defaults.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    /// Field of later versions, in a gap of 2.18.
    traffic_class: c_int,
}

impl Config {
    /// Non-blocking calls; a kernel uses at most `ctas` blocks.
    pub fn polled(ctas: Option<c_int>) -> Config {
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: 21_800,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: ctas.unwrap_or(UNDEFINED),
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
            traffic_class: UNDEFINED,
        }
    }
}

/// Declares the table of functions and its loader.
macro_rules! functions {
    ($($field:ident = $name:literal: fn($($arg:ty),*) -> $out:ty;)*) => {
        /// The table of functions.
        pub(super) struct Functions {
            $(pub $field: unsafe extern "C" fn($($arg),*) -> $out,)*
        }

        impl Functions {
            fn load(handle: &Handle) -> std::result::Result<Functions, libloading::Error> {
                // SAFETY: the types are those of NCCL's header.
                unsafe { Ok(Functions { $($field: *handle.get(concat!($name, "\0").as_bytes())?,)* }) }
            }
        }
    };
}

functions! {
    get_unique_id = "ncclGetUniqueId": fn(*mut UniqueId) -> c_int;
    init = "ncclCommInitRankConfig": fn(*mut RawComm, c_int, UniqueId, c_int, *mut Config) -> c_int;
    finalize = "ncclCommFinalize": fn(RawComm) -> c_int;
    destroy = "ncclCommDestroy": fn(RawComm) -> c_int;
    abort = "ncclCommAbort": fn(RawComm) -> c_int;
    async_error = "ncclCommGetAsyncError": fn(RawComm, *mut c_int) -> c_int;
    error_string = "ncclGetErrorString": fn(c_int) -> *const c_char;
    last_error = "ncclGetLastError": fn(RawComm) -> *const c_char;
    all_reduce = "ncclAllReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> c_int;
    all_gather = "ncclAllGather": fn(*const c_void, *mut c_void, usize, c_int, RawComm, RawStream) -> c_int;
    reduce_scatter = "ncclReduceScatter": fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> c_int;
    broadcast = "ncclBroadcast": fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> c_int;
    send = "ncclSend": fn(*const c_void, usize, c_int, c_int, RawComm, RawStream) -> c_int;
    receive = "ncclRecv": fn(*mut c_void, usize, c_int, c_int, RawComm, RawStream) -> c_int;
    group_start = "ncclGroupStart": fn() -> c_int;
    group_end = "ncclGroupEnd": fn() -> c_int;
}

/// The library, open for the rest of the process.
pub struct Nccl {
    pub(super) call: Functions,
    pub(super) table: Table,
}

impl Nccl {
    /// Opens the library at this path; [`crate::libs::probe`] has found it and checked its version.
    ///
    /// # Errors
    /// If it cannot be opened or lacks a function.
    pub fn open(path: &Path) -> Result<Nccl> {
        let failed = |error: libloading::Error| Error::Load {
            path: path.to_path_buf(),
            message: error.to_string().lines().map(str::trim).collect::<Vec<_>>().join(" "),
        };
        // SAFETY: NVIDIA's library runs only its own start-up code.
        let handle = unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map_err(failed)?;
        let call = Functions::load(&handle).map_err(failed)?;
        // The functions are called as long as the process lives.
        std::mem::forget(handle);
        Ok(Nccl { call, table: Table::default() })
    }

    /// Creates the id of a new communicator, for all that will join it.
    ///
    /// # Errors
    /// If NCCL finds no network.
    pub fn unique_id(&self) -> Result<UniqueId> {
        let mut id = UniqueId::default();
        let _turn = self.turn();
        // SAFETY: NCCL writes as many bytes as the id has.
        let status = unsafe { (self.call.get_unique_id)(&mut id) };
        self.check("ncclGetUniqueId", status, std::ptr::null_mut())?;
        Ok(id)
    }

    /// Converts a status into an error with NCCL's message; `comm` may be null.
    pub(super) fn check(&self, call: &'static str, status: c_int, comm: RawComm) -> Result<()> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: NCCL returns static strings, or null.
        let text = |start: *const c_char| {
            if start.is_null() {
                String::new()
            } else {
                unsafe { CStr::from_ptr(start) }.to_string_lossy().trim().replace('\n', " ")
            }
        };
        // SAFETY: plain queries; NCCL takes null for the current thread's last error.
        let [name, more] =
            unsafe { [(self.call.error_string)(status), (self.call.last_error)(comm)] }.map(text);
        let gap = if more.is_empty() { "" } else { ": " };
        Err(Error::Nccl { call, message: format!("{name} ({status}){gap}{more}") })
    }
}

/// Identifies a communicator to all that join it.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct UniqueId(pub [u8; UniqueId::BYTES]);

impl UniqueId {
    /// `NCCL_UNIQUE_ID_BYTES`.
    pub const BYTES: usize = 128;
}

impl Default for UniqueId {
    fn default() -> UniqueId {
        UniqueId([0; UniqueId::BYTES])
    }
}
