//! Small pages, one for each way in which text was lost, run together, or taken from outside the article.

use fathom_prose::extract::{Html, HtmlOptions, Method};

fn by(method: Method, page: &str) -> String {
    Html::new(&HtmlOptions { method, ..HtmlOptions::default() }).unwrap().extract(page).unwrap_or_default()
}

#[test]
fn ruby_annotations_are_no_text() {
    for ruby in [
        "<ruby>漢<rp>(</rp><rt>kan</rt><rp>)</rp>字<rp>(</rp><rt>ji</rt><rp>)</rp></ruby>",
        "<ruby>漢<rt>kan</rt>字<rt>ji</rt></ruby>",
        "<ruby>漢字<rp>(<rt>kanji<rp>)</ruby>",
        "<ruby><rb>漢<rt>kan<rb>字<rt>ji</ruby>",
    ] {
        let page = format!(
            "<article><p>The word {ruby} is read in two ways, as every dictionary of the language says, and in the north of the country in a third one.</p></article>"
        );
        for method in [Method::Dense, Method::Trafilatura, Method::Justext] {
            let html = Html::new(&HtmlOptions {
                method,
                length_low: 10,
                length_high: 20,
                stopwords_low: 0.0,
                stopwords_high: 0.0,
                ..HtmlOptions::default()
            });
            let text = html.unwrap().extract(&page).unwrap();
            assert_eq!(
                text,
                "The word 漢字 is read in two ways, as every dictionary of the language says, and in the north of the country in a third one.",
                "{method:?} {ruby}"
            );
        }
    }
    // An unclosed annotation does not absorb the next block.
    assert_eq!(by(Method::Dense, "<p>one<rt>two<p>three"), "one\nthree");
}

#[test]
fn soft_hyphens_go() {
    let page = "<article><p>The com\u{ad}mit&shy;tee met in the au&#173;tumn and it was the best of all the days that we had, \
                as those who were there said to the ones who were not there in the even&#xAD;ing, and what they said was not what had been said by any of them.</p></article>";
    for method in [Method::Dense, Method::Trafilatura, Method::Justext] {
        let text = by(method, page);
        assert!(
            text.contains("committee met in the autumn") && text.contains("evening"),
            "{method:?}: {text}"
        );
    }
}

#[test]
fn trafilatura_parts_the_lines_of_short_pages() {
    let page = "<html><body><article><h2>A list of things</h2><div>One line of the page, short.<br>Another one under it.</div>\
                <ul><li>A first item</li><li>A second item</li></ul><div>Then a block.</div><div>And a last one.</div>\
                </article></body></html>";
    let text = by(Method::Trafilatura, page);
    for line in ["One line of the page, short.", "Another one under it.", "And a last one."] {
        assert!(text.lines().any(|l| l == line), "{line}: {text}");
    }
    for item in ["A first item", "A second item"] {
        assert!(text.lines().any(|l| l.trim_start_matches("- ") == item), "{item}: {text}");
    }
    assert!(!text.contains('\u{fdd0}'));
}

#[test]
fn an_element_in_a_sentence_ends_neither_the_line_nor_the_text() {
    // Text that Trafilatura 2.3.1 extracts from the element.
    for (element, shown) in [
        ("<script>var x = 1;</script>", ""),
        ("<style>p{}</style>", ""),
        ("<noscript>off</noscript>", "off "),
        ("<svg><path d=\"M0 0\"/></svg>", ""),
        ("<math><mi>x</mi></math>", "x "),
        ("<button>Press</button>", "Press "),
        ("<input type=text>", ""),
        ("<iframe src=x></iframe>", ""),
        ("<wbr>", ""),
        ("<x-term>custom</x-term>", "custom "),
    ] {
        let page = format!(
            "<html><body><article><p>HEAD is what the sentence says in front of it, at some length, {element} and the sentence goes \
             on behind it to its very end, which is the TAIL.</p><p>Then the next paragraph says something else altogether, \
             so that the page has enough text for all that look at it.</p></article></body></html>"
        );
        let line = |shown: &str| {
            format!(
                "HEAD is what the sentence says in front of it, at some length, {shown}and the sentence goes on behind it to its very end, which is the TAIL."
            )
        };
        let dense = by(Method::Dense, &page);
        let own = if element.starts_with("<x-") { shown } else { "" };
        assert_eq!(dense.lines().next(), Some(line(own).as_str()), "{element}");
        let text = by(Method::Trafilatura, &page);
        assert!(text.contains(&line(shown)), "{element}: {text}");
    }
}

#[test]
fn trafilatura_keeps_the_lines_of_code() {
    let page = format!(
        "<html><body><article>{}<pre>def f(x):\n    if x:\n        return 1\n\n    return 2\n</pre>{}</article></body></html>",
        article(),
        article().replace("spring", "autumn")
    );
    let text = by(Method::Trafilatura, &page);
    assert!(text.contains("def f(x):\n    if x:\n        return 1\n\n    return 2"), "{text}");
}

