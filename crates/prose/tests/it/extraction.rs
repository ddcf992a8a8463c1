//! LaTeX, wikitext and web pages to text.

use fathom_prose::extract::labelled::{Score, pages};
use fathom_prose::extract::{
    Html, HtmlOptions, Latex, LatexFile, LatexOptions, Method, Refusal, Wikitext, WikitextOptions,
};

fn paper(files: &[(&str, &str)]) -> Result<String, Refusal> {
    let files: Vec<LatexFile> = files
        .iter()
        .map(|(path, text)| LatexFile { path: path.to_string(), text: text.to_string() })
        .collect();
    Latex::new(&LatexOptions { require_sections: false, ..LatexOptions::default() }).extract(&files)
}

#[track_caller]
fn check_tex(source: &str, text: &str) {
    assert_eq!(paper(&[("main.tex", source)]).as_deref(), Ok(text), "for {source:?}");
}

#[test]
fn latex_becomes_text() {
    check_tex(
        "\\section{One} a % comment\n b\\% c\n\n\\textbf{bold} and {\\em italic}",
        "## One\n\na b% c\n\nbold and italic",
    );
    check_tex(
        "\\documentclass{article}\\usepackage{x}\\title{T}\\begin{document}\\maketitle Text~here\\end{document}no",
        "# T\n\nText here",
    );
    check_tex(
        "\\emph{a}\\cite{k}, see \\ref{x}.\\footnote{Note.} ``q'' --- 1--2 \\'e \\\"{o} \\o \\ss",
        "a, see. (Note.) “q” — 1–2 é ö øß",
    );
    check_tex("a\\begin{itemize}\\item one\\item[two] three\\end{itemize}b", "a\n\n- one\n- two three\n\nb");
    check_tex(
        "x $a_1 \\le b$ y \\(c\\) z\\begin{equation}\\label{e} E=mc^2 \\end{equation}w",
        "x $a_1 \\le b$ y $c$ z\n\n\\begin{equation}\nE=mc^2\n\\end{equation}\n\nw",
    );
    check_tex(
        "\\begin{figure}\\includegraphics{f}\\caption{A \\textit{fine} map.}\\label{f}\\end{figure} after",
        "A fine map.\n\nafter",
    );
    check_tex("\\begin{tabular}{ll} a & b \\\\ c & d \\end{tabular}", "a | b\nc | d");
    check_tex("text\\appendix more", "text");
    check_tex("text \\begin{thebibliography}{9}\\bibitem{a} A\\end{thebibliography}", "text");
    check_tex("\\begin{verbatim}\nlet x = 1; % no comment\n\\end{verbatim}", "let x = 1; % no comment");
    check_tex("\\unknown{kept} \\vspace{1cm}\\href{http://x}{link}", "kept link");
    check_tex("a\\iffalse b\\fi c", "ac");
}

#[test]
fn latex_reads_code_and_addresses_letter_by_letter() {
    check_tex("A1 see \\url{http://a.org/b%20c} for more.", "A1 see http://a.org/b%20c for more.");
    check_tex("\\href{http://a.org/%20}{the link} goes on % a comment\n here", "the link goes on here");
    check_tex("\\url{a\\%b\\_c} \\nolinkurl{d%e}.\\footnote{\\url{f%20g}} h", "a%b_c d%e. (f%20g) h");
    check_tex("a \\verb|50% of {| b \\verb*|q r| c", "a 50% of { b q r c");
    check_tex("a \\lstinline[language=C]{x % 2} b \\lstinline!y % 3! c", "a x % 2 b y % 3 c");
    check_tex("a \\mintinline{python}{x % 2} b \\mintinline{python}|y % 2| c", "a x % 2 b y % 2 c");
    check_tex(
        "\\begin{lstlisting}[language=C, caption={a]b}]\n[1] % 2\n\\end{lstlisting} % out\nafter",
        "[1] % 2\n\nafter",
    );
    check_tex("\\begin{minted}[linenos]{python}\n{x} % 2\n\\end{minted}", "{x} % 2");
    check_tex("\\begin{Verbatim}\na % b\n\\end{Verbatim}c % d\ne", "a % b\n\nc e");
    check_tex("% \\begin{verbatim}\na % b\nc \\emph{d}", "a c d");
    check_tex("?`Qu\\'e? !`Hola! ``Why?'' Stop!", "¿Qué? ¡Hola! “Why?” Stop!");
    let main = "\\begin{document}\\begin{verbatim}\\input{b}\\end{verbatim}\\input{b}\\end{document}";
    assert_eq!(paper(&[("main.tex", main), ("b.tex", "B")]).as_deref(), Ok("\\input{b}\n\nB"));
}

