//! Shutdown of a server: it accepts nothing new, lets running requests continue, and cuts off those that take too long.

use tokio::sync::watch;

/// Phase of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Requests are accepted.
    Serving,
    /// Running requests are finished.
    Draining,
    /// Running requests are cut off.
    Cut,
}

/// The phase of a server, which can be watched.
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
    /// The current phase.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Advances to a later phase.
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
