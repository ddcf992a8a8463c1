//! Element names relevant to extraction, grouped by kind.

/// An element by name; irrelevant names are [`Tag::Other`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Tag {
    /// A run of text rather than an element.
    Text,
    /// Inline elements without a special role here.
    Inline,
    /// Unknown elements; those with a dash are components, which pages use as blocks.
    Other,
    A,
    Br,
    /// `rt`, `rp`: pronunciation of the preceding word, and the parentheses around it.
    Annotation,
    Span,
    P,
    Div,
    Section,
    Article,
    Main,
    Header,
    Heading,
    Ul,
    Li,
    Dl,
    Dt,
    Dd,
    Blockquote,
    Pre,
    Code,
    Table,
    Row,
    Cell,
    TablePart,
    Figure,
    Caption,
    Body,
    Html,
    Details,
    Hr,
    /// `nav`, `footer`, `aside`, `menu`: outside the content by definition.
    Around,
    /// Forms, controls and embedded objects: never part of a page's text.
    Control,
    /// `head` with its contents, `template`, `svg` ...: not displayed as text.
    Hidden,
    Noscript,
    Form,
}

impl Tag {
    /// Tag for a name, ignoring case.
    pub(super) fn of(name: &[u8]) -> Tag {
        let mut lower = [0u8; 12];
        let Some(lower) = lower.get_mut(..name.len()) else { return Tag::Other };
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        match &*lower {
            b"a" => Tag::A,
            b"b" | b"i" | b"em" | b"strong" | b"u" | b"s" | b"small" | b"big" | b"font" | b"abbr"
            | b"cite" | b"mark" | b"sub" | b"sup" | b"time" | b"var" | b"samp" | b"kbd" | b"tt" | b"q"
            | b"ins" | b"del" | b"strike" | b"bdi" | b"bdo" | b"dfn" | b"acronym" | b"label" | b"wbr"
            | b"img" | b"picture" | b"source" | b"data" | b"nobr" | b"ruby" | b"rb" => Tag::Inline,
            b"rt" | b"rp" | b"rtc" => Tag::Annotation,
            b"code" => Tag::Code,
            b"br" => Tag::Br,
            b"span" => Tag::Span,
            b"p" => Tag::P,
            b"div" | b"center" | b"address" | b"fieldset" | b"hgroup" => Tag::Div,
            b"section" => Tag::Section,
            b"article" => Tag::Article,
            b"main" => Tag::Main,
            b"header" => Tag::Header,
            b"h1" | b"h2" | b"h3" | b"h4" | b"h5" | b"h6" => Tag::Heading,
            b"ul" | b"ol" | b"dir" => Tag::Ul,
            b"li" => Tag::Li,
            b"dl" => Tag::Dl,
            b"dt" => Tag::Dt,
            b"dd" => Tag::Dd,
            b"blockquote" => Tag::Blockquote,
            b"pre" | b"xmp" | b"listing" | b"plaintext" => Tag::Pre,
            b"table" => Tag::Table,
            b"tr" => Tag::Row,
            b"td" | b"th" => Tag::Cell,
            b"tbody" | b"thead" | b"tfoot" | b"colgroup" | b"col" => Tag::TablePart,
            b"figure" => Tag::Figure,
            b"figcaption" | b"caption" => Tag::Caption,
            b"body" => Tag::Body,
            b"html" => Tag::Html,
            b"details" | b"summary" => Tag::Details,
            b"hr" => Tag::Hr,
            b"nav" | b"footer" | b"aside" | b"menu" => Tag::Around,
            b"button" | b"input" | b"select" | b"option" | b"textarea" | b"iframe" | b"video" | b"audio"
            | b"canvas" | b"object" | b"embed" | b"applet" | b"map" | b"area" | b"optgroup" | b"datalist"
            | b"dialog" | b"progress" | b"meter" | b"track" | b"param" | b"frame" | b"frameset"
            | b"noframes" | b"noembed" | b"marquee" => Tag::Control,
            b"head" | b"script" | b"style" | b"template" | b"svg" | b"math" | b"link" | b"meta" | b"base"
            | b"title" => Tag::Hidden,
            b"noscript" => Tag::Noscript,
            b"form" => Tag::Form,
            _ => Tag::Other,
        }
    }

    /// Returns true for elements without content.
    pub(super) fn is_void(name: &[u8]) -> bool {
        const VOID: [&[u8]; 18] = [
            b"br",
            b"hr",
            b"img",
            b"input",
            b"link",
            b"meta",
            b"area",
            b"base",
            b"col",
            b"embed",
            b"source",
            b"track",
            b"wbr",
            b"param",
            b"frame",
            b"keygen",
            b"command",
            b"basefont",
        ];
        VOID.iter().any(|v| name.eq_ignore_ascii_case(v))
    }

    /// Returns true for elements that flow with the surrounding text.
    pub(super) fn is_inline(self) -> bool {
        matches!(self, Tag::Text | Tag::Inline | Tag::A | Tag::Br | Tag::Span | Tag::Code | Tag::Annotation)
    }

    /// Returns true for elements that are inline if they occur within a line of text.
    pub(super) fn may_flow(self) -> bool {
        matches!(self, Tag::Hidden | Tag::Control | Tag::Noscript | Tag::Other)
    }

    /// Returns true for elements that are never part of a page's text.
    pub(super) fn is_no_text(self) -> bool {
        matches!(self, Tag::Hidden | Tag::Control | Tag::Annotation)
    }
}
