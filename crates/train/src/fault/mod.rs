//! A plan of faults, for tests: which fault hits which rank in which step.
//!
//! `kill rank 1 at step 3, flip rank 2 at step 5`: a rank panics between its gradients and its update (`kill`), waits
//! forever at a place where a wait can be ended (`hang`), is slow from that step on (`slow`), is asked to stop as by
//! SIGTERM (`term`), gets a gradient that is not a number (`nan`), or a weight with one flipped bit (`flip`). Each
//! happens once, however often the step is repeated and the run is restarted.
//!
//! The run does not know about faults: [`around`] wraps its parts. The wrapped `source` is called in every step, its
//! `link` checks for failures before every update, and its `machine` writes every gradient.

mod faults;
mod injector;
mod link;
mod machine;
mod source;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fathom_tensor::Device;
use fathom_tensor::mesh::Mesh;

use crate::error::{Error, Result};
use crate::run::{RunParts, own_folder};
use faults::{Faults, Kind};
use injector::Injector;

/// Wraps the parts of a run with the faults that a text lists (`machine.fault`). `stop` is the flag that asks the run to
/// stop.
///
/// # Errors
/// A text that is not a list of faults.
pub fn around<'a>(parts: RunParts<'a>, text: &str, stop: &Arc<AtomicBool>) -> Result<RunParts<'a>> {
    let faults: Faults =
        text.parse().map_err(|message| Error::Recipe { key: "machine.fault".into(), message })?;
    let RunParts { mut trainer, sources, .. } = parts;
    let rank = trainer.device.mesh.rank();
    let faults = faults.remember(&own_folder(parts.folder, rank).join("faults"));
    let hits =
        |kinds: &[Kind]| faults.left.iter().any(|fault| fault.rank == rank && kinds.contains(&fault.kind));
    let (ends, spoils) = (hits(&[Kind::Kill, Kind::Hang]), hits(&[Kind::Nan]));
    let injector = Arc::new(Injector::new(faults, rank, stop.clone()));
    let Device { machine, pool, mesh } = trainer.device;
    let machine = if spoils { machine::around(machine, &injector) } else { machine };
    let mesh = if ends { Mesh::new(*mesh.grid(), link::around(mesh, &injector)) } else { mesh };
    trainer.device = Device { machine, pool, mesh };
    Ok(RunParts { trainer, sources: source::around(sources, &injector), ..parts })
}
