//! Content hints from an element's attributes: the words of `class`, `id`, `role` and similar.
//!
//! Names are split into words (`post-meta`, `sharedaddy`, `EntryBody`), which are looked up; substrings would be
//! ambiguous, as `navigation` in `navigational-history` and `ad` in `head`.

use super::scan::attributes;
use super::tag::Tag;

/// A set of properties of an element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks(u16);

impl Marks {
    /// Text of a link.
    pub(super) const LINK: u16 = 1;
    /// Not shown.
    pub(super) const HIDDEN: u16 = 2;
    /// Outside the content: navigation, sharing, advertising ...
    pub(super) const BOILERPLATE: u16 = 4;
    /// Readers' comments.
    pub(super) const COMMENTS: u16 = 8;
    /// Body of an article by its name (`articleBody`, `entry-content`).
    pub(super) const BODY: u16 = 16;
    /// Probably contains the article (`post`, `article`, `story`).
    pub(super) const ARTICLE: u16 = 32;
    /// Main region of the page (`main`, `content`).
    pub(super) const MAIN: u16 = 64;
    /// A line about the article rather than part of it: author, date, tags.
    pub(super) const META: u16 = 128;
    /// A short introduction to another article.
    pub(super) const TEASER: u16 = 256;
    /// A box of a content management system, next to the article or inside it.
    pub(super) const WIDGET: u16 = 1024;
    /// Picture caption.
    pub(super) const CAPTION: u16 = 512;

    pub(super) fn has(self, mark: u16) -> bool {
        self.0 & mark != 0
    }

    pub(super) fn insert(&mut self, mark: u16) {
        self.0 |= mark;
    }
}

/// Marks of an element, and true if it has an `href`.
pub(super) fn marks_of(tag: Tag, raw: &[u8]) -> (Marks, bool) {
    let (mut marks, mut has_href) = (Marks::default(), false);
    if raw.len() < 4 {
        return (marks, false);
    }
    attributes(raw, |name, value| match name.to_ascii_lowercase().as_slice() {
        b"class" | b"id" if !tag.is_inline() || matches!(tag, Tag::Span | Tag::A | Tag::Inline) => {
            names(value, &mut marks);
        }
        b"itemprop" | b"property" => match value {
            b"articleBody" | b"schema:articleBody" | b"content:encoded" | b"text" => {
                marks.insert(Marks::BODY)
            }
            b"keywords" if !tag.is_inline() => marks.insert(Marks::HIDDEN),
            b"author" | b"datePublished" | b"dateModified" | b"publisher" | b"keywords" => {
                marks.insert(Marks::META)
            }
            b"comment" | b"comments" => marks.insert(Marks::COMMENTS),
            // Metadata of an article for programs, normally hidden by a style sheet.
            b"dateCreated" | b"articleSection" | b"thumbnailUrl" | b"wordCount" | b"width" | b"height"
            | b"url" | b"inLanguage" | b"image" | b"logo" | b"genre" | b"copyrightYear"
                if !tag.is_inline() =>
            {
                marks.insert(Marks::HIDDEN)
            }
            _ => {}
        },
        b"role" => match value.to_ascii_lowercase().as_slice() {
            b"main" => marks.insert(Marks::MAIN),
            b"article" => marks.insert(Marks::ARTICLE),
            b"navigation" | b"complementary" | b"contentinfo" | b"search" | b"menu" | b"menubar"
            | b"toolbar" | b"dialog" | b"alertdialog" | b"banner" | b"tablist" | b"listbox" => {
                marks.insert(Marks::BOILERPLATE)
            }
            _ => {}
        },
        b"hidden" => marks.insert(Marks::HIDDEN),
        b"aria-hidden" if value.eq_ignore_ascii_case(b"true") => marks.insert(Marks::HIDDEN),
        b"style" => {
            let style: Vec<u8> =
                value.iter().filter(|b| !b.is_ascii_whitespace()).map(u8::to_ascii_lowercase).collect();
            if contains(&style, b"display:none") || contains(&style, b"visibility:hidden") {
                marks.insert(Marks::HIDDEN);
            }
        }
        b"href" => has_href = !value.is_empty() || tag != Tag::A,
        _ => {}
    });
    (marks, has_href)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(text, part).is_some()
}

/// Maximum length of a name; longer ones are generated and carry no meaning.
const LONGEST_NAME: usize = 80;

