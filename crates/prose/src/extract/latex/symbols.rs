//! TeX's ways to write letters and signs that Unicode has.

use super::literal::VERBATIM;

/// What a control sequence without arguments stands for in text.
pub(super) fn symbol(name: &str) -> Option<&'static str> {
    Some(match name {
        "%" => "%",
        "&" => "&",
        "#" => "#",
        "_" => "_",
        "$" => "$",
        "{" => "{",
        "}" => "}",
        " " | "," | ";" | ":" | ">" | "quad" | "qquad" | "enspace" | "enskip" | "thinspace" | "space"
        | "nobreakspace" | "\n" | "\t" | "hfill" => " ",
        "-" | "/" | "!" | "@" | "protect" => "",
        "ss" => "ß",
        "ae" => "æ",
        "AE" => "Æ",
        "oe" => "œ",
        "OE" => "Œ",
        "aa" => "å",
        "AA" => "Å",
        "o" => "ø",
        "O" => "Ø",
        "l" => "ł",
        "L" => "Ł",
        "i" => "ı",
        "j" => "ȷ",
        "S" | "textsection" => "§",
        "P" => "¶",
        "dag" | "textdagger" => "†",
        "ddag" => "‡",
        "copyright" | "textcopyright" => "©",
        "pounds" => "£",
        "euro" | "texteuro" => "€",
        "textregistered" => "®",
        "texttrademark" => "™",
        "textdegree" | "degree" => "°",
        "ldots" | "dots" | "textellipsis" => "…",
        "textbackslash" => "\\",
        "textasciitilde" => "~",
        "textasciicircum" => "^",
        "textbar" => "|",
        "textless" => "<",
        "textgreater" => ">",
        "textexclamdown" => "¡",
        "textquestiondown" => "¿",
        "textbullet" => "•",
        "textendash" => "–",
        "textemdash" => "—",
        "textquoteleft" => "‘",
        "textquoteright" => "’",
        "textquotedblleft" => "“",
        "textquotedblright" => "”",
        "textunderscore" => "_",
        "slash" => "/",
        "TeX" => "TeX",
        "LaTeX" => "LaTeX",
        "LaTeXe" => "LaTeX2e",
        "BibTeX" => "BibTeX",
        _ => return None,
    })
}

/// The combining character of an accent command.
pub(super) fn accent(name: &str) -> Option<char> {
    Some(match name {
        "'" => '\u{301}',
        "`" => '\u{300}',
        "^" => '\u{302}',
        "\"" => '\u{308}',
        "~" => '\u{303}',
        "=" => '\u{304}',
        "." => '\u{307}',
        "u" => '\u{306}',
        "v" => '\u{30c}',
        "H" => '\u{30b}',
        "c" => '\u{327}',
        "k" => '\u{328}',
        "r" => '\u{30a}',
        "d" => '\u{323}',
        "b" => '\u{331}',
        _ => return None,
    })
}

/// A letter with its accent, as one character where there is one.
pub(super) fn accented(letter: &str, accent: char) -> String {
    use unicode_normalization::UnicodeNormalization;
    let letter = match letter.trim() {
        "\\i" | "ı" => "i",
        "\\j" | "ȷ" => "j",
        other => other.trim_matches(['{', '}']),
    };
    let mut chars = letter.chars();
    let Some(first) = chars.next() else { return String::new() };
    [first, accent].into_iter().nfc().chain(chars).collect()
}

/// What a command does with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Drops an optional and so many arguments.
    Drop(u8),
    /// Drops so many arguments (optional ones too) and keeps what is in the next as text.
    DropThenKeep(u8),
    /// A heading of this level.
    Heading(u8),
    /// The text in parentheses.
    Aside,
    /// The document ends here.
    Stop,
}

