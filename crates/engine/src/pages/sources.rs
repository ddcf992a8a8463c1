//! Sources of sequences: texts that the first stack of an encoder-decoder reads. Keys and values of a source are computed once, in
//! the step that first reads one of its sequences.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use fathom_grad::Batch;
use fathom_model::{Caps, Model, PackedTokens, mask};
use fathom_tensor::{Category, Device, Mask, Slice, Tensor};

/// A text with its keys and values.
pub(crate) struct SourceText {
    /// Its tokens.
    pub ids: Vec<u32>,
    /// Keys and values in each layer that attends to it; none before it is read.
    held: RefCell<Vec<[Tensor; 2]>>,
}

impl SourceText {
    pub fn new(ids: Vec<u32>) -> Rc<SourceText> {
        Rc::new(SourceText { ids, held: RefCell::default() })
    }

    /// Tokens that are still to be read.
    pub fn unread(&self) -> usize {
        if self.held.borrow().is_empty() { self.ids.len() } else { 0 }
    }

    /// Gives its keys and values up; they are computed again when they are needed.
    pub fn release(&self) {
        self.held.borrow_mut().clear();
    }
}

/// The sources of a batch's sequences, each once.
#[derive(Default)]
pub(crate) struct BatchSources {
    all: Vec<Rc<SourceText>>,
    /// Those that this batch reads.
    unread: Vec<Rc<SourceText>>,
    /// The source of each feed.
    of_feed: Vec<usize>,
    /// The first layer that attends to sources.
    first: usize,
}

impl BatchSources {
    /// Those of a batch's feeds, in order.
    pub fn new<'a>(model: &Model, of_feeds: impl Iterator<Item = &'a Rc<SourceText>>) -> BatchSources {
        let mut sources = BatchSources { first: model.spec.source, ..BatchSources::default() };
        for source in of_feeds {
            let known = sources.all.iter().position(|known| Rc::ptr_eq(known, source));
            sources.of_feed.push(known.unwrap_or(sources.all.len()));
            if known.is_none() {
                sources.all.push(source.clone());
            }
        }
        sources.unread = sources.all.iter().filter(|it| it.unread() > 0).cloned().collect();
        sources
    }

    /// The batch of those that are read; `None` without any.
    pub fn batch(&self, device: &Device, model: &Model) -> Option<Batch> {
        let (mut ids, mut positions, mut docs) = (Vec::new(), Vec::new(), Vec::new());
        for source in &self.unread {
            docs.push(ids.len()..ids.len() + source.ids.len());
            ids.extend(source.ids.iter().map(|id| *id as i32));
            positions.extend(0..source.ids.len() as i32);
        }
        let seq_tokens = docs.iter().map(ExactSizeIterator::len).max()?;
        let caps = Caps { docs: docs.len(), seq_tokens };
        let packed = PackedTokens { ids: &ids, positions: &positions, docs: &docs };
        Some(model.source_batch(device, packed, caps))
    }

    /// The mask of a batch whose feeds have these rows.
    pub fn mask(&self, device: &Device, positions: &Tensor, rows: &[Range<usize>]) -> Mask {
        let mut keys = Vec::new();
        let mut end = 0;
        for source in &self.all {
            keys.push(end..end + source.ids.len());
            end += source.ids.len();
        }
        let pairs =
            rows.iter().zip(&self.of_feed).map(|(rows, source)| (rows.clone(), keys[*source].clone()));
        let slices: Vec<Slice> = pairs.clone().map(|(rows, keys)| Slice::full(rows, keys)).collect();
        let pairs = pairs.map(|(rows, keys)| (rows.len() * keys.len()) as u64).sum();
        let pos_k = device.from_i32(&vec![0; end], Category::Data);
        mask(device, &slices, slices.len().max(1), [positions, &pos_k], pairs)
    }

    /// Takes a layer's keys and values of those that are read, and returns those of all.
    pub fn keys(&self, device: &Device, layer: usize, [k, v]: [&Tensor; 2]) -> [Tensor; 2] {
        let mut start = 0;
        for source in &self.unread {
            let rows = start..start + source.ids.len();
            start = rows.end;
            let own = [k, v].map(|all| {
                let own = device.empty(rows.len(), all.cols(), all.dtype(), Category::Kv);
                device.machine.copy(&all.view_rows(rows.clone()), &own);
                own
            });
            source.held.borrow_mut().push(own);
        }
        let of = |source: &Rc<SourceText>| source.held.borrow()[layer - self.first].clone();
        if let [one] = &self.all[..] {
            return of(one);
        }
        let rows = self.all.iter().map(|source| source.ids.len()).sum();
        let joined = [k, v].map(|like| device.empty(rows, like.cols(), like.dtype(), Category::Activations));
        let mut start = 0;
        for source in &self.all {
            for (own, joined) in of(source).iter().zip(&joined) {
                device.machine.copy(own, &joined.view_rows(start..start + own.rows()));
            }
            start += source.ids.len();
        }
        joined
    }
}
