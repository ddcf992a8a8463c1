//! The logits of given ids.

use anyhow::Result;
use fathom_grad::{Eval, Head};
use fathom_model::{FileWriter, TensorInfo};
use fathom_tensor::DType;
use fathom_text::Tokenizer;

use super::Subject;
use crate::args::InspectModel;
use crate::device;

/// Likeliest tokens shown of the last position.
const SHOWN: usize = 5;

/// Runs the verb.
pub fn run(args: &InspectModel) -> Result<()> {
    let subject = Subject::new(args)?;
    let (model, device) = (&subject.loaded.model, &subject.device);
    let (tokens, vocab) = (args.ids.len(), model.spec.vocab);
    let hidden = model.forward(&mut Eval::new(subject.scope(), None, None));
    let info = TensorInfo { name: "logits".into(), dtype: DType::F32, shape: vec![tokens, vocab] };
    let mut out = args.out.as_deref().map(|path| FileWriter::create(path, &[info])).transpose()?;
    let mut best = Vec::new();
    let mut last = Vec::new();
    // By tiles: the logits of a long sequence would not fit.
    let tile = Head::tile_rows(device.machine.as_ref(), vocab);
    for start in (0..tokens).step_by(tile) {
        let rows = hidden.view_rows(start..tokens.min(start + tile));
        let logits = device.to_f32(&model.head(0.0).logits(&subject.scope(), &rows));
        if let Some(out) = &mut out {
            let bytes: Vec<u8> = logits.iter().flat_map(|x| x.to_le_bytes()).collect();
            out.write(&bytes)?;
        }
        best.extend(logits.chunks_exact(vocab).map(top));
        last = logits[logits.len() - vocab..].to_vec();
    }
    match out {
        Some(out) => out.finish()?,
        None => print(args, &best, &last),
    }
    Ok(())
}

/// Index and value of the largest logit; the first among equals.
fn top(row: &[f32]) -> (usize, f32) {
    let larger =
        |best: (usize, f32), (id, logit): (usize, &f32)| if *logit > best.1 { (id, *logit) } else { best };
    row.iter().enumerate().fold((0, f32::NEG_INFINITY), larger)
}

fn print(args: &InspectModel, best: &[(usize, f32)], last: &[f32]) {
    let tokenizer = device::model_folder(&args.model).and_then(|folder| device::tokenizer(&folder)).ok();
    println!("{:>8} {:>8} {:>8} {:>10}", "position", "id", "next", "logit");
    for (position, (id, (next, logit))) in args.ids.iter().zip(best).enumerate() {
        let text = shown(tokenizer.as_ref(), *next);
        println!("{}", format!("{position:>8} {id:>8} {next:>8} {logit:>10.4}  {text}").trim_end());
    }
    let largest = top(last).1;
    let sum: f64 = last.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    let mut order: Vec<usize> = (0..last.len()).collect();
    order.sort_by(|a, b| last[*b].total_cmp(&last[*a]).then(a.cmp(b)));
    println!("\nafter the last position:");
    for id in order.into_iter().take(SHOWN) {
        let probability = f64::from(last[id] - largest).exp() / sum;
        let text = shown(tokenizer.as_ref(), id);
        println!(
            "{}",
            format!("{id:>8} {:>10.4} {:>6.2} %  {text}", last[id], probability * 100.0).trim_end()
        );
    }
}

fn shown(tokenizer: Option<&Tokenizer>, id: usize) -> String {
    tokenizer.map_or(String::new(), |tokenizer| format!("{:?}", tokenizer.decode(&[id as u32])))
}
