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

/// Treats the bytes as a `tokenizer.json` and, when it is accepted, puts it to all its uses: texts are encoded in every way,
/// ids decoded at once and one by one, the file written and read again.
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
        // What is written need not be what was read, but it is answered.
        let _ = crate::Tokenizer::from_bytes(json.as_bytes(), path);
    }
}
