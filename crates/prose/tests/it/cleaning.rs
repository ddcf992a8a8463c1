//! Unicode repair against golden cases, and the fused cleaner against its steps.

use fathom_prose::clean::{CleanOptions, Cleaner, SliceAt, SliceOptions, UnicodeFixer, UnicodeOptions};
use proptest::prelude::*;

#[test]
fn unicode_is_repaired_as_ftfy_does() {
    let golden = include_str!("golden/unicode.jsonl");
    let fixers = [UnicodeFixer::new(&UnicodeOptions::default()), UnicodeFixer::new(&UnicodeOptions::ftfy())];
    let mut wrong = Vec::new();
    let mut all = 0;
    for line in golden.lines() {
        let [broken, curator, own]: [String; 3] = serde_json::from_str(line).unwrap();
        for (fixer, expected) in fixers.iter().zip([curator, own]) {
            all += 1;
            let fixed = fixer.fix(&broken);
            if fixed != expected {
                wrong.push(format!("{broken:?}\n   ours {fixed:?}\n   ftfy {expected:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {all} differ:\n{}", wrong.len(), wrong[..wrong.len().min(8)].join("\n"));
}

fn text() -> impl Strategy<Value = String> {
    let pieces = [
        "word",
        "www.a.b/c",
        "HTTPS://x.y",
        "**bold**",
        "*i*",
        "_u_",
        "[t](a)",
        "[",
        "\"",
        "privacy policy",
        "Menu",
        "\n",
        "\n\n",
        "\n\n\n\n",
        "\r\n",
        "\r\n\r\n\r\n",
        " ",
        " ",
        "lorem ipsum",
        "â€™",
        "é",
        "&amp;",
        "\u{7}",
    ];
    prop::collection::vec(0..pieces.len(), 0..60)
        .prop_map(move |list| list.into_iter().map(|i| pieces[i]).collect())
}

proptest! {
    #[test]
    fn the_fused_pass_equals_its_steps(text in text(), bits in 0u8..64) {
        let bit = |i: u8| bits >> i & 1 == 1;
        let cleaner = Cleaner::new(&CleanOptions {
            unicode: bit(0),
            quotation: bit(1),
            boilerplate: bit(2),
            urls: bit(3),
            markdown: bit(4),
            newlines: bit(5),
            remove_lines: if bit(0) { vec!["Menu".into(), "".into()] } else { vec![] },
            slice: bit(3).then(|| SliceOptions { right: Some(SliceAt::Index(-2)), ..Default::default() }),
            ..CleanOptions::default()
        });
        prop_assert_eq!(cleaner.clean(&text), cleaner.clean_in_steps(&text));
    }

    #[test]
    fn repair_ends_and_is_stable(text in "[ÃÂâ€™œ“”é \\x80-\\x9f&amp;#x;<a-z\\n]{0,60}") {
        let fixer = UnicodeFixer::new(&UnicodeOptions::default());
        let once = fixer.fix(&text).into_owned();
        prop_assert!(once.len() <= 4 * text.len());
    }
}

#[test]
fn entities_within_entities_end() {
    let text = format!("&{}lt;", "amp;".repeat(20_000));
    let fixed = UnicodeFixer::new(&UnicodeOptions::default()).fix(&text).into_owned();
    assert!(fixed.len() < text.len());
}
