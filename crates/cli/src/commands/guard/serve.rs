//! `fathom guard serve`: guardrails over HTTP, without a model.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use fathom_app::Machine;
use fathom_app::serve::{ServerLinks, serve_checks};
use fathom_serve::ServerAddresses;

use crate::args::GuardServe;
use crate::listen::Plain;
use crate::{signals, version};

/// Runs the verb.
pub fn run(args: &GuardServe) -> Result<()> {
    let listener = Plain::default();
    let machine = Machine::of_kind(args.machine.kind(), 0, &listener);
    let stop = Arc::new(AtomicBool::new(false));
    signals::ask(&stop)?;
    let scheme = if args.tls_cert.is_some() { "https" } else { "http" };
    let heard = |addresses: &[SocketAddr]| {
        addresses.iter().for_each(|at| outln!("judging at {scheme}://{at}/v1/checks"))
    };
    let tls = args.tls_cert.clone().zip(args.tls_key.clone());
    let at = ServerAddresses { host: args.host.clone(), port: args.port, admin_port: None, tls };
    let around =
        ServerLinks { stop: &stop, log: crate::commands::serve::log(), heard: &heard, events: &listener };
    let version = version::long().lines().next().unwrap_or_default().to_string();
    Ok(serve_checks((&args.config, &machine), (&at, args.api_key_file.as_deref()), &version, &around)?)
}
