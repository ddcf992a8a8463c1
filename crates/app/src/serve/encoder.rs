//! A served encoder: embeddings, labels and scores of pairs.

use std::path::Path;
use std::sync::Arc;

use fathom_base::human;
use fathom_engine::{TextEncoder, service};
use fathom_model::SafeTensors;
use fathom_tensor::{DType, Device};
use fathom_text::Tokenizer;

use super::hosted::{Opener, answer, fits_next_to_served};
use super::order::Order;
use super::sizes::{Sizes, imagined};
use crate::error::{Result, caught, refuse};
use crate::events::Silent;
use crate::host::encoder_facts;
use crate::{exported, models};

/// Opens an encoder on a device; on a device without data, plans it.
///
/// # Errors
/// Not an encoder's folder; a limit beyond its positions; out of memory.
pub(super) fn open(
    device: &Device,
    (folder, dtype): (&Path, DType),
    tokenizer: &Arc<Tokenizer>,
    order: &Order,
) -> Result<TextEncoder> {
    let asked = order.settings.context_tokens.map(|tokens| tokens as usize);
    let chunk_tokens = (order.settings.chunk_tokens as usize).max(1);
    caught(|| Ok(TextEncoder::open(device, folder, (dtype, tokenizer.clone()), asked, chunk_tokens)?))
}

/// Plans the memory of an encoder, which has no pages.
pub(super) fn sizes(
    device: &Device,
    model: (&Path, DType),
    tokenizer: &Arc<Tokenizer>,
    order: &Order,
) -> Result<Sizes> {
    let meta = imagined(device);
    let encoder = open(&meta, model, tokenizer, order)?;
    let weights_bytes = meta.pool.usage().live;
    caught(|| {
        encoder.plan();
        Ok(())
    })?;
    let workspace_bytes = meta.pool.usage().peak_reserved.saturating_sub(weights_bytes);
    let budget_bytes = device.pool.budget();
    if weights_bytes + workspace_bytes > budget_bytes {
        let [weights, step, there] = [weights_bytes, workspace_bytes, budget_bytes].map(human::bytes);
        refuse!("the weights take {weights} and a step {step}, and there are {there} (--memory)");
    }
    Ok(Sizes::without_pages(device, (weights_bytes, workspace_bytes), encoder.max_tokens()))
}

/// Returns the type of the weights.
pub(super) fn dtype(folder: &Path, order: &Order) -> Result<DType> {
    let stored = || Ok(models::stored_dtype(&SafeTensors::open_folder(folder)?));
    order.precision.map_or_else(stored, |precision| Ok(precision.dtype()))
}

/// Refuses options that do not apply to encoders.
///
/// # Errors
/// An option for models that generate text.
pub(super) fn check(name: &str, order: &Order) -> Result<()> {
    let asks = [
        ("--tp, --pp, --ep and --etp", order.mesh.is_spread()),
        ("--adapter", !order.adapters.is_empty()),
        ("--draft", order.settings.draft.is_some()),
        ("--chat-template", order.template.is_some()),
    ];
    match asks.iter().find(|(_, asks)| *asks) {
        Some((flag, _)) => {
            refuse!("{name} is an encoder, which {flag} are not for: it reads texts and writes none")
        }
        None => Ok(()),
    }
}

/// Opens an encoder, sends its handle and serves requests until all handles are dropped.
pub(super) fn run(name: &str, path: &Path, order: &Order, (opening, watch): Opener<'_>) -> Result<()> {
    check(name, order)?;
    let folder = models::model_folder(path)?;
    exported::verify(&folder)?;
    let tokenizer = Arc::new(models::tokenizer(&folder)?);
    let device = order.machine(&Silent).open()?;
    let dtype = dtype(&folder, order)?;
    let sizes = sizes(&device, (&folder, dtype), &tokenizer, order)?;
    fits_next_to_served(name, &sizes, order)?;
    let encoder = open(&device, (&folder, dtype), &tokenizer, order)?;
    let queue = usize::try_from(order.settings.max_requests).unwrap_or(usize::MAX);
    let (handle, commands) = service(encoder_facts(name, &folder, (&encoder, dtype), &tokenizer, queue)?);
    if !opening.ready(handle, sizes) {
        return Ok(());
    }
    let serve = || {
        commands.serve_texts(&encoder);
        Ok(())
    };
    answer(serve, |why| watch.step_failed(name, why));
    Ok(())
}
