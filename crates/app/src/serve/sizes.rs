//! Memory of a served model: weights, pages and workspace, planned on `meta` before anything is loaded.

use std::path::Path;
use std::sync::Arc;

use fathom_base::{GenerateRequest, human};
use fathom_engine::{Capacity, Engine, Limits, Scheduler, layer_page_bytes, page_buffers_bytes, page_bytes};
use fathom_grad::Params;
use fathom_model::{HfFolder, Model, ModelView, SafeTensors, Spec};
use fathom_tensor::mesh::{CountingLink, Grid, Mesh};
use fathom_tensor::{DType, Device, Meta, PAGE_ROWS};
use fathom_text::Tokenizer;

use super::draft::Draft;
use super::order::Order;
use crate::error::{Context, Result, caught, refuse};
use crate::{adapters, models};

/// Memory of a served model.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Bytes of the weights.
    pub weights_bytes: u64,
    /// Bytes of the adapters' weights, including the memory reserved for further ones.
    pub adapters_bytes: u64,
    /// Bytes of the draft model's weights.
    pub draft_bytes: u64,
    /// Bytes of a step's workspace.
    pub workspace_bytes: u64,
    /// Bytes of the pages, including the draft model's.
    pub pages_bytes: u64,
    /// Bytes of the draft model's pages.
    pub draft_pages_bytes: u64,
    /// Memory budget in bytes.
    pub budget_bytes: u64,
    /// Bytes of a page of each class.
    page_bytes: Vec<u64>,
    /// Maximum number of concurrent sequences, and their pages.
    pub capacity: Capacity,
    /// Total tokens that the pages hold.
    pub tokens: usize,
    /// Limits of the engine; its context is the longest that a single sequence can have.
    pub limits: Limits,
    /// Grid of the ranks that share the model.
    pub grid: Grid,
    /// Description of each rank's share of a layer's experts, if they can be shared.
    pub experts: Option<String>,
}

impl Sizes {
    /// Makes the sizes of a model without pages that reads texts of up to `context_tokens`.
    pub(super) fn without_pages(
        device: &Device,
        (weights_bytes, workspace_bytes): (u64, u64),
        context_tokens: usize,
    ) -> Sizes {
        Sizes {
            weights_bytes,
            workspace_bytes,
            adapters_bytes: 0,
            draft_bytes: 0,
            pages_bytes: 0,
            draft_pages_bytes: 0,
            budget_bytes: device.pool.budget(),
            page_bytes: Vec::new(),
            capacity: Capacity::default(),
            tokens: 0,
            limits: Limits { context_tokens, ..Limits::default() },
            grid: *device.mesh.grid(),
            experts: None,
        }
    }

    /// Returns the sum of all bytes that the model takes.
    pub fn bytes(&self) -> u64 {
        self.weights_bytes + self.adapters_bytes + self.draft_bytes + self.workspace_bytes + self.pages_bytes
    }

    /// Returns whether the model has pages; encoders have none.
    pub fn has_pages(&self) -> bool {
        !self.page_bytes.is_empty()
    }

    /// Describes the sizes in a line.
    pub fn said(&self) -> String {
        let draft = match self.draft_bytes {
            0 => String::new(),
            bytes => format!("a draft's {}, ", human::bytes(bytes)),
        };
        if !self.has_pages() {
            let [weights, workspace] = [self.weights_bytes, self.workspace_bytes].map(human::bytes);
            let tokens = human::grouped(self.limits.context_tokens as u64);
            return format!("weights {weights}, workspace {workspace}; texts of up to {tokens} tokens");
        }
        let experts = self.experts.iter().map(|experts| format!("; experts: {experts}")).collect::<String>();
        format!(
            "weights {}, {draft}adapters {}, pages {} for {} tokens, workspace {}; a context of {} tokens, {} at once{experts}",
            human::bytes(self.weights_bytes),
            human::bytes(self.adapters_bytes),
            human::bytes(self.pages_bytes),
            human::grouped(self.tokens as u64),
            human::bytes(self.workspace_bytes),
            human::grouped(self.limits.context_tokens as u64),
            human::counted(self.capacity.sequences as u64, "sequence")
        )
    }
}

