//! `fathom watch`: a run on the whole terminal, from its log.

use std::io::{IsTerminal, stdin, stdout};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fathom_report::runs::{Run, glance};
use ratatui::Terminal;
use ratatui::backend::{TermionBackend, TestBackend};
use ratatui::buffer::Buffer;
use ratatui::termion::event::Key;
use ratatui::termion::input::TermRead;
use ratatui::termion::raw::IntoRawMode;
use ratatui::termion::screen::IntoAlternateScreen;

use crate::watch::{View, draw};
use crate::{args, signals};

/// Time between two pictures.
const PAUSE: Duration = Duration::from_millis(400);
/// Bytes of a log that are read before a picture.
const PIECE: usize = 8 << 20;
/// Size of the picture that `--once` prints.
const ONCE: (u16, u16) = (110, 34);

/// Runs the verb.
pub fn run(args: &args::Watch) -> Result<()> {
    if !args.run.join("metrics.jsonl").is_file() {
        bail!("{}: no run's folder (no metrics.jsonl)", args.run.display());
    }
    let mut run = glance(&args.run)?;
    let name = name(&args.run);
    if args.once {
        while run.follow(PIECE)? {}
        return once(&name, &run);
    }
    if !stdout().is_terminal() || !stdin().is_terminal() {
        bail!(
            "`fathom watch` draws on a terminal; --once prints one picture anywhere, and `fathom runs` a line"
        );
    }
    let stop = Arc::new(AtomicBool::new(false));
    signals::ask(&stop)?;
    live(&name, &mut run, &stop)
}

fn name(run: &Path) -> String {
    let own = run.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    own.unwrap_or_else(|| run.display().to_string())
}

/// Draws until a key or a signal ends it. The terminal is restored when its guards are dropped: on return, on an error
/// and on a panic.
fn live(name: &str, run: &mut Run, stop: &AtomicBool) -> Result<()> {
    let screen = stdout().into_raw_mode().context("the terminal has no raw mode")?;
    let screen = screen.into_alternate_screen().context("the terminal has no alternate screen")?;
    let mut terminal = Terminal::new(TermionBackend::new(screen))?;
    let (keys, mut view) = (keys(), View::default());
    while !stop.load(Ordering::Relaxed) {
        let more = run.follow(PIECE)?;
        terminal.draw(|frame| draw(frame, name, run, view))?;
        match keys.recv_timeout(if more { Duration::ZERO } else { PAUSE }) {
            Ok(Key::Char('q') | Key::Esc | Key::Ctrl('c')) => break,
            Ok(Key::Char('x')) => view.turn(),
            Ok(Key::Char('l')) => view.late = !view.late,
            _ => {}
        }
    }
    Ok(())
}

/// Keys, from a thread that ends with the process: a read of a terminal cannot be given up.
fn keys() -> Receiver<Key> {
    let (send, receive) = channel();
    thread::spawn(move || stdin().keys().map_while(Result::ok).try_for_each(|key| send.send(key)));
    receive
}

/// Prints one picture.
fn once(name: &str, run: &Run) -> Result<()> {
    let mut terminal = Terminal::new(TestBackend::new(ONCE.0, ONCE.1))?;
    terminal.draw(|frame| draw(frame, name, run, View::default()))?;
    text(terminal.backend().buffer()).iter().for_each(|line| outln!("{line}"));
    Ok(())
}

/// Lines of a picture, without colours.
fn text(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width.max(1));
    let line = |cells: &[ratatui::buffer::Cell]| {
        cells.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_string()
    };
    buffer.content.chunks(width).map(line).collect()
}
