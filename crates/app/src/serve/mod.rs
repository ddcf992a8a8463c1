//! Models behind a server, each on its own thread, which owns its device and pages.

mod draft;
mod encoder;
mod hosted;
mod order;
mod ranks;
mod roster;
mod sizes;

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fathom_base::recipe::{Layers, Loaded};
use fathom_serve::{
    ApiKeys, KnowledgeBase, Rails, Recipe, ServeOptions, ServerAddresses, ServerState, Settings, is_loopback,
};
use fathom_train::recipe::Precision;
use hosted::Watch;
use roster::{Roster, StartedModel};

use crate::adapters::held_otherwise;
use crate::error::{Result, refuse};
use crate::events::Events;
use crate::guardrails::{self, Guardrails, ServedModels};
use crate::machine::Machine;
use crate::models;
use crate::retrieval::{Library, LibraryOptions};

pub use fathom_engine::probe as compile_structure;
pub use fathom_engine::{KeptModel, StoreLocation};
pub use order::{Order, ServerLinks};
pub use sizes::Sizes;

/// Time that engines are given to end.
const LAST: Duration = Duration::from_secs(2);

/// Message for a draft model with 0 draft tokens.
const DRAFTLESS: &str =
    "is 0, so the draft model (serve.draft, --draft) would guess nothing; leave one of them out";

/// Keys with sizes or counts that a server allocates, with minimum and maximum.
const RANGES: [(&str, u64, u64); 10] = [
    ("sequences", 1, 1 << 16),
    ("chunk_tokens", 1, 1 << 24),
    ("draft_tokens", 0, 1 << 10),
    ("context_tokens", 1, 1 << 32),
    ("max_requests", 1, 1 << 32),
    ("max_answers", 1, 1 << 16),
    ("answer_tokens", 1, 1 << 32),
    ("body_bytes", 1, 1 << 40),
    ("adapter_bytes", 0, 1 << 50),
    ("page_file_bytes", 0, 1 << 60),
];

/// Loads the keys of a server: those of a file, if given, overridden by `settings`.
///
/// # Errors
/// An invalid key, with the place where it was set.
pub fn settings(file: Option<&Path>, settings: &[String]) -> Result<Settings> {
    if let Some(key) = settings.iter().find(|setting| setting.starts_with("mesh.")) {
        refuse!(
            "{key}: a server has its ranks by flags; write --tp N for tensor parallel ranks, --pp N for stages of a pipeline, --ep N and --etp N for how experts are spread over the former"
        );
    }
    let layers = file.iter().fold(Layers::new(), |layers, file| layers.file(file));
    let loaded: Loaded<Recipe> = Loaded::load(layers.sets(settings))?;
    for (key, least, most) in RANGES {
        let path = format!("serve.{key}");
        let value = loaded.rows().iter().find(|row| row.path == path).and_then(|row| row.value.parse().ok());
        if value.is_some_and(|value: u64| value < least || value > most) {
            return Err(loaded.refuse(&path, format!("has to be from {least} to {most}")).into());
        }
    }
    if loaded.value.serve.draft.is_some() && loaded.value.serve.draft_tokens == 0 {
        return Err(loaded.refuse("serve.draft_tokens", DRAFTLESS).into());
    }
    Ok(loaded.value.serve)
}

/// Serves guardrails without a model: `/v1/checks` alone judges messages.
///
/// # Errors
/// A configuration that is refused; unusable API keys; a port in use.
pub fn serve_checks(
    (folder, machine): (&Path, &Machine),
    (at, keys): (&ServerAddresses, Option<&Path>),
    version: &str,
    around: &ServerLinks<'_>,
) -> Result<()> {
    let rails = guardrails::rails(folder, machine, Arc::default())?;
    let keys = keys.map_or_else(|| Ok(ApiKeys::none()), ApiKeys::read)?;
    fathom_serve::check(at, &keys)?;
    let opening = ServeOptions {
        keys,
        open: !is_loopback(&at.host),
        log: around.log.clone(),
        version: version.to_string(),
        rails: Some(rails),
        ..ServeOptions::default()
    };
    fathom_serve::serve(&Arc::new(ServerState::new(opening)), at, around.stop, around.heard)?;
    Ok(())
}

/// Opens the documents that answers cite, if the server has any.
///
/// # Errors
/// Those of [`Library::open`](crate::retrieval::Library::open).
fn knowledge(
    order: &Order,
    rails: Option<&Arc<Guardrails>>,
    events: &dyn Events,
) -> Result<Option<KnowledgeBase>> {
    let Some(index) = order.settings.knowledge.clone() else { return Ok(None) };
    let reranker = order.settings.reranker.clone();
    let options = LibraryOptions { index, reranker, ..LibraryOptions::default() };
    let library = Library::open(&options, &order.machine(events), events)?;
    let passages = usize::try_from(order.settings.knowledge_passages).unwrap_or(usize::MAX).clamp(1, 1000);
    let screen = rails.map(|rails| rails.screen());
    Ok(Some(KnowledgeBase { store: Arc::new(library), screen, passages }))
}

