//! `fathom export`, `fathom import` and `fathom quantize`: a model's weights, streamed, into a Hugging Face folder or a GGUF file.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fathom_app::export::{Conversion, ConversionSummary, Format, GgufName};
use fathom_app::quantize::{Experts, QuantizationSummary, Request, run as quantise};
use fathom_app::{Machine, export as export_model, import as import_model};
use fathom_base::human;
use fathom_train::recipe::{Precision, QatName, QuantizationName};
use serde_json::json;

use crate::args::{Convert, Quantize};
use crate::listen::Plain;

/// Runs `fathom export`.
pub fn export(args: &Convert) -> Result<()> {
    let what = conversion(args)?;
    print(args, &what, &export_model(&what, &Plain::default())?);
    Ok(())
}

/// Runs `fathom import`.
pub fn import(args: &Convert) -> Result<()> {
    let what = conversion(args)?;
    print(args, &what, &import_model(&what, &Plain::default())?);
    Ok(())
}

/// Runs `fathom quantize`.
pub fn quantize(args: &Quantize) -> Result<()> {
    let Quantize { model, out, to, .. } = args;
    if to.is_coded() {
        return coded(args);
    }
    if args.data.is_some() {
        bail!("--to {to} needs no text: leave --data out, and measure with `fathom eval`");
    }
    let done = export_model(&to.conversion(model.clone(), out.clone()), &Plain::default())?;
    closing!("{}: {} with {} weights as {to}", out.display(), done.family, human::count(done.weights));
    say_whole_experts(done.whole_experts);
    Ok(())
}

/// Writes a folder in another server's format.
fn coded(args: &Quantize) -> Result<()> {
    let (listener, Quantize { model, out, to, .. }) = (Plain::default(), args);
    let request = Request {
        model: model.clone(),
        to: out.clone(),
        format: *to,
        data: args.data.clone(),
        samples: args.samples,
        sample_tokens: args.sample_tokens.max(2),
    };
    let machine = Machine::of_kind(args.machine.kind(), 0, &listener);
    let QuantizationSummary { family, weights, group, losses, experts } =
        quantise(&request, &machine, &listener)?;
    if args.json {
        let experts = experts.map(|experts| match experts {
            Experts::Whole => json!({"rounded": 0}),
            Experts::Rounded { projections, unjudged } => {
                json!({"rounded": projections, "unjudged": unjudged})
            }
        });
        outln!(
            "{}",
            json!({
                "family": family, "weights": weights, "format": to.to_string(), "group": group, "losses": losses, "experts": experts,
            })
        );
        return Ok(());
    }
    closing!("{}: {family} with {} weights as {to}", out.display(), human::count(weights));
    match experts {
        Some(Experts::Whole) => closing!(
            "experts stay as they are: a layer's are one tensor in the model's files, for which {to} has no layout"
        ),
        Some(Experts::Rounded { projections, unjudged }) if unjudged > 0 => closing!(
            "{} of {} projections of experts are rounded to nearest: too few tokens of the text chose their expert; more --samples judge them",
            human::grouped(unjudged as u64),
            human::grouped(projections as u64)
        ),
        _ => {}
    }
    if let Some([before, after]) = losses {
        let [plain, coded] = [before, after].map(f64::exp);
        outln!(
            "perplexity of the text's last quarter {plain:.4} -> {coded:.4} ({:+.2} %)",
            100.0 * (coded / plain - 1.0)
        );
    }
    Ok(())
}

fn conversion(args: &Convert) -> Result<Conversion> {
    let Convert { from, to, format, .. } = args;
    let named = to.extension().is_some_and(|end| end == "gguf");
    let format = format.unwrap_or(if named { Format::Gguf } else { Format::Huggingface });
    let gguf = if format == Format::Gguf { Some(gguf_type(args)?.kind()) } else { None };
    if let (None, Some(name)) = (gguf, args.gguf_type) {
        bail!(
            "--type {name} is of .gguf files, and a Hugging Face folder is written; --precision is the type of its weights"
        );
    }
    let quantised = Conversion::quantised(args.quantization, !args.single_quant);
    let with = args.adapters.iter().map(|text| weighted(text)).collect::<Result<_>>()?;
    Ok(Conversion {
        from: from.clone(),
        to: to.clone(),
        gguf,
        precision: args.precision,
        quantised,
        max_shard_bytes: args.max_shard_bytes,
        adapter: args.adapter,
        with,
    })
}

/// Storage type of a .gguf file's matrices.
fn gguf_type(args: &Convert) -> Result<GgufName> {
    if args.quantization != QuantizationName::None {
        bail!(
            "--quantization {} is of Hugging Face folders, and a .gguf file is written; name its few bits with --type, as q8_0",
            args.quantization
        );
    }
    let plain = args.precision.map(|precision| match precision {
        Precision::Bf16 => GgufName::Bf16,
        Precision::F32 => GgufName::F32,
    });
    match (args.gguf_type, plain) {
        (Some(name), Some(plain)) if name != plain => {
            bail!(
                "--type {name} and --precision {plain} are two types of one .gguf file; leave one of them out"
            )
        }
        (name, plain) => Ok(name.or(plain).unwrap_or(GgufName::Bf16)),
    }
}

/// A folder with a weight, `DIR=0.5`; the default weight is 1.
fn weighted(text: &str) -> Result<(PathBuf, f32)> {
    let Some((folder, weight)) = text.rsplit_once('=').filter(|_| !Path::new(text).is_dir()) else {
        return Ok((text.into(), 1.0));
    };
    let number = weight.parse::<f32>().ok().filter(|number| number.is_finite());
    let number = number.with_context(|| format!("--with {text}: `{weight}` is no number"))?;
    Ok((folder.into(), number))
}

fn print(args: &Convert, what: &Conversion, done: &ConversionSummary) {
    closing!(
        "{}: {} with {} weights as {}",
        args.to.display(),
        done.family,
        human::count(done.weights),
        match (what.gguf, done.rounded) {
            (Some(kind), _) => {
                let name = GgufName::ALL.iter().find(|name| name.kind() == kind);
                name.map(ToString::to_string).unwrap_or_default()
            }
            (None, QatName::None) => done.dtype.safetensors_name().to_lowercase(),
            (None, rounded) => rounded.to_string(),
        }
    );
    say_whole_experts(done.whole_experts);
}

/// Notes that bitsandbytes folders leave experts unquantized.
fn say_whole_experts(whole: bool) {
    if whole {
        closing!(
            "experts stay as they are: Transformers has a layer's as one tensor, which bitsandbytes does not quantise"
        );
    }
}
