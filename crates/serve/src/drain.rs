//! The end of a server: it takes nothing new, lets go on what runs, and cuts off what takes too long.

use tokio::sync::watch;

/// How a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It answers.
    Serving,
    /// It answers what it has started.
    Draining,
    /// What it has started ends now.
    Cut,
}

/// The phase of a server, which everybody watches.
#[derive(Debug)]
pub struct Drain {
    phase: watch::Sender<Phase>,
}

impl Default for Drain {
    fn default() -> Drain {
        Drain { phase: watch::Sender::new(Phase::Serving) }
    }
}

impl Drain {
    /// The phase now.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// A later phase.
    pub fn go(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let later = phase > *now;
            *now = phase.max(*now);
            later
        });
    }

    /// Waits for a phase.
    pub async fn reaches(&self, phase: Phase) {
        let mut watch = self.phase.subscribe();
        // The sender lives as long as `self`.
        _ = watch.wait_for(|now| *now >= phase).await;
    }

    /// A watch on the phase.
    pub fn watch(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }
}