/// Returns the memory that each model would need, without loading it.
///
/// # Errors
/// No model there; out of memory.
pub fn sizes(order: &Order, events: &dyn Events) -> Result<Vec<(String, Sizes)>> {
    let one = |(at, (name, path)): (usize, (String, PathBuf))| -> Result<Vec<(String, Sizes)>> {
        let folder = models::model_folder(&path)?;
        let machine = order.machine(events);
        if models::is_encoder(&path) {
            let own = order.of(at);
            encoder::check(&name, &own)?;
            let (dtype, tokenizer) = (encoder::dtype(&folder, &own)?, Arc::new(models::tokenizer(&folder)?));
            let sizes = encoder::sizes(&machine.open()?, (&folder, dtype), &tokenizer, &own)?;
            return Ok(vec![(name, sizes)]);
        }
        let (own, ranks) = (order.of(at), order.mesh.ranks());
        let opened = if own.mesh.is_spread() {
            fathom_model::open(&folder)?
        } else {
            fathom_model::open_writer(&folder)?
        };
        let tokenizer = models::tokenizer(&folder)?;
        let dtype = order.precision.map_or_else(|| models::stored_dtype(&opened.source), Precision::dtype);
        if own.mesh.is_spread() {
            let (each, _) = ranks::planned(&machine, (&folder, &opened, dtype), &tokenizer, &own)?;
            let named = |rank: usize| format!("{name}, rank {rank} of {ranks}");
            return Ok(each.into_iter().enumerate().map(|(rank, sizes)| (named(rank), sizes)).collect());
        }
        let sizes = sizes::of(&machine.open()?, (&folder, &opened, dtype), &tokenizer, &own)?;
        Ok(vec![(name, sizes)])
    };
    let all = order.named()?.into_iter().enumerate().map(one).collect::<Result<Vec<_>>>()?;
    Ok(all.into_iter().flatten().collect())
}

/// Serves models until asked to stop and until all threads that it started have ended.
///
/// # Errors
/// No model there; out of memory; two models of one name; unusable API keys; a port in use.
pub fn serve(order: &Order, around: &ServerLinks<'_>) -> Result<()> {
    let named = order.named()?;
    let keys = match &order.keys {
        Some(file) => ApiKeys::read(file)?,
        None => ApiKeys::none(),
    };
    fathom_serve::check(&order.at, &keys)?;
    let open = !is_loopback(&order.at.host);
    if open && !keys.asked() {
        around.events.warn(&format!(
            "anybody who reaches {} may use these models; ask for keys (--api-key-file FILE)",
            order.at.host
        ));
    }
    let watch = Watch { log: around.log.clone(), stop: around.stop.clone(), failed: Arc::default() };
    let roster = Arc::new(Roster::new(order, named, watch.clone()));
    // Before the models, which take long to load; but for those that a rail names.
    let rails = match &order.guard {
        Some(folder) => {
            let served = Arc::new(ServedModels::new(roster.clone().starter()));
            Some(guardrails::rails(folder, &order.machine(around.events), served)?)
        }
        None => None,
    };
    let mut started = Vec::new();
    for served in roster.models() {
        let StartedModel { service, sizes } = roster.start(&served.name)?;
        let over = if sizes.grid.ranks() > 1 { format!(" over {}", sizes.grid) } else { String::new() };
        around.events.note(&format!("{}{over}: {}", served.name, sizes.said()));
        let held = served.order.held();
        if let Some(held) = &held {
            around.events.note(&format!(
                "{}: its weights are rounded to {}, as the runs of its adapters held them, for requests without an adapter too",
                served.name,
                held.name()
            ));
        }
        let adapters = served.order.adapters.iter();
        let otherwise = |(_, folder): &(String, PathBuf)| held_otherwise(folder, held.as_ref());
        adapters.filter_map(otherwise).for_each(|said| around.events.warn(&said));
        started.push((served.name.clone(), service));
    }
    let opening = ServeOptions {
        settings: order.settings.clone(),
        keys,
        open,
        log: around.log.clone(),
        version: order.version.clone(),
        reload: Some(roster.clone().reload()),
        knowledge: knowledge(order, rails.as_ref(), around.events)?,
        rails: rails.map(|rails| rails as Arc<dyn Rails>),
        view: None,
    };
    let server = Arc::new(ServerState::new(opening));
    for (name, service) in started {
        server.add(&name, service)?;
    }
    fathom_serve::serve(&server, &order.at, around.stop, around.heard)?;
    drop(server);
    // An engine ends with its last handle; one that a request still holds is not awaited.
    let began = Instant::now();
    while !roster.is_over() && began.elapsed() < LAST {
        sleep(Duration::from_millis(5));
    }
    // An engine may have failed, which stops the server.
    let failed = watch.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
    failed.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_no_server_has_are_refused_by_their_keys() {
        let most = [i64::MAX as u64 - 1, i64::MAX as u64];
        for (key, number) in RANGES.iter().flat_map(|(key, ..)| most.map(|number| (key, number))) {
            let said = settings(None, &[format!("serve.{key}={number}")]).unwrap_err().to_string();
            assert!(said.contains(&format!("serve.{key}")) && said.contains("has to be from"), "{said}");
        }
        assert!(settings(None, &["serve.sequences=0".into()]).is_err());
        assert!(settings(None, &["serve.draft_tokens=0".into()]).is_ok());
    }
}
