//! Micro-batches for a model: masks per window and rotary tables.

use std::ops::Range;

use fathom_grad::{Batch, Context, ContextLayout, CpComm, LayoutSizes, Rotation, SharedStream};
use fathom_tensor::{Category, DType, Device, Mask, RopeTable, Slice, Tensor};

pub use fathom_grad::{causal_pairs, mask};

use crate::model::Model;
use crate::rope::{Frequencies, RopeSpec};
use crate::spec::{Reach, Spec, Stack, slopes};

/// A packed stream of tokens on the host.
#[derive(Clone, Copy, Debug)]
pub struct PackedTokens<'a> {
    /// Token ids.
    pub ids: &'a [i32],
    /// Position of each token.
    pub positions: &'a [i32],
    /// Ranges that attend among themselves only; they cover the stream.
    pub docs: &'a [Range<usize>],
}

/// The layout of a stream on one rank.
#[track_caller]
fn whole(packed: &PackedTokens<'_>) -> ContextLayout {
    let (tokens, windows) = (packed.ids.len(), &[]);
    let cut = LayoutSizes { tokens, cp: 1, chunk: tokens, windows, dynamic: None, pieces: None };
    ContextLayout::new(packed.docs, &cut).unwrap_or_else(|message| panic!("batch: {message}"))
}

/// Largest rotary table that is precomputed for a whole micro-batch.
const TABLE_BYTES: usize = 32 << 20;

/// Sizes by which shapes are charged, regardless of a batch's content.
#[derive(Clone, Copy, Debug)]
pub struct Caps {
    /// Most documents per micro-batch.
    pub docs: usize,
    /// Longest sequence of the stage; decides length-dependent rotary scalings.
    pub seq_tokens: usize,
}

impl Model {
    /// A micro-batch on the device: ids, positions, one causal mask per window, one table per rotary setting.
    ///
    /// # Panics
    /// If lengths differ or there are more documents than the cap.
    #[track_caller]
    pub fn batch(&self, device: &Device, packed: PackedTokens<'_>, caps: Caps) -> Batch {
        let layout = whole(&packed);
        self.batch_of(
            device,
            packed,
            caps,
            &SharedStream { layout: &layout, comm: &[CpComm::P2p], states: None },
        )
    }

    /// This rank's part of a stream that a context-parallel group shares. `packed` is the whole stream, the same on
    /// all ranks.
    ///
    /// # Panics
    /// If lengths differ, there are more documents than the cap, or the layout is not for the device's mesh.
    #[track_caller]
    pub fn batch_of(
        &self,
        device: &Device,
        packed: PackedTokens<'_>,
        caps: Caps,
        sharing: &SharedStream<'_>,
    ) -> Batch {
        let PackedTokens { ids, positions, docs } = packed;
        assert!(
            positions.len() == ids.len() && docs == sharing.layout.docs() && docs.len() <= caps.docs,
            "batch: {} ids, {} positions, {} documents of at most {}",
            ids.len(),
            positions.len(),
            docs.len(),
            caps.docs
        );
        device.pool.enter("batch", -1);
        let main = self.spec.stack(Stack::Main);
        self.stack_batch(device, &main, packed, caps, sharing)
    }