/// Sets the sizes of all ranks of a model to the pages that every rank has room for; returns the total.
pub(super) fn agreed(ranks: &mut [Sizes]) -> Option<Sizes> {
    let classes = ranks.first()?.capacity.pages.len();
    let least =
        |class: usize| ranks.iter().filter_map(|sizes| sizes.capacity.pages.get(class)).min().copied();
    let pages: Vec<usize> = (0..classes).filter_map(least).collect();
    let context_tokens = ranks.iter().map(|sizes| sizes.limits.context_tokens).min()?;
    let on_disk = ranks.iter().map(|sizes| sizes.capacity.on_disk).min()?;
    for sizes in ranks.iter_mut() {
        sizes.capacity.pages.clone_from(&pages);
        sizes.capacity.on_disk = on_disk;
        sizes.limits.context_tokens = context_tokens;
        sizes.tokens = pages.iter().max().map_or(0, |pages| pages * PAGE_ROWS);
        // The number of the draft model's pages stays the same, which is an upper bound.
        sizes.pages_bytes = sum(&sizes.capacity, &sizes.page_bytes) + sizes.draft_pages_bytes;
    }
    let all = |bytes: fn(&Sizes) -> u64| ranks.iter().map(bytes).sum();
    Some(Sizes {
        weights_bytes: all(|sizes| sizes.weights_bytes),
        adapters_bytes: all(|sizes| sizes.adapters_bytes),
        workspace_bytes: all(|sizes| sizes.workspace_bytes),
        pages_bytes: all(|sizes| sizes.pages_bytes),
        budget_bytes: all(|sizes| sizes.budget_bytes),
        ..ranks.first()?.clone()
    })
}

/// Returns the largest number up to `most` for which `fits` holds, by bisection, assuming that it holds for all smaller
/// ones; 0 if it holds for none.
fn largest(most: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut good, mut bad) = (0, most + 1);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if fits(middle) { good = middle } else { bad = middle }
    }
    good
}

/// Bytes of a page of each class, for the model and the draft model.
struct PageBytes<'a> {
    own: Vec<u64>,
    /// Bytes of the model's page in one layer.
    in_a_layer: u64,
    draft: Option<(&'a Engine<'a>, Vec<u64>)>,
}

impl PageBytes<'_> {
    /// Bytes of the draft model's pages.
    fn drafts(&self, capacity: &Capacity) -> u64 {
        self.draft.as_ref().map_or(0, |(engine, each)| sum(&engine.alongside(capacity), each))
    }

    fn all(&self, capacity: &Capacity) -> u64 {
        sum(capacity, &self.own) + self.drafts(capacity)
    }
}

/// Returns the bytes of pages, with the i32 positions of their rows that a step needs.
fn sum(capacity: &Capacity, each: &[u64]) -> u64 {
    capacity.pages.iter().zip(each).map(|(pages, bytes)| *pages as u64 * (bytes + 4 * PAGE_ROWS as u64)).sum()
}

/// Returns the pages that `room` bytes hold: for the longest context of all sequences at once, or else of a single one.
fn fitting(
    engine: &Engine<'_>,
    each: &PageBytes<'_>,
    (sequences, context_tokens): (usize, usize),
    room: u64,
) -> Capacity {
    let many = largest(context_tokens, |tokens| each.all(&engine.capacity(sequences, tokens)) <= room);
    if many > 0 {
        return engine.capacity(sequences, many);
    }
    // The draft model has as many pages as all sequences together.
    let alone = largest(context_tokens, |tokens| {
        each.all(&Capacity { sequences, ..engine.capacity(1, tokens) }) <= room
    });
    Capacity { sequences, ..engine.capacity(1, alone) }
}

