//! `fathom board`: the runs of a folder in a browser.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use fathom_app::board::serve;
use fathom_base::human;
use fathom_serve::ServerAddresses;

use crate::{args, signals};

/// Runs the verb.
pub fn run(args: &args::Board) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    signals::ask(&stop)?;
    let heard = |addresses: &[SocketAddr], runs: usize| {
        addresses.iter().for_each(|at| outln!("{} at http://{at}", human::counted(runs as u64, "run")));
    };
    let at = ServerAddresses { host: args.host.clone(), port: args.port, admin_port: None, tls: None };
    Ok(serve(&args.folder, &at, &stop, &heard)?)
}
