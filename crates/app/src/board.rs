//! The board over HTTP: the runs of a folder in a browser, live.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fathom_report::board::Board;
use fathom_serve::{ServeOptions, ServerAddresses, ServerState, View, is_loopback};
use serde_json::Value;

use crate::error::{Result, refuse};

/// Pause between readings of logs that have nothing new.
const PAUSE: Duration = Duration::from_millis(500);
/// Time between looks for new runs.
const LOOK: Duration = Duration::from_secs(3);

struct BoardView(Arc<Board>);

impl View for BoardView {
    fn page(&self) -> &str {
        self.0.page()
    }

    fn answer(&self, question: &Value) -> std::result::Result<String, String> {
        self.0.answer(question)
    }
}

/// Serves the runs of a folder until `stop` is set. `heard` receives the address.
///
/// # Errors
/// No folder there; an address that is not available.
pub fn serve(
    folder: &Path,
    at: &ServerAddresses,
    stop: &AtomicBool,
    heard: &(dyn Fn(&[SocketAddr], usize) + Sync),
) -> Result<()> {
    if !folder.is_dir() {
        refuse!("{}: no folder; name the one that holds the folders of runs", folder.display());
    }
    let board = Arc::new(Board::open(folder));
    let view: Arc<dyn View> = Arc::new(BoardView(board.clone()));
    let opening = ServeOptions { open: !is_loopback(&at.host), view: Some(view), ..ServeOptions::default() };
    let server = Arc::new(ServerState::new(opening));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| follow(&board, &over));
        let served = fathom_serve::serve(&server, at, stop, |addresses| heard(addresses, board.len()));
        over.store(true, Ordering::Relaxed);
        Ok(served?)
    })
}

/// Reads what is added to logs, and looks for new runs.
fn follow(board: &Board, over: &AtomicBool) {
    let mut looked = Instant::now();
    while !over.load(Ordering::Relaxed) {
        if looked.elapsed() > LOOK {
            board.look_again();
            looked = Instant::now();
        }
        if !board.follow() {
            thread::sleep(PAUSE);
        }
    }
}
