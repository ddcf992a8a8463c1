//! `fathom prune`: a smaller model from a larger one.

use anyhow::Result;
use fathom_app::Machine;
use fathom_app::prune::{PruneSummary, Request, Sizes, run as prune};
use fathom_base::human;
use serde_json::json;

use crate::args::Prune;
use crate::listen::Plain;

/// Runs the verb.
pub fn run(args: &Prune) -> Result<()> {
    let listener = Plain::default();
    let Prune { layers, hidden, ffn, heads, .. } = *args;
    let request = Request {
        model: args.model.clone(),
        to: args.to.clone(),
        data: args.data.clone(),
        sizes: Sizes { layers, hidden, ffn, heads },
        samples: args.samples,
        sample_tokens: args.sample_tokens.max(2),
        precision: args.precision,
    };
    let machine = Machine::of_kind(args.machine.kind(), 0, &listener);
    let PruneSummary { weights, losses, tokens, kept, importance } = prune(&request, &machine, &listener)?;
    if args.json {
        let kept =
            json!({"layers": kept.layers, "hidden": kept.hidden, "heads": kept.heads, "ffn": kept.ffn});
        let by = json!({"layers": importance.layers, "hidden": importance.hidden, "heads": importance.heads, "ffn": importance.ffn});
        outln!(
            "{}",
            json!({"weights": weights, "losses": losses, "tokens": tokens, "kept": kept, "importance": by})
        );
        return Ok(());
    }
    let of = |n: &[usize]| n.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    outln!("judged by {} tokens; layers that stay: {}", human::grouped(tokens as u64), of(&kept.layers));
    outln!("weights {} -> {}", human::grouped(weights[0]), human::grouped(weights[1]));
    outln!("loss of these tokens {:.4} -> {:.4}", losses[0], losses[1]);
    closing!(
        "{}; what was lost is learned back by `fathom train distill model.from={0} objective.teacher={1}`",
        request.to.display(),
        request.model.display()
    );
    Ok(())
}
