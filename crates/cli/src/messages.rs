//! What libraries have to say: those of Fathom in their own words, and those of a Ballista cluster's processes, where this is one.

use std::sync::atomic::{AtomicBool, Ordering};

use log::{Level, LevelFilter, Log, Metadata, Record, set_logger, set_max_level};

use crate::console;

/// Whether the libraries of others are heard too.
static OTHERS: AtomicBool = AtomicBool::new(false);

/// Prints warnings on standard error from now on.
pub fn start() {
    // The first logger of a process is taken, and this is it.
    if set_logger(&Printed).is_ok() {
        set_max_level(LevelFilter::Warn);
    }
}

/// Also those of other libraries.
#[cfg(feature = "ballista")]
pub fn others_too() {
    OTHERS.store(true, Ordering::Relaxed);
}

struct Printed;

impl Log for Printed {
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
