//! What is printed beside results: how much of it, and colours where a terminal shows them (`NO_COLOR`, `CLICOLOR_FORCE` and
//! `TERM=dumb` are obeyed).

use std::io::Write;
use std::sync::atomic::{AtomicU8, Ordering};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::builder::Styles;

/// What passes.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// What fails.
pub const BAD: Style = AnsiColor::Red.on_default().bold();
/// What deserves a look.
pub const DOUBT: Style = AnsiColor::Yellow.on_default().bold();
/// The head of a table or a group.
pub const HEAD: Style = Style::new().bold();

/// Colours of help texts and of refused command lines.
pub const HELP: Styles = Styles::styled()
    .header(HEAD)
    .usage(HEAD)
    .literal(AnsiColor::Cyan.on_default())
    .placeholder(Style::new())
    .error(BAD)
    .valid(GOOD)
    .invalid(DOUBT);

const PLAIN: u8 = 0;
const QUIET: u8 = 1;
const VERBOSE: u8 = 2;

static LEVEL: AtomicU8 = AtomicU8::new(PLAIN);

/// Sets how much is said, once, from the command line.
pub fn set(quiet: bool, verbose: bool) {
    let level = match (quiet, verbose) {
        (true, _) => QUIET,
        (_, true) => VERBOSE,
        _ => PLAIN,
    };
    LEVEL.store(level, Ordering::Relaxed);
}

/// Whether results, warnings and errors alone are printed.
pub fn is_quiet() -> bool {
    LEVEL.load(Ordering::Relaxed) == QUIET
}

/// Whether every step and every source is printed.
pub fn is_verbose() -> bool {
    LEVEL.load(Ordering::Relaxed) == VERBOSE
}

/// A line on standard error, which may be gone.
pub fn line(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// What ended the program, on standard error.
pub fn error(text: &str) {
    line(&marked(&format!("error: {text}")));
}

/// A line on standard error about what goes on; none with `--quiet`.
pub fn note(text: &str) {
    if !is_quiet() {
        line(text);
    }
}

/// A line on standard error with `--verbose`.
pub fn detail(text: &str) {
    if is_verbose() {
        line(text);
    }
}

/// A warning on standard error.
pub fn warn(text: &str) {
    line(&marked(&format!("warning: {text}")));
}

/// A word for standard output.
pub fn painted(style: Style, word: &str) -> String {
    paint(AutoStream::choice(&std::io::stdout()), style, word)
}

/// A line for standard error, its leading `error:` or `warning:` in colour.
pub fn marked(line: &str) -> String {
    let choice = AutoStream::choice(&std::io::stderr());
    for (word, style) in [("error:", BAD), ("warning:", DOUBT)] {
        if let Some(rest) = line.strip_prefix(word) {
            return format!("{}{rest}", paint(choice, style, word));
        }
    }
    line.to_string()
}

fn paint(choice: ColorChoice, style: Style, word: &str) -> String {
    if choice == ColorChoice::Never || word.is_empty() {
        word.to_string()
    } else {
        format!("{style}{word}{style:#}")
    }
}
