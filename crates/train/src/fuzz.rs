//! Entry points for the fuzz targets in `fuzz/`: bytes in, no panic out.

/// Treats the bytes as the `state.json` of a checkpoint.
pub fn fuzz_state(data: &[u8]) {
    crate::checkpoint::fuzz(data);
}
