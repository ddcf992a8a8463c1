//! TeX notations for characters available in Unicode.

use super::literal::VERBATIM;

/// Text of a control sequence without arguments.
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

/// Combining character of an accent command.
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

/// A letter with its accent, precomposed if possible.
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

/// Treatment of a command and its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Drops an optional argument and this many mandatory ones.
    Drop(u8),
    /// Drops this many arguments (including optional ones) and keeps the text of the next.
    DropThenKeep(u8),
    /// A heading of this level.
    Heading(u8),
    /// Puts the text in parentheses.
    Aside,
    /// Ends the document.
    Stop,
}

/// Treatment of commands for which dropping the name is not enough.
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

/// Treatment of an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EnvironmentRule {
    /// Kept as source, with macros expanded.
    Equation,
    /// Kept verbatim.
    Verbatim,
    /// Left out.
    Drop,
    /// Only its captions and tables are kept.
    Float,
    /// Rendered as rows and cells.
    Table,
    /// Ends the document.
    Stop,
}

/// Treatment of environments that are more than their content.
pub(super) fn environment(name: &str) -> Option<EnvironmentRule> {
    Some(match name.trim_end_matches('*') {
        "equation" | "align" | "alignat" | "eqnarray" | "gather" | "multline" | "flalign" | "displaymath"
        | "math" | "dmath" | "subequations" | "IEEEeqnarray" | "split" | "cases" | "array" | "matrix"
        | "pmatrix" | "aligned" => EnvironmentRule::Equation,
        name if VERBATIM.contains(&name) => EnvironmentRule::Verbatim,
        "tikzpicture" | "picture" | "pspicture" | "pgfpicture" | "comment" | "filecontents" | "CCSXML"
        | "asy" | "feynmf" | "fmffile" | "keywords" | "axis" | "tikzcd" => EnvironmentRule::Drop,
        "figure" | "table" | "wrapfigure" | "wraptable" | "sidewaystable" | "sidewaysfigure" | "SCfigure"
        | "longtable" | "deluxetable" | "marginfigure" | "subfigure" => EnvironmentRule::Float,
        "tabular" | "tabularx" | "tabulary" | "supertabular" => EnvironmentRule::Table,
        "thebibliography" | "appendix" | "appendices" | "references" | "document_end" => {
            EnvironmentRule::Stop
        }
        _ => return None,
    })
}
