//! Lines that commonly surround articles: share buttons, copyright, invitations.

/// Maximum bytes of such a line; longer ones are judged only by structure.
const LONGEST: usize = 120;

/// Complete lines, in lower case and without punctuation at the ends.
const LINES: &[&str] = &[
    "advertisement",
    "advertising",
    "anzeige",
    "werbung",
    "publicité",
    "publicidad",
    "share",
    "share this",
    "teilen",
    "partager",
    "tweet",
    "facebook",
    "twitter",
    "linkedin",
    "pinterest",
    "whatsapp",
    "reddit",
    "email",
    "e-mail",
    "print",
    "drucken",
    "mail",
    "pdf",
    "xing",
    "telegram",
    "flipboard",
    "pocket",
    "instagram",
    "rss",
    "copy link",
    "link kopieren",
    "read more",
    "more",
    "mehr",
    "weiterlesen",
    "continue reading",
    "lire la suite",
    "leer más",
    "show more",
    "load more",
    "comments",
    "kommentare",
    "commentaires",
    "leave a comment",
    "leave a reply",
    "reply",
    "antworten",
    "log in",
    "login",
    "sign in",
    "sign up",
    "register",
    "subscribe",
    "related articles",
    "related posts",
    "related",
    "you may also like",
    "mehr zum thema",
    "das könnte sie auch interessieren",
    "recommended",
    "back to top",
    "nach oben",
    "next",
    "previous",
    "skip to content",
    "loading",
    "diesen artikel teilen",
    "artikel teilen",
    "share this article",
    "externer inhalt",
    "bild anzeigen",
    "kontakt",
    "contact",
    "contacto",
    "ansprechpartner",
    "ansprechpartnerin",
    "inhaltsverzeichnis",
    "inhalt",
    "table of contents",
    "contents",
];

/// Beginnings of short lines.
const STARTS: &[&str] = &[
    "©",
    "copyright ©",
    "copyright (c)",
    "all rights reserved",
    "alle rechte vorbehalten",
    "share on ",
    "share this ",
    "follow us",
    "folgen sie",
    "subscribe to ",
    "sign up for ",
    "click here to ",
    "read more:",
    "read also",
    "also read",
    "lesen sie auch",
    "mehr zum thema",
    "see also:",
    "related:",
    "posted in ",
    "posted by ",
    "posted on ",
    "filed under",
    "tagged with",
    "tags:",
    "tagged:",
    "your email address will not be published",
    "required fields are marked",
    "weitere artikel",
    "weitere informationen",
    "das könnte dich auch",
    "das könnte sie auch",
    "das könnte ihnen auch",
    "dowiedz się więcej",
    "related coverage",
    "le puede interesar",
    "te puede interesar",
    "lea también",
    "lire aussi",
    "à lire aussi",
    "view comments",
    "view all ",
    "mehr dazu",
    "auch interessant",
    "read next",
    "more from ",
    "more on this",
    "download our app",
    "save my name, email",
    "you must be logged in",
    "please log in",
    "photo:",
    "foto:",
    "powered by ",
    "like this story",
    "first published",
    "continue reading",
    "image 1 of",
    "article continues below",
    "story continues below",
    "be the first to know",
    "by signing up, you",
    "by clicking",
    "thanks for signing up",
    "comments are closed",
    "end of article",
    "please enter your date of birth",
    "anzeige",
];

/// Beginnings of headings and short lines that are followed by introductions to other articles.
const OTHERS: &[&str] = &[
    // English.
    "related",
    "you may also",
    "you might also",
    "you may like",
    "more from",
    "more on ",
    "more stories",
    "more news",
    "more articles",
    "more great",
    "latest news",
    "latest stories",
    "our latest",
    "latest articles",
    "recommended",
    "read more",
    "read next",
    "read also",
    "also read",
    "trending",
    "most read",
    "most popular",
    "popular posts",
    "don't miss",
    "see also",
    "also on",
    "also see",
    "up next",
    "top stories",
    "keep reading",
    "further reading",
    // German.
    "mehr zum thema",
    "mehr zu ",
    "mehr aus",
    "das könnte",
    "ähnliche",
    "weitere artikel",
    "weitere beiträge",
    "weitere themen",
    "weitere news",
    "weitere meldungen",
    "passend dazu",
    "passend zum",
    "auch interessant",
    "lesen sie auch",
    "lies auch",
    "empfehlungen",
    "empfohlen",
    "zum weiterlesen",
    "zum thema",
    "verwandte",
    "neueste",
    "aktuelle beiträge",
    "noch mehr",
    "meistgelesen",
    // French, Spanish, Italian, Polish, Dutch, Swedish, Danish, Portuguese, Russian, Chinese, Japanese.
    "sur le même",
    "à lire",
    "lire aussi",
    "articles liés",
    "articles similaires",
    "vous aimerez",
    "dans la même",
    "te puede interesar",
    "le puede interesar",
    "noticias relacionadas",
    "notas relacionadas",
    "artículos relacionados",
    "más noticias",
    "lea también",
    "lee también",
    "leggi anche",
    "potrebbe",
    "articoli correlati",
    "zobacz",
    "czytaj",
    "polecamy",
    "lees ook",
    "gerelateerd",
    "läs också",
    "les også",
    "læs også",
    "leia também",
    "veja também",
    "читайте также",
    "похожие",
    "相关",
    "相關",
    "関連",
];

