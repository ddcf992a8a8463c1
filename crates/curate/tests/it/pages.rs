//! HTML to text.

use fathom_curate::{Reason, html_to_text};

use crate::{dropped, read_file, texts};

#[track_caller]
fn check(page: &str, text: &str) {
    assert_eq!(html_to_text(page), text, "for {page:?}");
}

#[test]
fn pages_read_as_a_browser_shows_them() {
    check("", "");
    check("plain  text\n here", "plain text here");
    check("<p>One</p><p>Two <b>bold</b>, end.</p>", "One\n\nTwo bold, end.");
    check("<p>One<p>Two", "One\n\nTwo");
    check("a<br>b<br/><br>c<br><br><br>d", "a\nb\n\nc\n\nd");
    check("<div><div>a</div></div> <div>b</div>", "a\nb");
    check("x &lt;b&gt; &amp;amp; &eacute;&#233;&#xD800;", "x <b> &amp; éé\u{fffd}");
    check("<ul><li>a</li><li> b <i>c</i></li><li></li></ul>d", "- a\n- b c\n\nd");
    check("<table><tr><td>a</td><td>b</td></tr><tr><th>c<th>d</table>", "a b\nc d");
    check("a<pre>\nfn f() {\n    1\n}\n</pre>b", "a\n\nfn f() {\n    1\n}\n\n\nb");
    check("a<script>if (a<b) { x('</p>') }</script>b<style>p{}</style>c", "abc");
    check("<noscript>Enable <b>it</b></noscript>on", "on");
    check("<!-- no --><!doctype html><title>T &amp; t</title><h1>H</h1>text", "T & t\n\nH\n\ntext");
    check("sou\u{a0}pe <unknown attr='<p>'>là</unknown>", "sou\u{a0}pe là");
    check("</p></div></ul>a</pre>b <", "a\n\nb <");
}

#[test]
fn pages_become_documents() {
    let (documents, _) = read_file("a.html", b"\xef\xbb\xbf<body><p>Hello &amp; bye").unwrap();
    assert_eq!(texts(&documents), ["Hello & bye"]);
    let dir =
        crate::folder(&[("a.html", b"<script>only</script>"), ("b.html", b"\xfe"), ("c.html", b"<p>c")]);
    let (documents, counters) = crate::read(dir.path(), &Default::default()).unwrap();
    assert_eq!(texts(&documents), ["c"]);
    assert_eq!(dropped(&counters, Reason::Blank), 1);
    assert_eq!(dropped(&counters, Reason::InvalidUtf8), 1);
}

#[test]
fn depth_costs_nothing() {
    let deep = format!("{}end{}", "<div><b>".repeat(100_000), "</b></div>".repeat(100_000));
    check(&deep, "end");
    check(&"<pre>".repeat(50_000), "");
}