/// Evaluates the names in a `class` or `id`.
fn names(value: &[u8], marks: &mut Marks) {
    for name in value.split(u8::is_ascii_whitespace).filter(|n| !n.is_empty() && n.len() <= LONGEST_NAME) {
        let mut lower = [0u8; LONGEST_NAME];
        let lower = &mut lower[..name.len()];
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        whole_name(lower, marks);
        // `main--no-sidebar` names something that is absent, not a property of the content.
        if contains(lower, b"no-") && contains(lower, b"sidebar") {
            continue;
        }
        let first_word = words(name).next().map(<[u8]>::to_ascii_lowercase);
        // `has-sidebar` describes another element; utility classes have no meaning.
        if first_word
            .is_some_and(|w| matches!(w.as_slice(), b"has" | b"with" | b"no" | b"is" | b"js" | b"not"))
            && !contains(lower, b"hidden")
        {
            continue;
        }
        for word in words(name) {
            let mut lower = [0u8; LONGEST_NAME];
            let lower = &mut lower[..word.len()];
            lower.copy_from_slice(word);
            lower.make_ascii_lowercase();
            one_word(lower, marks);
        }
    }
}

/// Splits `postMeta-box_2` into `post`, `Meta`, `box`, `2`.
fn words(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = name;
    std::iter::from_fn(move || {
        let start = rest.iter().position(|b| b.is_ascii_alphanumeric() || *b >= 0x80)?;
        rest = &rest[start..];
        let mut end = 1;
        while end < rest.len()
            && (rest[end].is_ascii_alphanumeric() || rest[end] >= 0x80)
            && !(rest[end].is_ascii_uppercase() && rest[end - 1].is_ascii_lowercase())
        {
            end += 1;
        }
        let (word, after) = rest.split_at(end);
        rest = after;
        Some(word)
    })
}

/// Names of the element that contains an article's text.
const BODY: [&[u8]; 34] = [
    b"articlebody",
    b"article-body",
    b"article_body",
    b"article-content",
    b"article_content",
    b"articlecontent",
    b"article-text",
    b"article_text",
    b"articletext",
    b"article__body",
    b"article__content",
    b"entry-content",
    b"entry_content",
    b"entrycontent",
    b"entry-body",
    b"post-content",
    b"post_content",
    b"postcontent",
    b"post-body",
    b"post_body",
    b"postbody",
    b"post-text",
    b"post_text",
    b"story-body",
    b"story_body",
    b"storybody",
    b"story-content",
    b"storycontent",
    b"td-post-content",
    b"field-name-body",
    b"field--name-body",
    b"mw-parser-output",
    b"markdown-body",
    b"single-content",
];

