//! Forward pass of a model over segments: one stream, or a source's and that of the layers that attend to its result.

use std::ops::Range;

use fathom_grad::{Alike, Ctx, Memory, ParamId, Segments, Val, Which};
use fathom_tensor::Tensor;

use crate::block::{BlockParams, block};
use crate::encoder::{means, pool};
use crate::model::Model;
use crate::norm::norm;
use crate::spec::{LayerSpec, Spec, Stack};
use crate::weight::LastParams;
use crate::whole::EmbedParams;

/// A model's streams between its blocks.
pub struct Streams {
    /// The rows of the main stream.
    pub main: Tensor,
    /// The source.
    pub source: SourceStream,
}

/// A source between the blocks of its model.
pub enum SourceStream {
    /// Its rows, between its own blocks.
    Rows(Tensor),
    /// Its result.
    Result(Memory),
}

impl SourceStream {
    /// Its rows.
    pub fn rows(&self) -> &Tensor {
        match self {
            SourceStream::Rows(x_sd) => x_sd,
            SourceStream::Result(memory) => &memory.value,
        }
    }
}

/// Kinds of the segments before and after the blocks; blocks have their layer's.
pub(crate) const EMBED: u32 = u32::MAX;
const LAST: u32 = u32::MAX - 1;
const SOURCE: u32 = u32::MAX - 2;
const RESULT: u32 = u32::MAX - 3;

/// Key of a segment that occurs once.
pub(crate) fn alone(kind: u32) -> Which {
    Which { layer: -1, alike: Some(Alike { kind: vec![kind], first: ParamId(0) }) }
}