/// Returns the number of pages on disk for a sequence of `context_tokens`, limited by the size of the page file. The
/// pages of one layer are all in memory at once, in at most half of `room`.
fn on_disk(
    engine: &Engine<'_>,
    each: &PageBytes<'_>,
    order: &Order,
    (context_tokens, room): (usize, u64),
) -> usize {
    let all_bytes = order.settings.page_file_bytes / order.mesh.ranks() as u64;
    let windows = engine.spec().windows();
    let whole = || windows.iter().zip(&each.own).filter(|(window, _)| window.is_none());
    let each_bytes: u64 = whole().map(|(_, bytes)| bytes).sum();
    if order.prefixes.is_none() || all_bytes == 0 || whole().count() == 0 {
        return 0;
    }
    let needed = engine.capacity(1, context_tokens).pages.into_iter().max().unwrap_or(0);
    // A stage of a pipeline may have no such layer.
    let most = all_bytes.checked_div(each_bytes).unwrap_or(u64::MAX).min(room / 2 / each.in_a_layer.max(1));
    needed.min(usize::try_from(most).unwrap_or(usize::MAX))
}

/// Returns the pages that `room` bytes hold, with pages on disk for one sequence if they are too few, and the bytes of
/// one layer's pages gathered from disk, including read-ahead buffers.
fn paged(
    engine: &Engine<'_>,
    each: &PageBytes<'_>,
    order: &Order,
    (sequences, context_tokens): (usize, usize),
    room: u64,
) -> (Capacity, u64) {
    let capacity = fitting(engine, each, (sequences, context_tokens), room);
    if engine.bounds(capacity.clone()).fits(context_tokens) {
        return (capacity, 0);
    }
    let on_disk = on_disk(engine, each, order, (context_tokens, room));
    let gathered_bytes = on_disk as u64 * each.in_a_layer + page_buffers_bytes(on_disk, each.in_a_layer);
    let capacity = fitting(engine, each, (sequences, context_tokens), room - gathered_bytes);
    (Capacity { on_disk, ..capacity }, gathered_bytes)
}

/// Declares a model as a server keeps it.
///
/// # Errors
/// A model that cannot be quantized as in its adapters' runs.
fn declare(
    meta: &Device,
    (spec, dtype, source): (&Spec, DType, &SafeTensors),
    order: &Order,
) -> Result<(Model, Params)> {
    adapters::held_model(meta, (spec, source, dtype), order.held().as_ref(), |_, _| Ok(()))
}

/// Returns a device without data that plans as the given device's rank would.
pub(super) fn imagined(device: &Device) -> Device {
    let (grid, machine) = (*device.mesh.grid(), Arc::new(Meta::new(device.machine.profile().clone())));
    match grid.ranks() {
        1 => Device::new(machine, u64::MAX),
        ranks => {
            let link = Box::new(CountingLink::new(device.mesh.rank(), ranks));
            Device::on_mesh(machine, u64::MAX, Mesh::new(grid, link))
        }
    }
}

/// Returns a rank's device with a mesh of its own, for the draft model on the first rank.
pub(super) fn whole(device: &Device) -> Device {
    Device { mesh: Mesh::alone(), ..device.clone() }
}

/// Returns one rank of a grid whose other ranks do not exist.
pub(super) fn lone(grid: Grid, rank: usize) -> Mesh {
    Mesh::new(grid, Box::new(CountingLink::new(rank, grid.ranks())))
}

/// Checks that the room for pages holds the wanted number of tokens; `needed` is the bytes required there, and in
/// total.
fn holds((tokens, wanted): (usize, usize), room: u64, needed: [u64; 2]) -> Result<()> {
    if tokens >= wanted {
        return Ok(());
    }
    let [room, needed, all] = [room, needed[0], needed[1]].map(human::bytes);
    refuse!(
        "{room} are left for pages, which hold a context of {tokens} tokens and not of {wanted}; that takes {needed}, {all} with all else: \
         give it more memory (--memory), fewer bits of keys and values (--kv int8), pages on disk (--prefix-store DIR \
         serve.page_file_bytes=N), or a shorter context (serve.context_tokens)"
    )
}