#[test]
fn macros_are_expanded() {
    check_tex("\\newcommand{\\name}{Fathom}\\name{} is \\name", "Fathom is Fathom");
    check_tex("\\newcommand{\\two}[2]{#2-#1}\\two{a}{b}", "b-a");
    check_tex("\\newcommand{\\opt}[2][d]{#1:#2}\\opt{x} \\opt[y]{z}", "d:x y:z");
    check_tex("\\def\\pair#1,#2;{(#1|#2)}\\pair a,b; end", "(a|b) end");
    check_tex(
        "\\newcommand{\\be}{\\begin{equation}}\\newcommand{\\ee}{\\end{equation}}\\newcommand{\\R}{\\mathbb{R}}\\be x\\in\\R \\ee",
        "\\begin{equation}\nx\\in\\mathbb{R}\n\\end{equation}",
    );
    check_tex("\\let\\old\\textbf \\old{a}", "a");
    check_tex("\\newenvironment{thm}{Theorem: }{ Done.}\\begin{thm}x\\end{thm}", "Theorem: x Done.");
    check_tex("\\renewcommand{\\section}{\\bad}\\section{A}", "## A");
}

#[test]
fn files_are_included_once_inside_themselves() {
    let main =
        "\\documentclass{a}\\begin{document}\\input{sub/a} and \\include{b}\\input missing\n\\end{document}";
    let text = paper(&[("main.tex", main), ("sub/a.tex", "A"), ("b.tex", "B \\input{main} \\input{b}")]);
    assert_eq!(text.as_deref(), Ok("A and B"));
    assert_eq!(paper(&[("a.tex", "plain words")]), Err(Refusal::NoDocument));
    let strict = Latex::default().extract(&[LatexFile { path: "a.tex".into(), text: "\\emph{a}".into() }]);
    assert_eq!(strict, Err(Refusal::NoDocument));
}

#[test]
fn hostile_latex_ends() {
    for source in [
        "\\def\\a{\\a}\\a".to_string(),
        "\\def\\a{\\a\\a}\\a end".to_string(),
        "\\newcommand{\\x}[1]{#1#1#1#1#1#1#1#1}".to_string() + &"\\x{".repeat(40) + "y" + &"}".repeat(40),
        "\\def\\a#1\\zz{}".to_string() + &"\\a ".repeat(20_000),
        "{".repeat(300_000),
        "\\label{".repeat(100_000),
        "\\begin{figure}".repeat(50_000),
        "\\footnote{".repeat(50_000),
        "$".repeat(99_999),
        "\\verb".repeat(50_000),
        "\\input{main}".repeat(10_000),
    ] {
        let started = std::time::Instant::now();
        let _ = paper(&[("main.tex", &source)]);
        assert!(started.elapsed().as_secs() < 5, "{}", &source[..source.len().min(60)]);
    }
}

#[track_caller]
fn check_wiki(source: &str, text: &str) {
    assert_eq!(Wikitext::default().extract(source).as_deref(), Ok(text), "for {source:?}");
}

#[test]
fn wikitext_becomes_text() {
    check_wiki("'''Bold''' and ''italic'' [[Target|text]] [[plain]]s.", "Bold and italic text plains.");
    check_wiki("A{{cite|x={{y}}}} b<ref name=a>note [[x]]</ref> c<ref name=a /> d<!-- no -->.", "A b c d.");
    check_wiki(
        "[[File:a.jpg|thumb|A [[b]] caption]]\nText\n[[Category:X]] [[de:Y]] [[:Category:Z]]",
        "Text\nCategory:Z",
    );
    check_wiki(
        "== One ==\nText.\n=== Two ===\nMore.\n== Empty ==\n== See also ==\n* [[x]]\n=== Deep ===\ny",
        "## One\n\nText.\n\n### Two\n\nMore.",
    );
    check_wiki("* one\n** two\n# three\n: indented", "- one\n- two\n- three\nindented");
    check_wiki("{| class=x\n|-\n! a !! b\n|-\n| c || d\n|}\nAfter", "After");
    check_wiki(
        "See [http://x.org the site] or [http://y.org] &amp; &ndash; <br/>next",
        "See the site or & –\nnext",
    );
    check_wiki("{{lang|fr|été}} is {{convert|5|km}} long {{unknown|a}}.", "été is 5 km long.");
    check_wiki("<nowiki>[[x]]</nowiki> __NOTOC__ <math>a^2</math>", "[[x]] $a^2$");
    check_wiki("a {{unclosed\nb [[c", "a\nb c");
    let options = WikitextOptions { tables: true, ..WikitextOptions::default() };
    let table = "{| class=x\n|+ Title\n|-\n! a !! b\n|-\n| style=\"x\" | c || [[d|e]]\n|}";
    assert_eq!(Wikitext::new(&options).extract(table).as_deref(), Ok("Title\na | b\nc | e"));
    assert_eq!(Wikitext::default().extract("#REDIRECT [[x]]"), Err(Refusal::Redirect));
    assert_eq!(Wikitext::default().extract("{{only}}"), Err(Refusal::NoContent));
}

