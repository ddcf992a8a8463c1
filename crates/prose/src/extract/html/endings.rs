//! Recognizes closing paragraphs about the article or its author by their wording.

/// Maximum bytes of such a paragraph; longer ones are text.
const LONGEST: usize = 700;

/// Beginnings of such paragraphs.
const STARTS: &[&str] = &[
    "more information:",
    "for more information",
    "disclaimer:",
    "this article appeared in",
    "this article first appeared",
    "this article originally",
    "this article was originally",
    "this article was first",
    "this story first appeared",
    "this story originally",
    "this story was originally",
    "this post originally",
    "this post was originally",
    "originally published",
    "excerpted from",
    "reprinted by permission",
    "reprinted with permission",
    "editor's note: this",
    "editor’s note: this",
    "dieser artikel erschien",
    "dieser artikel ist zuerst",
    "dieser beitrag erschien",
    "cet article est paru",
    "cet article a été publié",
];

/// Phrases that occur only in such paragraphs.
const PARTS: &[&str] = &[
    "contributed to this report",
    "contributed to this story",
    "contributed to this article",
    "contributed reporting",
    "delivered to your inbox",
    "wherever you get your podcasts",
    "earn an affiliate",
    "affiliate commission",
    "doi: 10.",
    "doi:10.",
    "doi.org/10.",
];

/// Occupations of authors.
const TRADES: &[&str] = &[
    "editor",
    "reporter",
    "writer",
    "journalist",
    "correspondent",
    "columnist",
    "contributor",
    "freelancer",
    "freelance",
    "blogger",
    "producer",
    "redakteur",
    "redakteurin",
    "journalistin",
];

/// Returns true if a paragraph near the end of an article is about it rather than part of it.
pub(super) fn is_ending(line: &str) -> bool {
    if line.len() > LONGEST {
        return false;
    }
    let lower = line.to_lowercase();
    let bare = lower.trim_start_matches(|c: char| !c.is_alphanumeric());
    STARTS.iter().any(|start| bare.starts_with(start))
        || PARTS.iter().any(|part| lower.contains(part))
        || introduces_author(line)
}

/// Returns true if a paragraph begins with a name of two to four words that `is` a writer of some kind.
fn introduces_author(line: &str) -> bool {
    const NAME: std::ops::RangeInclusive<usize> = 2..=4;
    const TITLE: usize = 8;
    let words: Vec<&str> = line.split_whitespace().take(NAME.end() + 2 + TITLE).collect();
    let verbs = ["is", "ist", "covers", "writes"];
    let Some(verb) = words.iter().position(|word| verbs.contains(word)) else { return false };
    let is_name = NAME.contains(&verb) && words[..verb].iter().all(|w| w.starts_with(char::is_uppercase));
    if !is_name {
        return false;
    }
    if words[verb] != "is" && words[verb] != "ist" {
        return true;
    }
    let is_trade = |word: &&str| {
        let lower = word.to_lowercase();
        lower.split(|c: char| !c.is_alphanumeric()).any(|part| TRADES.contains(&part))
    };
    words[verb + 1..].iter().any(is_trade)
}
