//! LaTeX sources; a form feed parts files.
#![no_main]

use fathom_prose::extract::{Latex, LatexFile};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let file = |(number, text): (usize, &str)| LatexFile { path: format!("{number}.tex"), text: text.to_string() };
    let files: Vec<LatexFile> = text.split('\u{c}').take(8).enumerate().map(file).collect();
    let _ = Latex::default().extract(&files);
});