/// Plans the memory of a model on a device, or of a rank's part of it.
pub(super) fn of(
    device: &Device,
    model: (&Path, &HfFolder, DType),
    tokenizer: &Tokenizer,
    order: &Order,
) -> Result<Sizes> {
    caught(|| {
        let ((folder, HfFolder { spec, source, .. }, dtype), settings) = (model, &order.settings);
        let asked = settings.context_tokens.map(|tokens| tokens as usize);
        let context_tokens = asked.unwrap_or_else(|| models::context_tokens(spec)).max(1);
        let sequences = (settings.sequences as usize).max(1);
        let limits = Limits {
            context_tokens,
            // The context has room for a chunk and the tokens after it.
            chunk_tokens: (settings.chunk_tokens as usize).min(context_tokens / 2).max(1),
            draft_tokens: settings.draft_tokens as usize,
            kv: order.kv,
        };
        let mut limits = limits.over(spec, sequences);
        let meta = imagined(device);
        let (declared, params) = declare(&meta, (spec, dtype, source), order)?;
        let weights_bytes = meta.pool.usage().live;
        let view = ModelView { device: &meta, model: &declared, params: &params };
        let mut engine = Engine::new(view, tokenizer, limits);
        let alone = whole(&meta);
        let draft = if meta.mesh.rank() == 0 { Draft::planned(&alone, order)? } else { None };
        let draft_bytes = meta.pool.usage().live - weights_bytes;
        let drafting = draft.as_ref().map(|draft| draft.engine(&alone, limits));
        let (adapters_bytes, mut workspace_bytes) =
            with_adapters(view, folder, tokenizer, order, (limits, sequences))?;
        if let Some(drafting) = &drafting {
            engine = engine.drafting(drafting)?;
            workspace_bytes = workspace_bytes.max(guessing(&alone, drafting, (limits, sequences))?);
        }
        // Keys and values of each layer end in a partly filled granule.
        let layers = spec.layers.len() + drafting.as_ref().map_or(0, |it| it.spec().layers.len());
        // Those of each source do too.
        let copies = if spec.source > 0 { 1 + sequences } else { 1 };
        workspace_bytes += (2 * layers * copies) as u64 * device.machine.profile().granule;
        let budget_bytes = device.pool.budget();
        let taken_bytes = weights_bytes + draft_bytes + adapters_bytes + workspace_bytes;
        let Some(left) = budget_bytes.checked_sub(taken_bytes) else {
            let all = [weights_bytes + draft_bytes, adapters_bytes, workspace_bytes, budget_bytes];
            let [weights, adapters, step, there] = all.map(human::bytes);
            refuse!(
                "the weights take {weights}, adapters {adapters} and a step {step}, and there are {there} (--memory)"
            );
        };
        // Without an explicit budget, half of the remaining memory is left to other programs.
        let room = if order.memory_bytes.is_some() { left } else { left / 2 };
        let own = page_bytes(&declared, dtype, order.kv);
        let each = PageBytes {
            own: own.clone(),
            in_a_layer: layer_page_bytes(&declared, dtype, order.kv),
            draft: drafting.as_ref().zip(draft.as_ref().map(|it| it.page_bytes(order.kv))),
        };
        let (capacity, gathered_bytes) = paged(&engine, &each, order, (sequences, context_tokens), room);
        workspace_bytes += gathered_bytes;
        limits.context_tokens =
            largest(context_tokens, |tokens| engine.bounds(capacity.clone()).fits(tokens));
        let wanted = asked.unwrap_or(1);
        let needed = each.all(&Capacity { sequences, ..engine.capacity(1, wanted) });
        holds((limits.context_tokens, wanted), room, [needed, taken_bytes + needed])?;
        Ok(Sizes {
            weights_bytes,
            adapters_bytes,
            draft_bytes,
            workspace_bytes,
            pages_bytes: each.all(&capacity),
            draft_pages_bytes: each.drafts(&capacity),
            budget_bytes,
            page_bytes: own,
            tokens: capacity.pages.iter().max().map_or(0, |pages| pages * PAGE_ROWS),
            capacity,
            limits,
            grid: *device.mesh.grid(),
            experts: None,
        })
    })
}