/// Commands that need more than dropping their name.
pub(super) fn command(name: &str) -> Option<Use> {
    Some(match name {
        "part" | "chapter" => Use::Heading(1),
        "section" => Use::Heading(2),
        "subsection" => Use::Heading(3),
        "subsubsection" => Use::Heading(4),
        "paragraph" | "subparagraph" => Use::Heading(5),
        "footnote" | "footnotetext" | "endnote" => Use::Aside,
        "appendix" | "appendices" | "bibliography" | "printbibliography" | "thebibliography" | "bye"
        | "enddocument" => Use::Stop,
        "label" | "ref" | "eqref" | "pageref" | "autoref" | "cref" | "Cref" | "vref" | "nameref" | "cite"
        | "citep" | "citet" | "citealt" | "citealp" | "citeauthor" | "citeyear" | "citeyearpar"
        | "citenum" | "onlinecite" | "nocite" | "parencite" | "textcite" | "autocite" | "footcite"
        | "supercite" | "includegraphics" | "includepdf" | "epsfig" | "psfig" | "epsfbox"
        | "bibliographystyle" | "usepackage" | "RequirePackage" | "documentclass" | "documentstyle"
        | "pagestyle" | "thispagestyle" | "pagenumbering" | "vspace" | "hspace" | "vskip" | "hskip"
        | "input" | "include" | "color" | "pagecolor" | "author" | "date" | "thanks" | "address"
        | "affiliation" | "affil" | "institute" | "email" | "altaffiliation" | "altaffilmark"
        | "affilmark" | "pacs" | "preprint" | "received" | "accepted" | "index" | "glossary"
        | "graphicspath" | "special" | "hypersetup" | "setlist" | "selectlanguage" | "subjclass"
        | "titlerunning" | "authorrunning" | "markright" | "offprints" | "linespread" | "usetikzlibrary"
        | "pgfplotsset" | "tikzset" | "lstset" | "captionsetup" | "geometry" | "cmidrule" | "cline"
        | "phantom" | "hphantom" | "vphantom" | "tag" | "numberwithin" | "theoremstyle"
        | "allowdisplaybreaks" | "hyphenation" | "orcid" | "corref" | "fnref" | "tnoteref" | "ead"
        | "noalign" | "addbibresource" | "bibinfo" | "usefont" | "specialsection" | "twocolumn"
        | "footnotemark" => Use::Drop(1),
        "setlength"
        | "addtolength"
        | "setcounter"
        | "addtocounter"
        | "newtheorem"
        | "rule"
        | "markboth"
        | "definecolor"
        | "fontsize"
        | "settowidth"
        | "DeclareGraphicsExtensions"
        | "AtBeginDocument" => Use::Drop(2),
        "addcontentsline" => Use::Drop(3),
        "textcolor" | "colorbox" | "href" | "raisebox" | "scalebox" | "parbox" | "rotatebox"
        | "fcolorbox" | "foreignlanguage" | "hyperref" | "hyperlink" | "hypertarget" | "makebox"
        | "framebox" => Use::DropThenKeep(1),
        "multicolumn" | "multirow" | "resizebox" => Use::DropThenKeep(2),
        _ => return None,
    })
}

/// What happens to an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Around {
    /// Kept as it is written, macros expanded.
    Equation,
    /// Kept letter for letter.
    Verbatim,
    /// Left out.
    Drop,
    /// Only its captions and tables are kept.
    Float,
    /// Rows and cells.
    Table,
    /// The document ends here.
    Stop,
}

/// Environments that are more than their content.
pub(super) fn environment(name: &str) -> Option<Around> {
    Some(match name.trim_end_matches('*') {
        "equation" | "align" | "alignat" | "eqnarray" | "gather" | "multline" | "flalign" | "displaymath"
        | "math" | "dmath" | "subequations" | "IEEEeqnarray" | "split" | "cases" | "array" | "matrix"
        | "pmatrix" | "aligned" => Around::Equation,
        name if VERBATIM.contains(&name) => Around::Verbatim,
        "tikzpicture" | "picture" | "pspicture" | "pgfpicture" | "comment" | "filecontents" | "CCSXML"
        | "asy" | "feynmf" | "fmffile" | "keywords" | "axis" | "tikzcd" => Around::Drop,
        "figure" | "table" | "wrapfigure" | "wraptable" | "sidewaystable" | "sidewaysfigure" | "SCfigure"
        | "longtable" | "deluxetable" | "marginfigure" | "subfigure" => Around::Float,
        "tabular" | "tabularx" | "tabulary" | "supertabular" => Around::Table,
        "thebibliography" | "appendix" | "appendices" | "references" | "document_end" => Around::Stop,
        _ => return None,
    })
}
