//! Comparison of extractors with references: papers and pages are assembled from pieces with known text, so the
//! expected text is known. Pieces contain the format's special characters as literal text, and unknown elements.

use fathom_prose::extract::{Html, HtmlOptions, Latex, LatexFile, LatexOptions, Method, Wikitext};

/// Source of a piece, and its text.
type Piece = (String, String);

/// Seeded random choices (splitmix64).
struct Choices(u64);

impl Choices {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    /// Up to `most` random items of `of`, joined.
    fn signs(&mut self, of: &[&str], most: usize) -> String {
        (0..=self.below(most)).map(|_| self.pick(of)).collect()
    }

    fn words(&mut self) -> String {
        let words = ["river", "stone", "of the", "winter", "and", "music", "was in", "12", "to be"];
        let count = 1 + self.below(4);
        (0..count).map(|_| self.pick(&words)).collect::<Vec<_>>().join(" ")
    }

    /// A paragraph with distinctive first and last words, and separate inline pieces in between.
    fn paragraph(&mut self, number: usize, piece: fn(&mut Choices) -> Piece) -> Piece {
        let mut written = format!("HEAD{number} is what the paragraph begins with");
        let mut read = written.clone();
        for _ in 0..=self.below(5) {
            let (source, text) = piece(self);
            let words = self.words();
            written += &format!(" {source} {words}");
            read += &if text.is_empty() { format!(" {words}") } else { format!(" {text} {words}") };
        }
        let tail = format!(" and it goes on to its very end, which is TAIL{number}.");
        (written + &tail, read + &tail)
    }
}

fn same(text: impl Into<String>) -> Piece {
    let text = text.into();
    (text.clone(), text)
}

const CODE: [&str; 14] =
    ["%", "{", "}", "\\", "$", "&", "x", " ", "[1]", "\"", "''", "--", "\\begin{b}", "\\input{c}"];

fn latex_piece(choices: &mut Choices) -> Piece {
    let address = format!("http://a.org/{}b", choices.signs(&["%20", "_", "~", "&", "x", "--", "#"], 4));
    let code = format!("x{}y", choices.signs(&CODE, 5));
    match choices.below(14) {
        0 => (format!("\\url{{{address}}}"), address),
        1 => (format!("\\href{{{address}}}{{the link}}"), "the link".into()),
        2 => (format!("\\verb|{code}|"), code),
        3 => (format!("\\verb*!{code}!"), code),
        4 => (format!("\\lstinline[language=C]!{code}!"), code),
        5 => (format!("\\mintinline{{python}}|{code}|"), code),
        6 => (format!("\\footnote{{See \\url{{{address}}}.}}"), format!("(See {address}.)")),
        7 => (format!("gone % {code} \\url{{ \\verb|\n here"), "gone here".into()),
        8 => (format!("\\unheardof{{kept \\url{{{address}}} on}}"), format!("kept {address} on")),
        9 => ("5\\% of \\{ \\& \\_".into(), "5% of { & _".into()),
        10 => ("?`Why? !`Stop! ``So'' --- 1--2".into(), "¿Why? ¡Stop! “So” — 1–2".into()),
        11 => same("$a_1 \\le b$"),
        12 => (format!("\\path|{address}|"), address),
        _ => same(choices.words()),
    }
}

fn latex_block(choices: &mut Choices) -> Piece {
    let code: Vec<String> =
        (0..=choices.below(3)).map(|_| format!("x{}y", choices.signs(&CODE, 6))).collect();
    let code = code.join("\n");
    let (open, name) = match choices.below(5) {
        0 => ("\\begin{lstlisting}[language=C, caption={a]b}]", "lstlisting"),
        1 => ("\\begin{minted}[linenos]{python}", "minted"),
        2 => ("\\begin{verbatim*}", "verbatim*"),
        3 => ("\\begin{Verbatim}[fontsize=\\small]", "Verbatim"),
        _ => ("\\begin{verbatim}", "verbatim"),
    };
    (format!("{open}\n{code}\n\\end{{{name}}}"), code)
}

