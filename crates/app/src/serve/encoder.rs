//! An encoder on its thread: vectors, labels and scores of pairs.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use fathom_base::{ModelCard, human};
use fathom_engine::{Bounds, Capacity, Facts, Limits, Structures, TextEncoder, service};
use fathom_model::SafeTensors;
use fathom_tensor::{DType, Device};
use fathom_text::Tokenizer;

use super::fingerprint;
use super::hosted::{Started, Watch, answer, fits_next_to_served, pad_token};
use super::order::Order;
use super::sizes::{Sizes, imagined};
use crate::error::{Result, caught, refuse};
use crate::events::Silent;
use crate::{exported, models};

/// Opens an encoder on a device: with its weights, or planned where the device has no data.
///
/// # Errors
/// A folder that is not an encoder's, a limit beyond its positions, no memory for it.
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

/// What an encoder takes: no pages.
///
/// # Errors
/// There is no memory for it.
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

/// The type of its weights.
pub(super) fn dtype(folder: &Path, order: &Order) -> Result<DType> {
    let stored = || Ok(models::stored_dtype(&SafeTensors::open_folder(folder)?));
    order.precision.map_or_else(stored, |precision| Ok(models::precision(precision)))
}

/// What an encoder does not have.
///
/// # Errors
/// Something of the order that is for models that write.
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

/// Opens an encoder, sends what it is asked through, and answers until all askers are gone.
pub(super) fn run(
    name: &str,
    path: &Path,
    order: &Order,
    (send, watch): (&Sender<Started>, &Watch),
) -> Result<()> {
    check(name, order)?;
    let folder = models::model_folder(path)?;
    exported::verify(&folder)?;
    let tokenizer = Arc::new(models::tokenizer(&folder)?);
    let device = order.machine(&Silent).open()?;
    let dtype = dtype(&folder, order)?;
    let sizes = sizes(&device, (&folder, dtype), &tokenizer, order)?;
    fits_next_to_served(name, &sizes, order)?;
    let encoder = open(&device, (&folder, dtype), &tokenizer, order)?;
    let (handle, commands) = service(facts(name, &folder, (&encoder, dtype), &tokenizer, order)?);
    if send.send(Ok((handle, sizes))).is_err() {
        return Ok(());
    }
    let serve = || {
        commands.serve_texts(&encoder);
        Ok(())
    };
    answer(serve, |why| watch.step_failed(name, why));
    Ok(())
}

/// What is known of it where it is asked.
fn facts(
    name: &str,
    folder: &Path,
    (encoder, dtype): (&TextEncoder, DType),
    tokenizer: &Arc<Tokenizer>,
    order: &Order,
) -> Result<Facts> {
    let spec = &encoder.encoder().spec;
    let (vocab, room) = (spec.model.vocab, encoder.max_tokens());
    let card = ModelCard {
        name: name.to_string(),
        fingerprint: fingerprint::fingerprint(folder, tokenizer, &[format!("{dtype:?}")])?,
        context_tokens: room,
        vocabulary: vocab,
        labels: spec.labels.clone(),
        embedding: encoder.vector_size(),
        eos: tokenizer.stops().to_vec(),
        bos: tokenizer.bos(),
        pad_token: pad_token(folder)?,
        ..ModelCard::default()
    };
    let limits = Limits { context_tokens: room, ..Limits::default() };
    let (windows, capacity) = (Vec::new(), Capacity::default());
    Ok(Facts {
        card,
        tokenizer: tokenizer.clone(),
        bounds: Bounds { vocab, room, lead: 0, windows, forks: false, limits, capacity },
        render: None,
        adapters: None,
        queue: usize::try_from(order.settings.max_requests).unwrap_or(usize::MAX),
        structures: Structures::default(),
        reading: encoder.reading().clone(),
    })
}
