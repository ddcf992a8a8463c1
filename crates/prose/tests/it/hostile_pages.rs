//! Pages designed to break extractors: depth, size, NULs, broken entities, quadratic traps.

use std::time::Instant;

use fathom_prose::extract::{Html, HtmlOptions, Method, Refusal, charset};
use proptest::prelude::*;

fn extractors() -> Vec<Html> {
    let with = |method| Html::new(&HtmlOptions { method, ..HtmlOptions::default() }).unwrap();
    [Method::Dense, Method::Trafilatura, Method::Justext].map(with).into()
}

#[test]
fn depth_and_repetition_end_in_text_or_a_reason() {
    check_all(&extractors(), false);
    check_all(&[Html::default()], true);
}

fn check_all(extractors: &[Html], dense_only: bool) {
    let text = "<p>This is the text of the page, and it is long enough to be seen by all of them, as it should be.</p>";
    let n = if dense_only { 100_000 } else { 10_000 };
    let cases = [
        format!("{}{text}{}", "<div>".repeat(n), "</div>".repeat(n)),
        format!("{}{text}", "<div><b>".repeat(n)),
        format!("{}{text}", "<table><tr><td>".repeat(n)),
        format!("{}{text}", "<a href=x>".repeat(n)),
        format!("{text}{}", "</div></p></table>".repeat(n)),
        format!("{}{text}", "<ul><li>".repeat(n)),
        (0..n / 5).map(|i| format!("<p><b id={i}>")).collect::<String>() + text,
        format!("{text}{}", "<br>".repeat(n)),
        format!("{text}{}", "&amp".repeat(n)),
        format!("{text}{}", "&#xd800;\0".repeat(n)),
        format!("{text}<p {}>", "a=b ".repeat(n)),
        format!("<p {}>{text}", (0..n).map(|i| format!("a{i}=b ")).collect::<String>()),
        format!("{text}<p {}>", (0..12 * n).map(|i| format!("a{i}=b ")).collect::<String>()),
        format!("<p {}>", (0..100).map(|i| format!("a{i}=b ")).collect::<String>()).repeat(n / 10) + text,
        format!("{text}{}", "<h3>Related articles</h3><p>Related:".repeat(n / 10)),
        format!("{text}{}", "<p class=\"".repeat(n)),
        format!("{text}{}", "<!--".repeat(n)),
        format!("{text}{}", "<script>".repeat(n)),
    ];
    for html in extractors {
        for case in &cases {
            let started = Instant::now();
            let result = html.extract(case);
            let start: String = case.chars().take(40).collect();
            assert!(started.elapsed().as_secs() < 10, "{html:?} {start}: {:?}", started.elapsed());
            if let Ok(text) = result {
                assert!(!text.contains('\0'));
            }
        }
    }
    let dense = Html::default();
    assert!(dense.extract(&cases[0]).unwrap().contains("long enough"));
}

#[test]
fn size_is_a_reason() {
    let page = "x".repeat(17 << 20);
    assert_eq!(Html::default().extract(&page), Err(Refusal::PageTooLarge));
    let page = "<i>a</i>".repeat(1 << 20);
    assert_eq!(Html::default().extract(&page), Err(Refusal::TooManyElements));
    let attributes: String = (0..120_000).map(|i| format!("a{i}=b ")).collect();
    let page = format!("<p {attributes}>text");
    for method in [Method::Trafilatura, Method::Justext] {
        let html = Html::new(&HtmlOptions { method, ..HtmlOptions::default() }).unwrap();
        assert_eq!(html.extract(&page), Err(Refusal::TooManyElements), "{method:?}");
    }
    assert_eq!(Html::default().extract(""), Err(Refusal::NoContent));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tag_soup_never_panics(
        pieces in prop::collection::vec(prop::sample::select(&[
            "<", ">", "</", "<p", "<p>", "</p>", "<div>", "</div>", "<table>", "<tr>", "<td>", "</table>", "<li>", "<ul>",
            "<script>", "</script>", "<!--", "-->", "&", "&#x", "&#1", ";", "\"", "'", "=", "\n", " ", "é", "\0", "<a href=x>",
            "</a>", "<h1>", "</h1>", "<h", "<pre>", "<br>", "<article class='post'>", "</article>", "some words of text ",
            "<head>", "</head>", "<body>", "<title>", "<svg>", "\u{a0}", "<form>", "<ol><dd>", "<plaintext>",
        ][..]), 0..60)
    ) {
        for html in extractors() {
            let _ = html.extract(&pieces.concat());
        }
    }

    #[test]
    fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = charset::decode(&bytes, Some("text/html; charset=big5"));
        let _ = charset::decode(&bytes, None);
    }
}
