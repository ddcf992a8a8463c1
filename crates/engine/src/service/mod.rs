//! A model as a [`fathom_base::Service`]: a thread owns the engine and steps its batch; handles in any thread send it
//! requests.
//!
//! Requests are tokenised and checked by the client's thread, so the engine's never waits for text. Memory and device
//! stay on the engine's thread.

mod commands;
mod handle;
mod state;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::channel;

pub use commands::Commands;
pub use handle::Handle;
use state::ServiceState;
pub use state::{Accept, Facts, Render};

/// A handle, and the engine's end of its channel.
pub fn service(facts: Facts) -> (Handle, Commands) {
    let (sender, receiver) = channel();
    let shared = Arc::new(ServiceState::default());
    (
        Handle { facts, commands: Arc::new(sender), shared: shared.clone() },
        Commands { commands: receiver, shared, unloaded: RefCell::default(), leader: None },
    )
}
