//! Entry points for the fuzz targets in `fuzz/`: bytes in, no panic out.

use crate::store::check_index;
use std::path::Path;

/// Treats the bytes as an `.idx` file. The first eight are taken as the size of its `.bin` file.
pub fn fuzz_idx(data: &[u8]) {
    let Some((size, idx)) = data.split_first_chunk::<8>() else { return };
    // Whether it is accepted does not matter here, only that the answer comes.
    let _ = check_index(idx, u64::from_le_bytes(*size), Path::new("fuzz.idx"));
}

/// Treats the bytes as `tokenizer_config.json` or one of its neighbours, and as a `tokenizer.json` that, when
/// accepted, must encode and decode.
pub fn fuzz_tokenizer_config(data: &[u8]) {
    let _ = crate::tokenizer::probe_roles(data);
    if let Ok(tokenizer) = crate::Tokenizer::from_bytes(data, Path::new("tokenizer.json"))
        && let Ok(ids) = tokenizer.encode("Two words,\nand 12 more.")
    {
        let _ = tokenizer.decode(&ids);
    }
}
