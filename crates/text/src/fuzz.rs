//! Entry points for the fuzz targets in `fuzz/`: bytes in, no panic out.

use crate::store::check_index;
use std::path::Path;

/// Parses the bytes as an `.idx` file. The first eight are taken as the size of its `.bin` file.
pub fn fuzz_idx(data: &[u8]) {
    let Some((size, idx)) = data.split_first_chunk::<8>() else { return };
    // Acceptance is irrelevant here, as long as the call returns.
    let _ = check_index(idx, u64::from_le_bytes(*size), Path::new("fuzz.idx"));
}

/// Parses the bytes as `tokenizer_config.json` or a similar file, and as a `tokenizer.json`, which must encode and
/// decode if it is accepted.
pub fn fuzz_tokenizer_config(data: &[u8]) {
    let _ = crate::tokenizer::probe_roles(data);
    if let Ok(tokenizer) = crate::Tokenizer::from_bytes(data, Path::new("tokenizer.json"))
        && let Ok(ids) = tokenizer.encode("Two words,\nand 12 more.")
    {
        let _ = tokenizer.decode(&ids);
    }
}

/// Parses the bytes as a `tokenizer.json` and, if it is accepted, exercises all its functions: encoding in every way,
/// decoding at once and one by one, writing and reading it again.
pub fn fuzz_tokenizer_use(data: &[u8]) {
    let path = Path::new("tokenizer.json");
    let Ok(tokenizer) = crate::Tokenizer::from_bytes(data, path) else { return };
    let long = "a  line of text, é and 12\n".repeat(4000);
    for text in ["", "a", "Two words,\nand 12 more. <s></s>", "ﷺ\u{0}👩‍👩‍👧\u{301}", &long] {
        for ids in [tokenizer.encode(text), tokenizer.encode_special(text), tokenizer.encode_prompt(text)] {
            let Ok(ids) = ids else { continue };
            let _ = tokenizer.decode(&ids);
            let mut stream = tokenizer.stream();
            ids.iter().take(100).for_each(|&id| drop(stream.push(id)));
            let _ = stream.finish();
        }
    }
    let _ = tokenizer.decode_text(&[0, 1, u32::MAX]);
    let _ = tokenizer.eos().and_then(|id| tokenizer.token(id));
    if let Ok(json) = tokenizer.to_json() {
        // The result may differ from the input, but reading it must return.
        let _ = crate::Tokenizer::from_bytes(json.as_bytes(), path);
    }
}
