//! Boilerplate of news sites around an article, on generated pages.

use fathom_prose::extract::Html;

/// Paragraphs of an article about a subject, each with distinct words.
fn paragraphs(subject: &str) -> Vec<String> {
    ["first", "second", "third", "fourth", "fifth", "sixth"]
        .map(|n| {
            format!(
                "The {n} thing that was said about {subject} came from those who had seen it, and in the {n} hour of \
                 the day nobody who was there had a reason to doubt what they told the others."
            )
        })
        .to_vec()
}

fn marked(subject: &str) -> String {
    paragraphs(subject).iter().map(|p| format!("<p>{p}</p>")).collect()
}

fn text_of(page: &str) -> String {
    Html::default().extract(page).unwrap()
}

#[test]
fn articles_that_follow_are_left_out() {
    let one = |heading: &str, subject: &str| {
        format!("<article><h1>{heading}</h1><div class=article-body>{}</div></article>", marked(subject))
    };
    let both =
        [one("The harbour opens again today", "harbours"), one("Trains will run late tonight", "trains")];
    let page = |title: &str| {
        format!("<html><head><title>{title}</title></head><body>{}</body></html>", both.concat())
    };
    let of_one = text_of(&page("The harbour opens again today | The Paper"));
    assert!(of_one.contains("harbours") && !of_one.contains("trains"), "{of_one}");
    // A page titled after the site is about both articles.
    let of_both = text_of(&page("The Paper"));
    assert!(of_both.contains("harbours") && of_both.contains("trains"), "{of_both}");
}

#[test]
fn sections_with_main_headings_are_no_articles_that_follow() {
    let page = format!(
        "<html><head><title>The harbour opens again today</title></head><body><article>\
         <h1>The harbour opens again today</h1>{}<h1>What comes next to the city</h1>{}</article></body></html>",
        marked("harbours"),
        marked("trains")
    );
    let text = text_of(&page);
    assert!(text.contains("harbours") && text.contains("trains"), "{text}");
}

#[test]
fn last_paragraphs_about_the_article_are_left_out() {
    for last in [
        "Mary Ann Miller is a senior reporter for The Paper who covers harbours and ships.",
        "Jane Q. Public covers ships, trains and whatever else moves.",
        "More information: J. Doe et al, Harbours of the North, Journal of Harbours (2020). DOI: 10.1000/1",
        "This story originally appeared in The Other Paper and is republished here.",
        "John Smith contributed to this report.",
        "Hear the whole talk wherever you get your podcasts.",
        "Get local news delivered to your inbox!",
    ] {
        let text = text_of(&format!("<article>{}<p>{last}</p></article>", marked("harbours")));
        assert!(text.contains("The sixth thing") && !text.contains(last), "{last}: {text}");
    }
    for last in [
        "Harbour Street is the longest of the streets that lead down to the water.",
        "Mary Miller is glad to be back, she said as the ships came in again.",
        "The information that the city gave was wrong in more than one way.",
    ] {
        let text = text_of(&format!("<article>{}<p>{last}</p></article>", marked("harbours")));
        assert!(text.contains(last), "{last}: {text}");
    }
}

#[test]
fn dates_above_an_article_are_left_out() {
    for line in
        ["Published: 01:46 GMT, 22 December 2023 | Updated: 01:47 GMT, 22 December 2023", "4 days ago"]
    {
        let text = text_of(&format!("<article><p>{line}</p>{}</article>", marked("harbours")));
        assert!(!text.contains(line), "{line}: {text}");
    }
}