/// Beginnings of an article's last lines that name a source.
const SOURCES: &[&str] = &[
    "reporting by",
    "source:",
    "sources:",
    "updated",
    "this story",
    "quelle:",
    "quellen:",
    "fuente:",
    "foto",
];

/// Returns true if a last paragraph of `chars` characters names a source or a contact address.
pub(super) fn is_contact(line: &str, chars: u32) -> bool {
    const FOLLOW: [&str; 5] = ["follow him", "follow her", "follow us", "follow them", "follow me"];
    if chars >= 220 {
        return false;
    }
    let lower = line.to_lowercase();
    let bare = lower.trim_start_matches(|c: char| !c.is_alphanumeric());
    let is_address =
        |word: &str| word.split_once('@').is_some_and(|(_, host)| host.starts_with(char::is_alphanumeric));
    lower.split_whitespace().any(is_address)
        || FOLLOW.iter().any(|words| lower.contains(words))
        || chars < 160 && SOURCES.iter().any(|start| bare.starts_with(start))
}

/// Returns true if a line states when the article was published or updated.
pub(super) fn dates_article(line: &str) -> bool {
    const STARTS: [&str; 6] =
        ["published", "updated", "last updated", "posted", "veröffentlicht", "aktualisiert"];
    line.len() <= LONGEST && {
        let lower = line.to_lowercase();
        STARTS.iter().any(|start| lower.starts_with(start))
    }
}

/// Returns true if a heading or short line announces other articles.
pub(super) fn announces_others(line: &str) -> bool {
    // Longer ones are ordinary text.
    if line.len() > LONGEST || line.chars().filter(|c| !c.is_whitespace()).count() > 50 {
        return false;
    }
    let lower = line.to_lowercase();
    let bare = lower.trim_start_matches(|c: char| !c.is_alphanumeric());
    OTHERS.iter().any(|start| bare.starts_with(start))
}

/// Returns true if a line is common boilerplate.
pub(super) fn is_boilerplate(line: &str) -> bool {
    if line.len() > LONGEST {
        return false;
    }
    let lower = line.to_lowercase();
    let bare = lower.trim_matches(|c: char| !c.is_alphanumeric() && c != '©');
    let invites = ["anmelden", "abonnieren", "sign up", "subscribe", "inbox", "inscri"];
    let is_newsletter = bare.contains("newsletter") && invites.iter().any(|word| bare.contains(word));
    is_newsletter
        || bare.contains("to your inbox")
        || bare.is_empty()
        || LINES.contains(&bare)
        || STARTS.iter().any(|start| bare.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::{announces_others, is_boilerplate};

    #[test]
    fn announcements_are_known() {
        for line in ["Related articles", "» Das könnte dich auch interessieren", "À lire aussi :", "関連記事"]
        {
            assert!(announces_others(line), "{line}");
        }
        for line in [
            "Unrelated events",
            "The most read author of the century had never sold a book before he turned sixty",
        ] {
            assert!(!announces_others(line), "{line}");
        }
    }

    #[test]
    fn usual_lines_are_known() {
        for line in [
            "Share this:",
            "Advertisement",
            "© 2024 The Site",
            "Posted in News, Sport",
            "* * *",
            "READ MORE »",
        ] {
            assert!(is_boilerplate(line), "{line}");
        }
        for line in ["Sharing is hard to teach.", "Printing money is no policy.", "1984", "He said so."] {
            assert!(!is_boilerplate(line), "{line}");
        }
    }
}
