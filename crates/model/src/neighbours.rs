//! Streams of a model whose source reads neighbours of chunks of the main stream (RETRO): each neighbour attends to the rows
//! of its chunk, and later rows of the main stream to the neighbours.

use std::ops::Range;

use fathom_grad::{Alike, Batch, Memory, ParamId, Segments, Which};
use fathom_tensor::{Device, Slice, Tensor};

use crate::batch::{Caps, PackedTokens, mask};
use crate::block::parts;
use crate::forward::{EMBED, alone};
use crate::model::Model;
use crate::norm::norm;
use crate::spec::{Spec, Stack};

/// Results of a forward pass with neighbours.
pub struct RetrievalOutput {
    /// Hidden states before the head: [t, hidden].
    pub main: Tensor,
    /// Rows of the main stream, to which the source attends.
    pub chunks: Memory,
    /// The source's result.
    pub neighbours: Memory,
}

/// Kinds of the segments of the layer in which both streams meet.
const BELOW: u32 = u32::MAX - 4;
const ROWS: u32 = u32::MAX - 5;
const ABOVE: u32 = u32::MAX - 6;

impl Model {
    /// A forward pass over four runs, on a rank with all layers: the main stream up to the layer in which it meets the
    /// source, its rows for the source, the source's stream, and the rest of the main stream. `remember` makes room for
    /// the gradient of what another stream reads.
    ///
    /// The backward pass takes them in the opposite order; the second run's gradient is added to the last one's.
    ///
    /// # Panics
    /// If the model has no retrieval, or this rank only some of the layers.
    #[track_caller]
    pub fn forward_retrieval<'a>(
        &'a self,
        [below, rows, source, above]: [&mut impl Segments<'a>; 4],
        remember: &dyn Fn(Tensor) -> Memory,
    ) -> RetrievalOutput {
        let Some((layer, cross)) = self.spec.meeting() else {
            panic!("forward: {} has no retrieval", self.spec.family)
        };
        let (split, all) = (self.spec.source, self.spec.layers.len());
        let local = self.portion.local(&self.spec);
        let [lower, upper] = [Stack::Source, Stack::Main].map(|stack| local.stack(stack));
        let x_td = self.begin(below, 0, alone(EMBED), &|cx, p| self.embed(cx, p));
        let x_td = self.through(below, &upper, split..layer, x_td, &[]);
        let x_td = self.part(below, (&upper, BELOW), (layer, 0..cross), x_td, &[]);
        let chunks = remember(self.rows_of_chunks(rows, &upper, (layer, cross), x_td.clone()));
        let x_sd = self.begin_source(source, 0);
        let x_sd = self.through(source, &lower, 0..split, x_sd, std::slice::from_ref(&chunks));
        let neighbours = remember(self.result(source, &lower, x_sd));
        let memory = std::slice::from_ref(&neighbours);
        let last = cross..self.spec.layers[layer].parts.len();
        let x_td = self.part(above, (&upper, ABOVE), (layer, last), x_td, memory);
        let x_td = self.through(above, &upper, layer + 1..all, x_td, memory);
        let main = self.end(above, &upper, 0, x_td);
        RetrievalOutput { main, chunks, neighbours }
    }

    /// Runs some parts of a layer.
    fn part<'a>(
        &'a self,
        run: &mut impl Segments<'a>,
        (s, kind): (&Spec, u32),
        (index, range): (usize, Range<usize>),
        x_td: Tensor,
        memory: &[Memory],
    ) -> Tensor {
        let (layer, p) = (&self.spec.layers[index], &self.blocks[index]);
        let x_td = run.run(of_layer(index, kind), Some(x_td), memory, &|cx, x_td, memory| {
            let m_sd = memory.first().copied().unwrap_or(x_td);
            parts(cx, s, layer, (p, range.clone()), [x_td, m_sd])
        });
        if range.end == layer.parts.len() {
            run.passed(index + 1, &x_td);
        }
        x_td
    }

    /// The rows that the first attention to neighbours reads, normalised, all of them on each of the ranks that share
    /// the layers.
    fn rows_of_chunks<'a>(
        &'a self,
        run: &mut impl Segments<'a>,
        s: &Spec,
        (index, cross): (usize, usize),
        x_td: Tensor,
    ) -> Tensor {
        let p = self.blocks[index].parts[cross].norm;
        run.run(of_layer(index, ROWS), Some(x_td), &[], &|cx, x_td, _| {
            cx.rows(|cx| {
                let h_td = norm(cx, s, ["chunks.norm", "chunks.norm.stats"], x_td, p);
                cx.enter("chunks.out", h_td)
            })
        })
    }

    /// A micro-batch of neighbours and of the main stream, on one rank of a context. The first documents of the source
    /// are neighbours: `chunks` has the row of the main stream at which the chunk of each begins, ascending. Others
    /// fill up.
    ///
    /// # Panics
    /// Those of [`Model::batch_of`], and if a chunk is not within a document, or the model has no retrieval.
    #[track_caller]
    pub fn retrieval_batches(
        &self,
        device: &Device,
        [source, main]: [PackedTokens<'_>; 2],
        chunks: &[usize],
        caps: Caps,
    ) -> [Batch; 2] {
        let Some(retrieval) = self.spec.retrieval else {
            panic!("batch: {} has no retrieval", self.spec.family)
        };
        let tokens = main.ids.len();
        let most = Caps { docs: retrieval.documents(tokens), ..caps };
        device.pool.enter("batch", -1);
        let mut below = self.whole_stack_batch(device, Stack::Source, source, most);
        let mut above = self.whole_stack_batch(device, Stack::Main, main, caps);
        let (mut of_source, mut of_main) = (Vec::new(), Vec::new());
        for group in
            source.docs[..chunks.len()].iter().zip(chunks).collect::<Vec<_>>().chunk_by(|a, b| a.1 == b.1)
        {
            let (rows, start) = (group[0].0.start..group[group.len() - 1].0.end, *group[0].1);
            let chunk = start..start + retrieval.chunk;
            let Some(doc) = main.docs.iter().find(|doc| doc.start <= chunk.start && chunk.end <= doc.end)
            else {
                panic!("batch: the chunk {chunk:?} is not within a document")
            };
            of_source.push(Slice::full(rows.clone(), chunk));
            of_main.push(Slice::full(retrieval.readers(start, doc.end), rows));
        }
        let (cap, [q, k]) =
            (retrieval.chunks(tokens), [&above.positions, &below.positions].map(Tensor::clone));
        below.masks.push(mask(device, &of_source, cap, [&k, &q], pairs(&of_source)));
        above.masks.push(mask(device, &of_main, cap, [&q, &k], pairs(&of_main)));
        [below, above]
    }
}

/// Key of a segment that occurs once, in a layer.
fn of_layer(layer: usize, kind: u32) -> Which {
    Which { layer: layer as i32, alike: Some(Alike { kind: vec![kind], first: ParamId(0) }) }
}

fn pairs(slices: &[Slice]) -> u64 {
    slices.iter().map(|slice| ((slice.q_end - slice.q_start) * (slice.k_end - slice.k_start)) as u64).sum()
}
