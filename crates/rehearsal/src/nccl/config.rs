//! `ncclConfig_t`: options of a new communicator.

use std::ffi::{c_char, c_int, c_uint};

use super::types::{Status, refuse};

/// The structure of version 2.28; older ones are a prefix of it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Config {
    /// Size in bytes of the caller's structure.
    pub size: usize,
    /// 0xcafebeef.
    pub magic: c_uint,
    /// Version of the header that the caller was compiled with.
    pub version: c_uint,
    /// Nonzero if calls return only when they are done.
    pub blocking: c_int,
    /// Blocks per cluster.
    pub cga_cluster_size: c_int,
    /// Least number of blocks per kernel.
    pub min_ctas: c_int,
    /// Largest number of blocks per kernel.
    pub max_ctas: c_int,
    /// Network name.
    pub net_name: *const c_char,
    /// Nonzero if child communicators share resources.
    pub split_share: c_int,
    /// Network traffic class.
    pub traffic_class: c_int,
    /// Name for messages.
    pub comm_name: *const c_char,
    /// Further fields.
    pub rest: [c_int; 6],
}

const UNDEFINED: c_int = c_int::MIN;

/// Versions, with the least and largest size of their structure.
const SIZES: [(c_uint, usize, usize); 6] = [
    (21_400, 24, 24),
    (21_700, 40, 40),
    (21_800, 48, 48),
    (22_500, 48, 56),
    (22_700, 56, 72),
    (22_800, size_of::<Config>(), size_of::<Config>()),
];

/// True if calls of the communicator block.
///
/// # Safety
/// The address is null, or has as many bytes as its first field specifies.
///
/// # Errors
/// If it was not made by `NCCL_CONFIG_INITIALIZER`, or has invalid values.
pub unsafe fn blocking(call: &str, config: *const Config) -> Result<bool, Status> {
    if config.is_null() {
        return Ok(true);
    }
    let refuse = |why: String| refuse(call, why, Status::Argument);
    // SAFETY: every version begins with these.
    let (size, magic, version) = unsafe { ((*config).size, (*config).magic, (*config).version) };
    if magic != 0xcafe_beef {
        return refuse("ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER".to_string());
    }
    let known = SIZES.iter().rev().find(|(from, ..)| version >= *from);
    if version > 22_899 || known.is_none_or(|(_, least, most)| size < *least || size > *most) {
        return refuse(format!("a config of version {version} has not {size} bytes"));
    }
    let mut own = Config {
        size,
        magic,
        version,
        blocking: UNDEFINED,
        cga_cluster_size: UNDEFINED,
        min_ctas: UNDEFINED,
        max_ctas: UNDEFINED,
        net_name: std::ptr::null(),
        split_share: UNDEFINED,
        traffic_class: UNDEFINED,
        comm_name: std::ptr::null(),
        rest: [UNDEFINED; 6],
    };
    // SAFETY: no more bytes than either has.
    unsafe {
        let bytes = size.min(size_of::<Config>());
        std::ptr::copy_nonoverlapping(config.cast::<u8>(), (&raw mut own).cast::<u8>(), bytes);
    }
    let is_switch = |value: c_int| value == UNDEFINED || value == 0 || value == 1;
    if !is_switch(own.blocking) || !is_switch(own.split_share) {
        return refuse(format!("blocking {}, splitShare {}", own.blocking, own.split_share));
    }
    let positive = |value: c_int| value == UNDEFINED || value > 0;
    if !positive(own.min_ctas) || !positive(own.max_ctas) || own.min_ctas > own.max_ctas {
        return refuse(format!("minCTAs {}, maxCTAs {}", own.min_ctas, own.max_ctas));
    }
    if own.cga_cluster_size != UNDEFINED && !(0..=8).contains(&own.cga_cluster_size) {
        return refuse(format!("cgaClusterSize {}", own.cga_cluster_size));
    }
    if own.max_ctas > 64 {
        return refuse(format!("maxCTAs {}: there are 64 channels", own.max_ctas));
    }
    Ok(own.blocking != 0)
}
