//! The model and text that are inspected.

use anyhow::Result;
use fathom_app::inspect::{Streams, Subject};
use fathom_app::{Machine, output};

use crate::args::InspectModel;
use crate::listen::Plain;

/// The model and document given by the arguments.
pub(super) fn subject(args: &InspectModel) -> Result<Subject> {
    args.out.as_deref().map_or(Ok(()), output::regular)?;
    let listener = Plain::default();
    let machine = Machine::of_kind(args.machine.kind(), 0, &listener);
    let model = (args.model.as_path(), args.adapter.as_deref());
    let streams = Streams { ids: &args.ids, decoder: &args.decoder_ids, neighbours: &args.neighbours };
    Ok(Subject::new(model, streams, args.precision.dtype(), &machine, &listener)?)
}
