//! Lines that stand around articles on every other site: share buttons, copyright, invitations.

/// Longer lines are judged by their structure only.
const LONGEST: usize = 120;

/// Whole lines, in lower case and without punctuation at the ends.
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
];

/// Whether a line is one of the usual ones.
pub(super) fn is_boilerplate(line: &str) -> bool {
    if line.len() > LONGEST {
        return false;
    }
    let lower = line.to_lowercase();
    let bare = lower.trim_matches(|c: char| !c.is_alphanumeric() && c != '©');
    let invites = ["anmelden", "abonnieren", "sign up", "subscribe", "inbox", "inscri"];
    let is_newsletter = bare.contains("newsletter") && invites.iter().any(|word| bare.contains(word));
    is_newsletter
        || bare.is_empty()
        || LINES.contains(&bare)
        || STARTS.iter().any(|start| bare.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::is_boilerplate;

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
