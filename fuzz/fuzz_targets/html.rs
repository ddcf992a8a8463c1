//! Web pages: bytes to text with every method.
#![no_main]

use std::sync::LazyLock;

use fathom_prose::extract::{Html, HtmlOptions, Method, charset};

static METHODS: LazyLock<Vec<Html>> = LazyLock::new(|| {
    let with = |method| Html::new(&HtmlOptions { method, ..HtmlOptions::default() });
    [Method::Dense, Method::Trafilatura, Method::Justext].into_iter().filter_map(|m| with(m).ok()).collect()
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok((page, _)) = charset::decode(data, None) {
        for html in METHODS.iter() {
            let _ = html.extract(&page);
        }
    }
});