    /// A micro-batch of each stack of a model with a source, on one rank of a context: documents of the main stream attend
    /// to those of the source, in order.
    ///
    /// # Panics
    /// Those of [`Model::batch_of`], and if there are not equally many documents.
    #[track_caller]
    pub fn batches(&self, device: &Device, streams: [PackedTokens<'_>; 2], caps: Caps) -> [Batch; 2] {
        let layouts = streams.each_ref().map(whole);
        let sharing =
            layouts.each_ref().map(|layout| SharedStream { layout, comm: &[CpComm::P2p], states: None });
        self.shared_batches(device, streams, caps, sharing.each_ref())
    }

    /// [`Model::batches`] of streams that a context-parallel group shares, as [`Model::batch_of`].
    ///
    /// # Panics
    /// Those of both.
    #[track_caller]
    pub fn shared_batches(
        &self,
        device: &Device,
        [source, main]: [PackedTokens<'_>; 2],
        caps: Caps,
        [of_source, of_main]: [&SharedStream<'_>; 2],
    ) -> [Batch; 2] {
        assert_eq!(
            source.docs.len(),
            main.docs.len(),
            "batch: documents of the source and of the main stream"
        );
        device.pool.enter("batch", -1);
        let [below, mut above] = [(Stack::Source, source, of_source), (Stack::Main, main, of_main)]
            .map(|(stack, packed, of)| self.stack_batch(device, &self.spec.stack(stack), packed, caps, of));
        let cross = if let Some(context) = &mut above.context {
            context.attend_to(device, [of_main.layout, of_source.layout], caps.docs, &above.positions)
        } else {
            let pairs = main.docs.iter().zip(source.docs);
            let slices: Vec<Slice> = pairs.clone().map(|(q, k)| Slice::full(q.clone(), k.clone())).collect();
            let pairs = pairs.map(|(q, k)| (q.len() * k.len()) as u64).sum();
            mask(device, &slices, caps.docs, [&above.positions, &below.positions], pairs)
        };
        above.masks.push(cross);
        [below, above]
    }

    /// A micro-batch of a model's source alone, on one rank of a context.
    ///
    /// # Panics
    /// If lengths differ or there are more documents than the cap.
    #[track_caller]
    pub fn source_batch(&self, device: &Device, packed: PackedTokens<'_>, caps: Caps) -> Batch {
        device.pool.enter("batch", -1);
        self.whole_stack_batch(device, Stack::Source, packed, caps)
    }

    /// A micro-batch of a stack on one rank of a context.
    #[track_caller]
    pub(crate) fn whole_stack_batch(
        &self,
        device: &Device,
        stack: Stack,
        packed: PackedTokens<'_>,
        caps: Caps,
    ) -> Batch {
        let layout = whole(&packed);
        let sharing = SharedStream { layout: &layout, comm: &[CpComm::P2p], states: None };
        self.stack_batch(device, &self.spec.stack(stack), packed, caps, &sharing)
    }

    fn stack_batch(
        &self,
        device: &Device,
        spec: &Spec,
        PackedTokens { ids, positions, docs }: PackedTokens<'_>,
        caps: Caps,
        sharing: &SharedStream<'_>,
    ) -> Batch {
        let own = |values: &[i32]| device.from_i32(&sharing.own(device, values), Category::Data);
        let text = self.text(device, &sharing.own(device, ids));
        let own_positions = own(positions);
        let rows = position_rows(spec.first_position(), ids, positions, docs);
        let rows = rows.map_or_else(|| own_positions.clone(), |rows| own(&rows));
        let ids = own(&self.looked_up(ids));
        let reaches = spec.reaches();
        let (masks, context) = if reaches.iter().any(|reach| reach.looks_ahead()) {
            let together = || reaches.iter().map(|reach| reach.mask(device, &own_positions, docs, caps.docs));
            let apart = spec.relative().is_some();
            if sharing.layout.cp() > 1 {
                assert!(!apart, "batch: relative distances are on one rank of a context");
                let far: Vec<Option<usize>> = reaches.iter().map(|reach| reach.far()).collect();
                let (masks, context) =
                    Context::around(device, sharing.layout, &far, caps.docs, positions, &own_positions);
                (masks, Some(context))
            } else if apart {
                (masks_apart(device, spec, &own_positions, docs), None)
            } else {
                (together().collect(), None)
            }
        } else {
            Context::new(device, sharing, &spec.windows(), caps.docs, positions, &own_positions)
        };
        let ropes = self.rotations(device, &own_positions, caps.seq_tokens);
        let documents = spec.mixes_by_document().then(|| sharing.documents(device, caps.docs));
        let slopes = self.slopes(device);
        Batch { documents, masks, ropes, context, text, slopes, ..Batch::new(ids, rows) }
    }

    /// f32 [1, heads]: slopes by distance of this rank's heads, if attention has them.
    pub fn slopes(&self, device: &Device) -> Option<Tensor> {
        let (heads, own) = (self.spec.heads, self.portion.own_heads(&self.spec));
        let upload = || device.from_f32(1, own.len(), &slopes(heads)[own], Category::Data);
        self.spec.slopes.then(upload)
    }

    /// Tables for one run of tokens; those above [`TABLE_BYTES`] are computed tile by tile.
    fn rotations(&self, device: &Device, positions: &Tensor, seq_tokens: usize) -> Vec<Rotation> {
        let rotation = |spec: &RopeSpec| {
            let tokens = positions.cols();
            let frequencies = frequencies(device, spec, seq_tokens);
            if tokens * spec.rot_dim * 4 > TABLE_BYTES {
                return Rotation::ByTile { inv_freq: frequencies.0, factor: frequencies.1 };
            }
            let out = device.empty(tokens, spec.rot_dim, DType::F32, Category::Data);
            rope_table(device, frequencies, positions, &out);
            Rotation::Table(out)
        };
        self.spec.ropes.iter().map(rotation).collect()
    }

    /// f32 [t, rot] cosines and sines for each rotary setting. `sequences` are ranges of the stream's tokens,
    /// covering it in order, each with its sequence's length, on which some settings depend.
    pub fn rope_tables(
        &self,
        device: &Device,
        positions: &Tensor,
        sequences: &[(Range<usize>, usize)],
    ) -> Vec<Rotation> {
        let table = |spec: &RopeSpec| {
            let out = device.empty(positions.cols(), spec.rot_dim, DType::F32, Category::Data);
            if spec.looks_at_length() {
                for (rows, tokens) in sequences {
                    let part = positions.view_cols(rows.clone());
                    rope_table(
                        device,
                        frequencies(device, spec, *tokens),
                        &part,
                        &out.view_rows(rows.clone()),
                    );
                }
            } else {
                rope_table(device, frequencies(device, spec, 0), positions, &out);
            }
            Rotation::Table(out)
        };
        self.spec.ropes.iter().map(table).collect()
    }
}

/// Rows of the table of positions; `None` if they are the positions. Where a row comes before the first, it is that of
/// the token of padding with the same number, which is not counted (RoBERTa).
fn position_rows(first: usize, ids: &[i32], positions: &[i32], docs: &[Range<usize>]) -> Option<Vec<i32>> {
    let (first, padding) = (first as i32, first.checked_sub(1)? as i32);
    let mut rows: Vec<i32> = positions.iter().map(|position| position + first).collect();
    for doc in docs {
        let mut padded = 0;
        for at in doc.clone() {
            if ids[at] == padding {
                padded += 1;
                rows[at] = padding;
            } else {
                rows[at] -= padded;
            }
        }
    }
    Some(rows)
}

impl Reach {
    /// Mask of documents that attend to themselves.
    fn mask(self, device: &Device, positions: &Tensor, docs: &[Range<usize>], cap: usize) -> Mask {
        let slice = |doc: &Range<usize>| match self {
            Reach::Causal => Slice::causal(doc.clone(), doc.clone(), None),
            Reach::Window(tokens) => Slice::causal(doc.clone(), doc.clone(), Some(tokens)),
            Reach::Full => Slice::full(doc.clone(), doc.clone()),
            Reach::Around(tokens) => {
                let (lo, hi) = (-(tokens as i64), tokens as i64);
                Slice { lo, hi, ..Slice::full(doc.clone(), doc.clone()) }
            }
        };
        let slices: Vec<Slice> = docs.iter().map(slice).collect();
        let pairs = docs.iter().map(|doc| self.pairs(doc.len() as u64)).sum();
        mask(device, &slices, cap, [positions, positions], pairs)
    }

    /// Number of pairs of a document of so many tokens.
    fn pairs(self, tokens: u64) -> u64 {
        let causal = |window: u64| tokens * window - window * window.saturating_sub(1) / 2;
        match self {
            Reach::Causal => causal(tokens),
            Reach::Window(window) => causal(tokens.min(window as u64)),
            Reach::Full => tokens * tokens,
            Reach::Around(far) => 2 * causal(tokens.min(far as u64 + 1)) - tokens,
        }
    }
}

/// Masks of each document alone, so that its results do not depend on the others.
pub(crate) fn masks_apart(
    device: &Device,
    spec: &Spec,
    positions: &Tensor,
    docs: &[Range<usize>],
) -> Vec<Mask> {
    let reaches = spec.reaches();
    let of_doc = |doc: &Range<usize>| -> Vec<Mask> {
        let (own, rows) = (positions.view_cols(doc.clone()), 0..doc.len());
        reaches.iter().map(|reach| reach.mask(device, &own, std::slice::from_ref(&rows), 1)).collect()
    };
    docs.iter().flat_map(of_doc).collect()
}

/// f32 [1, rot/2] radians per position, and the scale of cosines and sines.
fn frequencies(device: &Device, spec: &RopeSpec, seq_tokens: usize) -> (Tensor, f32) {
    let Frequencies { inv_freq, factor } = spec.frequencies(seq_tokens);
    (device.from_f32(1, inv_freq.len(), &inv_freq, Category::Data), factor)
}

fn rope_table(device: &Device, (inv_freq, factor): (Tensor, f32), positions: &Tensor, out: &Tensor) {
    device.machine.rope_table(&RopeTable { positions, inv_freq: &inv_freq, factor, out });
}