#[test]
fn wikitext_keeps_numbers_formulas_and_literal_text() {
    check_wiki("It is {{val|1.5|e=3}} long.", "It is 1.5×10^3 long.");
    check_wiki("{{val|1.5|0.2|e=3|u=m}}, {{val|7|u=kg|up=s}}, {{val|e=6}}", "(1.5±0.2)×10^3 m, 7 kg/s, 10^6");
    check_wiki("{{as of|2020}} and {{as of|2020|5|lc=y}} x", "As of 2020 and as of May 2020 x");
    check_wiki("Water is <chem>H2O</chem> or <ce>H2O</ce>.", "Water is $\\ce{H2O}$ or $\\ce{H2O}$.");
    check_wiki("a <nowiki>''b'' == __TOC__ {{c|d}} -{e}-</nowiki> f", "a ''b'' == __TOC__ {{c|d}} -{e}- f");
    check_wiki("<nowiki>* a</nowiki>\n'<nowiki/>''b''", "* a\n'b");
    check_wiki(
        "<math>f''(x)</math> &#39;&#39;x&#39;&#39; {{nowrap|<math>a = b</math>}}",
        "$f''(x)$ ''x'' $a = b$",
    );
    check_wiki("a -{zh-hans:简;zh-hant:繁}- b -{c}- d -{H|zh-cn:e}-f-{g", "a 简 b c d f-{g");
    check_wiki("{{nowrap|-{zh-cn:x; zh-tw:y}-}} x-{{nowrap|z}}", "x x-z");
}

#[test]
fn hostile_wikitext_ends() {
    for piece in [
        "{{",
        "[[",
        "{|\n",
        "<ref>",
        "<",
        "[http://",
        "}}",
        "[[a|{{b|",
        "<ref><nowiki>",
        "&",
        "__",
        "''",
        "=",
        "{{{",
    ] {
        let started = std::time::Instant::now();
        let _ = Wikitext::default().extract(&piece.repeat(200_000));
        assert!(started.elapsed().as_secs() < 5, "{piece}");
    }
}

#[test]
fn labelled_pages_come_out() {
    let set = pages(4, 100);
    assert_eq!(set, pages(4, 100));
    let usual = HtmlOptions::default();
    for (method, least) in [(Method::Dense, 0.97), (Method::Trafilatura, 0.85), (Method::Justext, 0.6)] {
        let html = Html::new(&HtmlOptions { method, ..usual.clone() }).unwrap();
        let mut score = Score::default();
        for page in &set {
            score.add(page, &html.extract(&page.html).unwrap_or_default());
        }
        assert!(score.f1() >= least, "{method:?}: {} {} {}", score.f1(), score.precision(), score.recall());
    }
}

#[test]
fn stop_words_choose_lines() {
    let page = "<article><p>The cat sat on the mat and it was the best of all the days that we had.</p>\
                <p>Quux frobnicate zzyzx plugh xyzzy foobar barbaz lorem dolor ipsum amet consectetur</p></article>";
    let options = HtmlOptions { min_chars: 10, ..HtmlOptions::curator(Method::Dense) };
    let text = Html::new(&options).unwrap().extract(page).unwrap();
    assert!(text.contains("The cat") && !text.contains("Quux"), "{text}");
    assert_eq!(
        Html::new(&HtmlOptions::curator(Method::Dense)).unwrap().extract(page),
        Err(Refusal::TooShort)
    );
    let error =
        Html::new(&HtmlOptions { stop_words: "Klingon".into(), min_stop_words: 0.3, ..options }).unwrap_err();
    assert!(error.to_string().contains("Klingon"), "{error}");
}

#[test]
fn stop_words_are_those_of_the_page() {
    let german = "Der Ausschuss traf sich an einem regnerischen Abend und sprach lange über die Straßen, die aus der \
                  Stadt in die Dörfer führen und die im Winter nicht zu befahren sind, weil der Schnee auf ihnen liegt.";
    let page = |text: &str| {
        format!("<html><body><article><p>{text}</p><p>{text} So war es.</p></article></body></html>")
    };
    let text = |method, text: &str| {
        let options = HtmlOptions { min_chars: 0, ..HtmlOptions::curator(method) };
        Html::new(&options).unwrap().page(&page(text))
    };
    for method in [Method::Dense, Method::Justext, Method::Trafilatura] {
        let found = text(method, german).unwrap();
        assert!(found.text.contains("regnerischen Abend"), "{method:?}: {}", found.text);
        assert_eq!(found.language.unwrap().label(), "de_Latn");
    }
    let japanese = "委員会は雨の夜に集まり、町から出る道について話しました。とても長い会議でした。".repeat(4);
    for method in [Method::Dense, Method::Justext] {
        assert!(text(method, &japanese).unwrap().text.contains("雨の夜"), "{method:?}");
    }
    // A language without a stop-word list.
    let georgian = "კომიტეტი წვიმიან საღამოს შეიკრიბა და გზებზე ისაუბრა, რომლებიც ქალაქიდან გადის.".repeat(4);
    assert_eq!(text(Method::Dense, &georgian), Err(Refusal::NoStopWords));
    // Without stop words the language is detected only on request.
    let plain = |language| {
        let options = HtmlOptions { language, ..HtmlOptions::default() };
        Html::new(&options).unwrap().page(&page(&georgian)).unwrap().language
    };
    assert_eq!(plain(false), None);
    assert_eq!(plain(true).unwrap().code, "ka");
    let wrong = HtmlOptions { min_stop_words: 32.0, ..HtmlOptions::default() };
    assert!(Html::new(&wrong).unwrap_err().to_string().contains("`html.min_stop_words` is 32"));
}