#[test]
fn latex_of_literal_and_unknown_pieces_reads_as_they_do() {
    for seed in 0..400 {
        let mut choices = Choices(seed);
        let mut blocks = Vec::new();
        for number in 0..=choices.below(5) {
            let (source, text) = choices.paragraph(number, latex_piece);
            let source = match choices.below(4) {
                0 => format!("\\begin{{unheardof}}\n{source}\n\\end{{unheardof}}"),
                1 => format!("% a comment {{ \\begin{{verbatim}}\n{source}"),
                2 => format!("{{\\small {source}}}"),
                _ => source,
            };
            blocks.push((source, text));
            if choices.below(2) == 0 {
                blocks.push(latex_block(&mut choices));
            }
        }
        let (sources, texts): (Vec<String>, Vec<String>) = blocks.into_iter().unzip();
        // A file without any command is not accepted as a paper.
        let source = format!("\\emph{{START}}\n\n{}", sources.join("\n\n"));
        let text = format!("START\n\n{}", texts.join("\n\n"));
        let file = LatexFile { path: "main.tex".into(), text: source.clone() };
        let latex = Latex::new(&LatexOptions { require_sections: false, ..LatexOptions::default() });
        assert_eq!(latex.extract(&[file]).as_deref(), Ok(&*text), "seed {seed}: {source}");
    }
}

fn wiki_piece(choices: &mut Choices) -> Piece {
    const SIGNS: [&str; 12] = ["'''", "[[", "]]", "{{", "}}", "|", "<b>", "*", "x", "==", "-{", "__TOC__"];
    let literal = format!("x{}y", choices.signs(&SIGNS, 5));
    match choices.below(14) {
        0 => (format!("<nowiki>{literal}</nowiki>"), literal),
        1 => (format!("{{{{unheardof|{}|a=b}}}}", choices.words()), String::new()),
        2 => (format!("<ref name=a>{{{{cite|x}}}} {}</ref>", choices.words()), String::new()),
        3 => ("{{val|1.5|e=3}}".into(), "1.5×10^3".into()),
        4 => ("{{as of|2020}}".into(), "As of 2020".into()),
        5 => ("<chem>H2O</chem>".into(), "$\\ce{H2O}$".into()),
        6 => ("<math>a^{2}_{|x|} ''</math>".into(), "$a^{2}_{|x|} ''$".into()),
        7 => ("-{zh-hans:one;zh-hant:two}-".into(), "one".into()),
        8 => ("[[Target (x)|'''text''' of it]]".into(), "text of it".into()),
        9 => (format!("<unheardof a=b>{0}</unheardof>", "inside"), "inside".into()),
        10 => ("<!-- ]] {{ -->".into(), String::new()),
        11 => ("&lt;b&gt; &#91;&#91;x&#93;&#93;".into(), "<b> [[x]]".into()),
        12 => ("[http://a.org/b%20c the ''site'']".into(), "the site".into()),
        _ => same(choices.words()),
    }
}

fn wiki_block(choices: &mut Choices) -> Piece {
    const SIGNS: [&str; 10] = ["'''", "[[", "{{", "}}", "|", "* ", "  ", "x", "==", "{|"];
    let lines: Vec<String> =
        (0..=choices.below(3)).map(|_| format!("x{}y", choices.signs(&SIGNS, 5))).collect();
    let name = choices.pick(&["syntaxhighlight", "pre", "source"]);
    (format!("<{name} lang=c>\n{}\n</{name}>", lines.join("\n")), lines.join("\n"))
}

#[test]
fn wikitext_of_literal_and_unknown_pieces_reads_as_they_do() {
    for seed in 0..400 {
        let mut choices = Choices(seed);
        let mut blocks = Vec::new();
        for number in 0..=choices.below(5) {
            blocks.push(choices.paragraph(number, wiki_piece));
            if choices.below(2) == 0 {
                blocks.push(wiki_block(&mut choices));
            }
        }
        let (sources, texts): (Vec<String>, Vec<String>) = blocks.into_iter().unzip();
        let source = sources.join("\n\n");
        let found = Wikitext::default().extract(&source);
        // Empty lines around code are added by the extractor.
        let lines = |text: &str| text.lines().filter(|l| !l.is_empty()).map(String::from).collect::<Vec<_>>();
        assert_eq!(found.map(|text| lines(&text)), Ok(lines(&texts.join("\n"))), "seed {seed}: {source}");
    }
}

