//! Output other than results: verbosity, and colours on terminals that show them (respects `NO_COLOR`,
//! `CLICOLOR_FORCE` and `TERM=dumb`).

use std::io::Write;
use std::process::exit;
use std::sync::atomic::{AtomicU8, Ordering};
use std::{fmt, io};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::builder::Styles;

/// Like `print!`, but exits the program if nothing reads it, or writing fails.
macro_rules! out {
    ($($text:tt)*) => { $crate::console::out(format_args!($($text)*)) };
}

/// Like `println!`, with the same handling of errors.
macro_rules! outln {
    () => { $crate::console::out(format_args!("\n")) };
    ($($text:tt)*) => { $crate::console::out(format_args!("{}\n", format_args!($($text)*))) };
}

/// Like `outln!`, unless `--quiet`: what a verb has done, and what to do next.
macro_rules! closing {
    ($($text:tt)*) => { if !$crate::console::is_quiet() { outln!($($text)*) } };
}

/// Style of success.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// Style of failure.
pub const BAD: Style = AnsiColor::Red.on_default().bold();
/// Style of warnings.
pub const DOUBT: Style = AnsiColor::Yellow.on_default().bold();
/// Style of a heading.
pub const HEAD: Style = Style::new().bold();
/// Style of a lesson's trained text.
pub const LEARNED: Style = AnsiColor::Green.on_default();
/// Style of a lesson's context.
pub const CONTEXT: Style = Style::new().dimmed();

/// Styles of help texts and of refused command lines.
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

/// Sets the verbosity, once, from the command line.
pub fn set(quiet: bool, verbose: bool) {
    let level = match (quiet, verbose) {
        (true, _) => QUIET,
        (_, true) => VERBOSE,
        _ => PLAIN,
    };
    LEVEL.store(level, Ordering::Relaxed);
}

/// Returns whether only results, warnings and errors are printed.
pub fn is_quiet() -> bool {
    LEVEL.load(Ordering::Relaxed) == QUIET
}

/// Returns whether every step and every source is printed.
pub fn is_verbose() -> bool {
    LEVEL.load(Ordering::Relaxed) == VERBOSE
}

/// Prints text on standard output.
pub fn out(text: fmt::Arguments<'_>) {
    if let Err(error) = std::io::stdout().write_fmt(text) {
        unprinted(&error);
    }
}

/// Prints a line on standard error, ignoring failures.
pub fn line(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Prints a fatal error on standard error.
pub fn error(text: &str) {
    line(&marked(&format!("error: {text}")));
}

/// Prints a progress line on standard error, unless `--quiet`.
pub fn note(text: &str) {
    if !is_quiet() {
        line(text);
    }
}

/// Prints a line on standard error with `--verbose`.
pub fn detail(text: &str) {
    if is_verbose() {
        line(text);
    }
}

/// Prints a warning on standard error.
pub fn warn(text: &str) {
    line(&marked(&format!("warning: {text}")));
}

/// A styled word for standard error.
pub fn noted(style: Style, word: &str) -> String {
    if word.is_empty() { String::new() } else { paint(AutoStream::choice(&std::io::stderr()), style, word) }
}

/// A styled word for standard output.
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

/// Exit code of a program whose reader has closed its output (128 + SIGPIPE), as in `fathom recipes ls | head -1`.
const UNREAD: i32 = 141;

/// Exits when standard output cannot be written: its reader is gone, or the disk is full.
pub fn unprinted(cause: &io::Error) -> ! {
    if cause.kind() == io::ErrorKind::BrokenPipe {
        exit(UNREAD);
    }
    error(&format!("cannot write to standard output: {cause}"));
    exit(1);
}
