//! Steps of all stages as a Chrome trace, for Perfetto.

use std::path::Path;

use fathom_report::trace::{Span, TraceWriter};
use fathom_tensor::mesh::Axis;
use fathom_train::parallel::stages::Act;
use fathom_train::{Bar, MeshPlan};

use crate::error::Result;

/// Writes the meshes of a recipe's stages one after the other, with each rank of the pipeline as a process.
///
/// # Errors
/// A file that cannot be written.
pub fn write(path: &Path, meshes: &[MeshPlan]) -> Result<()> {
    let mut trace = TraceWriter::create(path)?;
    let mut started = 0.0;
    let most = meshes.iter().map(|mesh| mesh.ranks.grid.pp).max().unwrap_or(0);
    for stage in 0..most {
        trace.name_rank(stage as u64, &format!("pipeline rank {stage}"))?;
        trace.name_stream(stage as u64, 0, "passes")?;
    }
    for mesh in meshes {
        let Some(gantt) = &mesh.gantt else { continue };
        for (rank, bars) in gantt.bars.iter().enumerate() {
            for bar in bars {
                trace.span(&span(rank, bar, started))?;
            }
            let kind = mesh.kinds.iter().find(|kind| mesh.ranks.grid.index(kind.rank, Axis::Pp) == rank);
            if let Some(lane) = kind.and_then(|kind| kind.plan.lane.as_ref()) {
                let name = "gradients and update".to_string();
                let (start_us, duration_us) = ((started + gantt.passes_s) * 1e6, lane.after_s * 1e6);
                let category = "update".to_string();
                let span =
                    Span { name, category, rank: rank as u64, start_us, duration_us, ..Span::default() };
                trace.span(&span)?;
            }
        }
        started += gantt.step_s;
    }
    trace.finish()?;
    Ok(())
}

fn span(rank: usize, bar: &Bar, started: f64) -> Span {
    let (category, micro, chunk) = match bar.act {
        Act::Forward { micro, chunk } => ("forward", micro, chunk),
        Act::Backward { micro, chunk } => ("backward", micro, chunk),
        Act::Weights { micro, chunk } => ("weights", micro, chunk),
    };
    Span {
        name: format!("{category} {micro}"),
        category: category.to_string(),
        rank: rank as u64,
        stream: 0,
        start_us: (started + bar.start_s) * 1e6,
        duration_us: (bar.end_s - bar.start_s) * 1e6,
        args: vec![
            ("micro batch".into(), micro.into()),
            ("stage on the rank".into(), chunk.into()),
            ("waits for messages, us".into(), (bar.wait_s * 1e6).into()),
        ],
    }
}