/// Paragraphs of an article, each with distinct words.
fn article() -> String {
    let subjects = ["committee", "river", "library", "harbour", "teacher", "engine", "village"];
    let one = |name: &&str| {
        format!(
            "<p>The {name} was the first of many that changed in the spring of that year, as all who saw it said.</p>"
        )
    };
    subjects.iter().map(one).collect()
}

/// Checks that the text of `dense` contains every text of `with` and none of `without`.
#[track_caller]
fn check(body: &str, with: &[&str], without: &[&str]) {
    let text =
        by(Method::Dense, &format!("<html><head><title>Site</title></head><body>{body}</body></html>"));
    for segment in with {
        assert!(text.contains(segment), "without {segment:?}: {text}");
    }
    for segment in without {
        assert!(!text.contains(segment), "with {segment:?}: {text}");
    }
}

#[test]
fn drawings_do_not_swallow_a_page() {
    // An empty title in a drawing, as in exported icons, before nested articles.
    let icon = "<svg viewBox=\"0 0 5 5\"><title/><path d=\"M0 0\"/></svg>";
    let body = format!(
        "<a href=/>{icon}</a><div class=container><article class=single><div class=contents>{}</div>\
         <article><h3><a href=/x>Other</a></h3></article></article></div>",
        article()
    );
    check(&body, &["committee was the first", "village was the first"], &[]);
}

#[test]
fn names_that_hold_most_of_a_page_are_not_believed() {
    let words = ["otter", "heron", "badger", "falcon", "salmon", "marten"];
    let slides = |open: &str, close: &str| -> String {
        let slide = |word: &&str| {
            format!(
                "{open}The {word} was seen by the lake in the early morning, and it stayed there for as long as it liked.{close}"
            )
        };
        words.iter().map(slide).collect()
    };
    let all: Vec<String> = words.iter().map(|word| format!("The {word} was seen")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let lead = "<article class=gallery><p>Six animals of the lake, one after the other.</p>";
    // A gallery with its text in captions, one with hidden slides, and a forum whose posts are named comments.
    let captions = slides("<figure><img src=a.jpg><figcaption><p>", "</p></figcaption></figure>");
    check(&format!("{lead}{captions}</article>"), &all, &[]);
    let hidden = slides("<div class=\"slide hidden\"><p>", "</p></div>");
    check(&format!("{lead}{hidden}</article>"), &all, &[]);
    let posts = slides("<div class=\"comment\"><div class=\"CommentText\">", "</div></div>");
    check(&format!("<main id=content><h1>Animals of the lake</h1>{posts}</main>"), &all, &[]);
    // Below an article the same names have their literal meaning.
    let comments =
        format!("<div id=comments>{}</div>", slides("<div class=comment itemprop=text><p>", "</p></div>"));
    let article = article() + &article().replace("spring", "autumn") + &article().replace("spring", "summer");
    check(&format!("<article>{article}</article>{comments}"), &["committee was the first"], &all);
}

#[test]
fn other_articles_are_left_out() {
    let teaser =
        "<p>What the mayor said about the bridge, and why no one in the town believed a word of it.</p>";
    for heading in ["Related articles", "Das könnte dich auch interessieren", "À lire aussi"] {
        let body = format!("<article>{}<h3>{heading}</h3>{teaser}</article>", article());
        check(&body, &["village was the first"], &["the mayor", heading]);
        let body = format!(
            "<article>{}<div>{heading}:</div><ul><li>The mayor and the bridge</li></ul></article>",
            article()
        );
        check(&body, &["village was the first"], &["The mayor", heading]);
        // The article continues after them.
        let body = format!(
            "<article>{}<h3>{heading}</h3>{teaser}<h3>What came then</h3><p>In the summer it was different, since the harbour had been closed.</p></article>",
            article()
        );
        check(&body, &["In the summer"], &["the mayor"]);
    }
}

#[test]
fn what_stands_around_the_text_goes() {
    let body = format!(
        "<article><h1>How spring changed it all</h1><span>Updated 10:01 pm, Tuesday, November 19, 2019</span>{}\
         <p>Have a tip? Write to someone@paper.example.com and follow her.</p></article>",
        article()
    );
    check(
        &body,
        &["committee was the first", "village was the first"],
        &["How spring", "Updated", "Have a tip"],
    );
    // The text repeated for programs, with metadata.
    let plain = article().replace("<p>", "").replace("</p>", " ");
    let body = format!(
        "<div class=content><div><div itemprop=description>{plain}</div><div itemprop=keywords>spring, change, year, river</div>\
         <div itemprop=width>500</div></div>{}</div>",
        article()
    );
    check(&body, &["village was the first"], &["spring, change", "500"]);
    let text = by(Method::Dense, &body);
    assert_eq!(text.matches("village was the first").count(), 1, "{text}");
    // Notes in boxes between paragraphs.
    let body = format!(
        "<article>{}<div>Tap the picture to see more of the harbour and of all the ships that lie there.</div>{}</article>",
        article(),
        article().replace("spring", "autumn")
    );
    check(&body, &["spring", "autumn"], &["Tap the picture"]);
}
