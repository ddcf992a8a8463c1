//! The logits of given ids.

use anyhow::Result;
use fathom_app::inspect::{Logits, largest, logits};
use fathom_app::models;
use fathom_text::Tokenizer;

use crate::args::InspectModel;

/// Number of most likely tokens shown for the last position.
const SHOWN: usize = 5;

/// Runs the verb.
pub fn run(args: &InspectModel) -> Result<()> {
    let found = logits(&super::subject::subject(args)?, args.out.as_deref())?;
    if args.out.is_none() {
        print(args, &found);
    }
    Ok(())
}

fn print(args: &InspectModel, Logits { best, last, of_tokens }: &Logits) {
    let tokenizer = models::model_folder(&args.model).and_then(|folder| models::tokenizer(&folder)).ok();
    let tokenizer = tokenizer.filter(|_| *of_tokens);
    let column = if *of_tokens { "next" } else { "label" };
    outln!("{:>8} {:>8} {column:>8} {:>10}", "position", "id", "logit");
    let ids = if args.decoder_ids.is_empty() { &args.ids } else { &args.decoder_ids };
    for (position, (id, (next, logit))) in ids.iter().zip(best).enumerate() {
        let text = shown(tokenizer.as_ref(), *next);
        outln!("{}", format!("{position:>8} {id:>8} {next:>8} {logit:>10.4}  {text}").trim_end());
    }
    let largest = largest(last).1;
    let sum: f64 = last.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    let mut order: Vec<usize> = (0..last.len()).collect();
    order.sort_by(|a, b| last[*b].total_cmp(&last[*a]).then(a.cmp(b)));
    outln!("\nafter the last position:");
    for id in order.into_iter().take(SHOWN) {
        let probability = f64::from(last[id] - largest).exp() / sum;
        let text = shown(tokenizer.as_ref(), id);
        outln!("{}", format!("{id:>8} {:>10.4} {:>6.2} %  {text}", last[id], probability * 100.0).trim_end());
    }
}

fn shown(tokenizer: Option<&Tokenizer>, id: usize) -> String {
    tokenizer.map_or(String::new(), |tokenizer| format!("{:?}", tokenizer.decode(&[id as u32])))
}