/// Expected text of an inline element, by method: Trafilatura shows what browsers show.
fn html_piece(choices: &mut Choices, method: Method) -> Piece {
    let shown = |text: &str| if method == Method::Dense { String::new() } else { text.to_string() };
    let name = choices.pick(&["x-term", "unheardof", "BLINK", "my-long-element-name"]);
    match choices.below(16) {
        0 => ("<script>if (a < b) { x = '</p>'; }</script>".into(), String::new()),
        1 => ("<style>p > b { }</style>".into(), String::new()),
        2 => ("<noscript>off</noscript>".into(), shown("off")),
        3 => ("<svg><title/><path d='M0 0'/><text>t</text></svg>".into(), String::new()),
        4 => ("<math><mi>x</mi></math>".into(), shown("x")),
        5 => ("<button type=button>Press</button>".into(), shown("Press")),
        6 => ("<input type=text value='a > b'>".into(), String::new()),
        7 => ("<iframe src=x></iframe>".into(), String::new()),
        8 => ("<wbr>".into(), String::new()),
        9 => (format!("<{name} class='a b'>inside</{name}>"), "inside".into()),
        10 => (format!("<{name}><b>twice</b> <i>in</i></{name}>"), "twice in".into()),
        11 => ("<!-- <p> -->".into(), String::new()),
        12 => ("&lt;b&gt; &amp;amp; 1 < 2".into(), "<b> &amp; 1 < 2".into()),
        13 => ("<code>a &lt; b</code>".into(), "a < b".into()),
        14 => ("<b>bold</b> <span>and</span>".into(), "bold and".into()),
        _ => same(choices.words()),
    }
}

fn html_block(choices: &mut Choices) -> Piece {
    const SIGNS: [&str; 8] = ["    ", "if x:", "&lt;", "&amp;", "  # ", "\"", "*", "y"];
    let lines: Vec<String> =
        (0..=choices.below(4)).map(|_| format!("x{}y", choices.signs(&SIGNS, 4))).collect();
    let lines = lines.join("\n    ");
    (format!("<pre>{lines}</pre>"), lines.replace("&lt;", "<").replace("&amp;", "&"))
}

fn check_html(method: Method, seeds: u64) {
    let html = Html::new(&HtmlOptions { method, ..HtmlOptions::default() }).unwrap();
    for seed in 0..seeds {
        let mut choices = Choices(seed);
        let piece = match method {
            Method::Trafilatura => |choices: &mut Choices| html_piece(choices, Method::Trafilatura),
            _ => |choices: &mut Choices| html_piece(choices, Method::Dense),
        };
        let (mut page, mut wanted) = (String::new(), Vec::new());
        for number in 0..3 + choices.below(4) {
            let (source, text) = choices.paragraph(number, piece);
            let (open, close) = match choices.below(4) {
                0 => ("<P CLASS='intro'>", "</P>"),
                1 => ("<p>\n", "\n"),
                _ => ("<p>", "</p>\n"),
            };
            page += &format!("{open}{source}{close}");
            wanted.push(text);
            if choices.below(3) == 0 {
                let (source, text) = html_block(&mut choices);
                page += &source;
                wanted.push(text);
            }
        }
        let page = format!("<html><body><article>{page}</article></body></html>");
        let found = html.extract(&page).unwrap_or_default();
        let found: Vec<&str> = found.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        let wanted: Vec<&str> = wanted.iter().flat_map(|text| text.lines()).map(str::trim_end).collect();
        assert_eq!(found, wanted, "{method:?}, seed {seed}: {page}");
    }
}

#[test]
fn html_of_literal_and_unknown_elements_reads_as_they_do() {
    check_html(Method::Dense, 400);
}

#[test]
fn trafilatura_reads_literal_and_unknown_elements_as_they_are() {
    check_html(Method::Trafilatura, 100);
}
