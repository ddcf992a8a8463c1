//! Log messages of libraries: Fathom's own, and in a Ballista cluster's process also those of others.

use std::sync::atomic::{AtomicBool, Ordering};

use log::{Level, LevelFilter, Log, Metadata, Record, set_logger, set_max_level};

use crate::console;

/// Whether other libraries' messages are printed too.
static OTHERS: AtomicBool = AtomicBool::new(false);

/// Starts printing warnings on standard error.
pub fn start() {
    // Only the first logger of a process is accepted; this is it.
    if set_logger(&StderrLogger).is_ok() {
        set_max_level(LevelFilter::Warn);
    }
}

/// Also prints those of other libraries.
#[cfg(feature = "ballista")]
pub fn others_too() {
    OTHERS.store(true, Ordering::Relaxed);
}

struct StderrLogger;

impl Log for StderrLogger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let own = metadata.target().starts_with("fathom");
        metadata.level() <= Level::Warn && (own || OTHERS.load(Ordering::Relaxed))
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        if record.target().starts_with("fathom") {
            console::line(&record.args().to_string());
        } else {
            console::line(&format!("{}: {}", record.level().as_str().to_lowercase(), record.args()));
        }
    }

    fn flush(&self) {}
}