/// Returns the bytes of the adapters, and of a step with the adapter that needs most.
fn with_adapters(
    view: ModelView<'_>,
    folder: &Path,
    tokenizer: &Tokenizer,
    order: &Order,
    (limits, sequences): (Limits, usize),
) -> Result<(u64, u64)> {
    let ModelView { device: meta, model, params } = view;
    // Where layers have states, a chunk may be longer than the context; a step has that many rows of several sequences.
    let context_tokens =
        limits.context_tokens.max(if model.spec.has_states() { limits.chunk_tokens + 2 } else { 0 });
    let limits = Limits { context_tokens, ..limits };
    let engine = Engine::new(view, tokenizer, limits);
    let mut workspace_bytes = workspace(meta, &engine, None, (limits, sequences))?;
    let before = meta.pool.usage().live;
    for (name, path) in &order.adapters {
        let what = || format!("--adapter {name}");
        let folder = adapters::served(path, folder).with_context(what)?;
        meta.pool.reset_peak();
        engine.load_adapter(name, &folder)?;
        let loading = meta.pool.usage().peak_live - meta.pool.usage().live;
        let step = workspace(meta, &engine, Some(name), (limits, sequences))?;
        workspace_bytes = workspace_bytes.max(loading).max(step);
    }
    let adapters_bytes = meta.pool.usage().live - before;
    let later = order.settings.adapters.is_some();
    if order.has_adapters() {
        // Rows of a step are computed per adapter and then combined.
        let dtype = model.dtype(params);
        workspace_bytes += (limits.chunk_tokens * model.spec.hidden * dtype.bytes()) as u64;
    }
    // Each rank has a part of each further adapter.
    let ranks = order.mesh.ranks() as u64;
    let later_bytes = if later { order.settings.adapter_bytes.div_ceil(ranks) } else { 0 };
    Ok((adapters_bytes + later_bytes, workspace_bytes))
}

/// Returns the bytes of a step of the draft model, which runs before the model's.
fn guessing(meta: &Device, engine: &Engine<'_>, (limits, sequences): (Limits, usize)) -> Result<u64> {
    let context_tokens = limits.context_tokens.min(engine.spec().max_positions);
    workspace(meta, engine, None, (Limits { context_tokens, draft_tokens: 0, ..limits }, sequences))
}

/// Returns the bytes of a step that reads a chunk of a prompt with an adapter or the base, and of the logits of all
/// sequences.
fn workspace(
    meta: &Device,
    engine: &Engine<'_>,
    adapter: Option<&String>,
    (limits, sequences): (Limits, usize),
) -> Result<u64> {
    let spec = engine.spec();
    // One prompt token is left unread, so that no token is sampled, which would need data.
    let (piece, chunk) = (engine.piece_tokens(), limits.chunk_tokens);
    // A source is read at once, and its answer begins in the same step; a step reads the sources of one chunk, or one.
    let source = spec.source > 0;
    let (prompt, prompts) = if source {
        (limits.context_tokens, 1)
    } else {
        (limits.context_tokens.saturating_sub(1).min(piece + 1).max(1), chunk.div_ceil(piece))
    };
    let mut scheduler = Scheduler::new(engine, engine.capacity(prompts, prompt + 1));
    let before = meta.pool.usage().live;
    if source || prompt > piece {
        // Log-probabilities of a prompt's tokens need logits of many rows.
        let mut request = GenerateRequest::greedy(vec![0; prompt], 1);
        (request.adapter, request.prompt_logprobs) = (adapter.cloned(), (!source).then_some(0));
        for _ in 0..prompts {
            scheduler.submit(request.clone(), Box::new(|_| fathom_base::Flow::Continue))?;
        }
        scheduler.step();
    }
    // Up to the peak of reserved memory, which includes gaps between allocations.
    let step = meta.pool.usage().peak_reserved.saturating_sub(before);
    // On several ranks there are a rank's own columns, all columns by rank, and all columns side by side.
    let copies = if meta.mesh.grid().ranks() > 1 { 4 } else { 1 };
    let logits = sequences * (1 + limits.draft_tokens) * (4 * copies * spec.vocab + 8 * spec.hidden);
    Ok(step + logits as u64 + engine.state_bytes(sequences))
}