/// Names that have a meaning only as a whole.
fn whole_name(name: &[u8], marks: &mut Marks) {
    let starts = |prefix: &[u8]| name.starts_with(prefix);
    if BODY.contains(&name) || starts(b"article-body") || starts(b"articlebody") || starts(b"article__body") {
        marks.insert(Marks::BODY);
    }
    // `elementor-widget` contains articles, `widget_recent_entries` and `widget-area` do not.
    if starts(b"widget") || name.ends_with(b"-widget") && !starts(b"elementor") {
        marks.insert(Marks::WIDGET);
    }
    let about: [&[u8]; 8] = [b"box", b"bio", b"info", b"card", b"section", b"about", b"desc", b"profile"];
    if contains(name, b"author") && about.iter().any(|part| contains(name, part)) {
        marks.insert(Marks::BOILERPLATE);
    }
    if contains(name, b"caption") || contains(name, b"bildunter") || contains(name, b"disclosure") {
        marks.insert(Marks::CAPTION);
    }
    match name {
        b"main" | b"content" | b"maincontent" | b"main-content" | b"main_content" | b"page-content"
        | b"primary" | b"contentmain" | b"content-main" | b"content_main" | b"inhalt" | b"contenu"
        | b"contenido" | b"bodycontent" | b"mw-content-text" | b"site-content" | b"content-area"
        | b"site-main" => marks.insert(Marks::MAIN),
        b"post" | b"hentry" | b"article" | b"entry" | b"story" | b"blogpost" | b"blog-post"
        | b"single-post" | b"news-article" | b"newsarticle" | b"artikel" | b"post-single" => {
            marks.insert(Marks::ARTICLE)
        }
        b"d-none"
        | b"sr-only"
        | b"visually-hidden"
        | b"visuallyhidden"
        | b"screen-reader-text"
        | b"hidden"
        | b"hide"
        | b"noprint"
        | b"element-invisible"
        | b"screenreader"
        // Shown only in print.
        | b"print-only"
        | b"printonly"
        | b"only-print"
        | b"visible-print"
        | b"visible-print-block"
        | b"print-header"
        | b"printheader"
        | b"for-print"
        | b"offscreen" => marks.insert(Marks::HIDDEN),
        b"respond" | b"disqus_thread" | b"reader-comments" | b"livefyre" | b"dsq-content" => {
            marks.insert(Marks::COMMENTS);
        }
        b"link-list" | b"see-also" | b"more-news" | b"read-more" | b"readmore" | b"read-next"
        | b"up-next" | b"next-post" | b"prev-post" | b"post-navigation" | b"nav-links" | b"tag-links"
        | b"cat-links" | b"sign-up" | b"log-in" | b"jp-relatedposts" | b"yarpp" | b"addtoany"
        | b"sharedaddy" | b"addthis" | b"mod-list" | b"most-read" | b"skip-link" | b"back-to-top"
        | b"site-header" | b"page-header-top" | b"masthead" | b"nocontent" | b"author-box"
        | b"author-bio" | b"about-author" | b"authorbox" | b"author-info" | b"author_info"
        | b"mw-editsection" | b"mw-jump-link" | b"catlinks" | b"navbox" | b"toc" | b"table-of-contents"
        | b"printfooter" | b"entry-footer" | b"entry-meta" | b"post-meta" | b"post-footer" => {
            marks.insert(Marks::BOILERPLATE)
        }
        _ => {}
    }
}

/// Words that have a meaning in any name.
fn one_word(word: &[u8], marks: &mut Marks) {
    match word {
        b"comment" | b"comments" | b"commentlist" | b"kommentare" | b"kommentar" | b"commentaires"
        | b"comentarios" | b"disqus" | b"replies" | b"trackback" | b"trackbacks" | b"pingback"
        | b"usercomments" => {
            marks.insert(Marks::COMMENTS);
        }
        b"aside" | b"likes" | b"nav" | b"navi" | b"navbar" | b"navigation" | b"menu" | b"submenu"
        | b"footer" | b"sidebar" | b"sidebars" | b"breadcrumb" | b"breadcrumbs" | b"share" | b"sharing"
        | b"shares" | b"social" | b"socials" | b"socialmedia" | b"related" | b"recommended"
        | b"recommendation" | b"recommendations" | b"recommend" | b"newsletter" | b"subscribe"
        | b"subscription" | b"advert" | b"adverts" | b"advertisement" | b"advertising" | b"ads"
        | b"adsbygoogle" | b"sponsor" | b"sponsored" | b"promo" | b"promotion" | b"cookie" | b"cookies"
        | b"consent" | b"gdpr" | b"popup" | b"modal" | b"lightbox" | b"pagination" | b"pager"
        | b"pagenavi" | b"login" | b"signin" | b"signup" | b"outbrain" | b"taboola" | b"toolbar"
        | b"searchform" | b"searchbox" | b"tagcloud" | b"tags" | b"taglist" | b"trending" | b"donate"
        | b"donation" | b"topbar" | b"copyright" | b"disclaimer" | b"sitemap" | b"feedback" | b"bookmark"
        | b"bookmarks" | b"zergnet" | b"dropdown" | b"carousel" | b"slider" | b"popular" | b"mostread"
        | b"sidenav" | b"skyscraper" | b"whatsapp" | b"facebook" | b"twitter" | b"pinterest"
        | b"linkedin" | b"instagram" | b"ratings" | b"rating" | b"vote" | b"voting" | b"countdown"
        | b"marketing" | b"shopping" | b"cart" | b"banner" => {
            marks.insert(Marks::BOILERPLATE);
        }
        b"teaser" | b"teasers" => marks.insert(Marks::TEASER),
        b"byline" | b"dateline" | b"timestamp" | b"credit" | b"credits" | b"caption" | b"meta"
        | b"metadata" | b"pubdate" | b"postmetadata" | b"author" | b"authors" | b"autor" | b"postmeta"
        | b"entrymeta" | b"datum" | b"date" => {
            marks.insert(Marks::META);
        }
        _ => {}
    }
}