impl Model {
    /// Maps the batch's token ids to the hidden states before the head: [t, hidden].
    ///
    /// # Panics
    /// If this rank has only some of the layers.
    #[track_caller]
    pub fn forward<'a>(&'a self, run: &mut impl Segments<'a>) -> Tensor {
        let whole = self.portion.first && self.portion.last && self.portion.chunks.len() == 1;
        assert!(
            whole,
            "forward: of {} layers this rank has {:?}",
            self.spec.layers.len(),
            self.portion.chunks
        );
        self.forward_chunk(run, 0, None)
    }

    /// Runs one of the portion's chunks of layers: the pipeline's first takes token ids, the others the previous
    /// output; the last returns the hidden states before the head.
    ///
    /// # Panics
    /// If `x` is missing but needed.
    #[track_caller]
    pub fn forward_chunk<'a>(
        &'a self,
        run: &mut impl Segments<'a>,
        chunk: usize,
        x: Option<Tensor>,
    ) -> Tensor {
        assert!(self.spec.source == 0, "forward: a model with a source runs over two streams");
        let (layers, s) = (self.portion.chunks[chunk].clone(), &self.portion.local(&self.spec));
        let x_td = match x {
            None => self.begin(run, chunk, alone(EMBED), &|cx, p| self.embed(cx, p)),
            Some(x_td) => x_td,
        };
        let x_td = self.through(run, s, layers, x_td, &[]);
        self.end(run, s, chunk, x_td)
    }

    /// [`Model::forward_chunk`] of a model with a source: a run over each stream, source first, and what the layers
    /// before gave. `remember` makes room for the gradient of the source's result.
    ///
    /// # Panics
    /// If `streams` are missing but needed.
    #[track_caller]
    pub fn forward_streams<'a>(
        &'a self,
        [below, above]: [&mut impl Segments<'a>; 2],
        chunk: usize,
        streams: Option<Streams>,
        remember: &dyn Fn(Tensor) -> Memory,
    ) -> Streams {
        let (layers, split) = (self.portion.chunks[chunk].clone(), self.spec.source);
        let local = self.portion.local(&self.spec);
        let [lower, upper] = [Stack::Source, Stack::Main].map(|stack| local.stack(stack));
        let Streams { main, source } = match streams {
            Some(streams) => streams,
            None => {
                let source = self.begin_source(below, chunk);
                let main = self.begin(above, chunk, alone(EMBED), &|cx, p| self.embed(cx, p));
                Streams { main, source: SourceStream::Rows(source) }
            }
        };
        let of_source = layers.start.min(split)..layers.end.min(split);
        let source = match source {
            SourceStream::Rows(x_sd) if !of_source.is_empty() => {
                let x_sd = self.through(below, &lower, of_source, x_sd, &[]);
                if layers.end < split {
                    SourceStream::Rows(x_sd)
                } else {
                    SourceStream::Result(remember(self.result(below, &lower, x_sd)))
                }
            }
            source => source,
        };
        let of_main = layers.start.max(split)..layers.end.max(split);
        let main = match &source {
            SourceStream::Result(memory) => {
                self.through(above, &upper, of_main, main, std::slice::from_ref(memory))
            }
            SourceStream::Rows(_) => main,
        };
        Streams { main: self.end(above, &upper, chunk, main), source }
    }

    /// The result of a source, on a rank with all layers: [s, hidden].
    ///
    /// # Panics
    /// If this rank has only some of the layers.
    #[track_caller]
    pub fn source<'a>(&'a self, run: &mut impl Segments<'a>) -> Tensor {
        let lower = self.portion.local(&self.spec).stack(Stack::Source);
        let x_sd = self.begin_source(run, 0);
        let x_sd = self.through(run, &lower, 0..self.spec.source, x_sd, &[]);
        self.result(run, &lower, x_sd)
    }

    /// Hidden states before the head of a stream that attends to the result of its source, on a rank with all layers: [t, hidden].
    ///
    /// # Panics
    /// If this rank has only some of the layers.
    #[track_caller]
    pub fn target<'a>(&'a self, run: &mut impl Segments<'a>, result: Memory) -> Tensor {
        let upper = self.portion.local(&self.spec).stack(Stack::Main);
        let x_td = self.begin(run, 0, alone(EMBED), &|cx, p| self.embed(cx, p));
        let layers = self.spec.source..self.spec.layers.len();
        let x_td = self.through(run, &upper, layers, x_td, &[result]);
        self.end(run, &upper, 0, x_td)
    }

    /// Runs the segment of a source's embedding.
    #[track_caller]
    pub(crate) fn begin_source<'a>(&'a self, run: &mut impl Segments<'a>, chunk: usize) -> Tensor {
        self.begin(run, chunk, alone(SOURCE), &|cx, p| {
            let Some(table) = p.source else { panic!("forward: no embedding of a source") };
            cx.embed_parallel(table, [None; 2], (self.embed_scale, false), self.own_rows(table))
        })
    }

    /// The source's result, with all of its rows on each of the ranks that share the layers.
    pub(crate) fn result<'a>(&'a self, run: &mut impl Segments<'a>, s: &Spec, x_sd: Tensor) -> Tensor {
        let p = self.blocks.iter().find_map(|block| block.source_norm);
        run.segment(alone(RESULT), Some(x_sd), &|cx, x_sd| {
            cx.rows(|cx| {
                let x_sd = norm(cx, s, ["source.norm", "source.norm.stats"], x_sd, p);
                cx.enter("source.out", x_sd)
            })
        })
    }

    /// Runs the segment of an embedding.
    #[track_caller]
    pub(crate) fn begin<'a>(
        &'a self,
        run: &mut impl Segments<'a>,
        chunk: usize,
        which: Which,
        embed: &dyn Fn(&mut Ctx<'a>, &'a EmbedParams) -> Val,
    ) -> Tensor {
        let layers = &self.portion.chunks[chunk];
        let Some(p) = self.embed.as_ref().filter(|_| self.portion.first && chunk == 0) else {
            panic!("forward: layers {layers:?} need what those before them give")
        };
        let x_td = run.segment(which, None, &|cx, _| embed(cx, p));
        run.embedded(&x_td);
        run.passed(0, &x_td);
        x_td
    }

    /// Runs some of this rank's blocks, with the result of another stream if there is one.
    pub(crate) fn through<'a>(
        &'a self,
        run: &mut impl Segments<'a>,
        s: &Spec,
        layers: Range<usize>,
        mut x_td: Tensor,
        memory: &[Memory],
    ) -> Tensor {
        let before = self.portion.layers().take_while(|layer| *layer < layers.start).count();
        let blocks = &self.blocks[before..before + layers.len()];
        let together = run.layers_per_segment();
        let alike = self.alike.get(before..before + layers.len()).unwrap_or_default();
        let blocks: Vec<_> = layers.clone().zip(self.spec.layers[layers].iter().zip(blocks)).collect();
        for (index, blocks) in blocks.chunks(together).enumerate() {
            let alike = alike.chunks(together).nth(index).map(|alike| {
                let kind = alike.iter().map(|(like, _)| *like as u32).collect();
                Alike { kind, first: alike[0].1 }
            });
            let which = Which { layer: blocks[0].0 as i32, alike };
            let reads = blocks.iter().any(|(_, (layer, _))| layer.cross().is_some());
            let memory = if reads { memory } else { &[] };
            x_td = run.run(which, Some(x_td), memory, &|cx, x_td, memory| {
                let m_sd = memory.first().copied().unwrap_or(x_td);
                let each = |x_td, (_, (layer, params)): &(usize, (&LayerSpec, &BlockParams))| {
                    block(cx, s, layer, params, [x_td, m_sd])
                };
                blocks.iter().fold(x_td, each)
            });
            run.passed(blocks[0].0 + blocks.len(), &x_td);
        }
        x_td
    }

    /// Runs the segment after the last block, if this chunk ends with it.
    pub(crate) fn end<'a>(
        &'a self,
        run: &mut impl Segments<'a>,
        s: &Spec,
        chunk: usize,
        x_td: Tensor,
    ) -> Tensor {
        let ends = self.portion.last && chunk + 1 == self.portion.chunks.len();
        let ends = |p: &LastParams| ends && (p.norm.is_some() || p.pool.is_some());
        let Some(p) = self.last.filter(ends) else { return x_td };
        let names = ["final.norm", "final.norm.stats"];
        run.segment(alone(LAST), Some(x_td), &|cx, x_td| {
            cx.rows(|cx| {
                let x_td = norm(cx, s, names, x_td, p.norm);
                let x_td = means(cx, s, x_td);
                pool(cx, s, &p, x_td)
            })
        })
    }

    /// Input of the first block; this rank has some rows of the embedding.
    pub(crate) fn embed(&self, cx: &mut Ctx<'_>, p: &EmbedParams) -> Val {
        let (rows, project) = (self.own_rows(p.tokens), p.encoder.and_then(|encoder| encoder.project));
        let normed = |cx: &mut Ctx<'_>, x_te| {
            let x_te = norm(cx, &self.spec, ["embed.norm", "embed.norm.stats"], x_te, p.norm);
            project.map_or(x_te, |project| project.whole(cx, "embed.projected", x_te))
        };
        let how = (self.embed_scale, self.spec.virtual_tokens() > 0 || p.table.rows.is_some());
        let tables = [p.positions, p.encoder.and_then(|encoder| encoder.types)];
        let embed = |cx: &mut Ctx<'_>| cx.embed_parallel(p.tokens, tables, how, rows);
        if p.encoder.is_some() && self.has_whole_tables() {
            return cx.rows(|cx| {
                let x_td = embed(cx);
                normed(cx, x_td)
            });
        }
        let x_td = embed(cx);
        let x_td = p.table.forward(cx, x_td, self.embed_scale);
        let x_td = p.prompt.map_or(x_td, |prompt| prompt.forward(cx, x_td));
        if p.norm.is_some() { cx.rows(|cx| normed(cx, x_td)) } else { x_td }
    }
}
