//! Rates of causal attention. FLOPs count each pair of the mask once: 4 per pair, head and column forward, 3.5 times
//! that with backward. Peaked scores cost as much as a trained model's: see [`super::peaks`].

use anyhow::{Result, bail};
use fathom_model::{causal_pairs, mask};
use fathom_tensor::{Attention, AttentionBackward, Category, DType, Slice};

use super::bed::Bed;
use super::peaks::SPREAD;
use super::row::Row;
use super::watch::{RunTimes, measure};
use crate::args::bench::{Attention as Args, Pass, Scores};

/// An attention to measure.
#[derive(Clone, Copy)]
pub struct Case {
    /// Tokens of the stream.
    pub tokens: usize,
    /// Documents of equal length.
    pub docs: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Columns of one head.
    pub head_dim: usize,
    /// Whether backward is included.
    pub backward: bool,
    /// Spread of a row's scores.
    pub scores: Scores,
}

impl Case {
    /// Forward over one document, with as many key heads as query heads and flat scores.
    pub fn plain(tokens: usize, heads: usize, head_dim: usize) -> Case {
        Case { tokens, docs: 1, heads, kv_heads: heads, head_dim, backward: false, scores: Scores::Flat }
    }

    fn documents(&self) -> Vec<std::ops::Range<usize>> {
        let start = |doc: usize| doc * self.tokens / self.docs;
        (0..self.docs).map(|doc| start(doc)..start(doc + 1)).collect()
    }

    fn pairs(&self) -> u64 {
        self.documents().into_iter().map(|doc| causal_pairs(doc.len(), None)).sum()
    }

    /// FLOPs of the pass, counting pairs once.
    pub fn flops(&self) -> f64 {
        let forward = 4.0 * self.pairs() as f64 * (self.heads * self.head_dim) as f64;
        if self.backward { 3.5 * forward } else { forward }
    }
}

/// Runs the benchmark.
pub fn run(args: &Args) -> Result<()> {
    let bed = Bed::new(args.timing.threads, args.dtype)?;
    let (heads, kv_heads) = (args.heads, args.kv_heads.unwrap_or(args.heads));
    if heads == 0 || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        bail!("--heads {heads} --kv-heads {kv_heads}: query heads must share key heads evenly");
    }
    if let Some(dim) = args.head_dim.iter().find(|dim| !(1..=512).contains(*dim)) {
        bail!("--head-dim {dim}: must be from 1 to 512");
    }
    let passes = args.pass.map_or(vec![Pass::Forward, Pass::ForwardBackward], |pass| vec![pass]);
    for tokens in args.tokens.iter().copied() {
        if args.docs == 0 || args.docs > tokens {
            bail!("--docs {}: {tokens} tokens hold 1 to {tokens} documents", args.docs);
        }
        for head_dim in args.head_dim.iter().copied() {
            for (pass, scores) in
                passes.iter().flat_map(|pass| args.peaks.each().into_iter().map(move |s| (pass, s)))
            {
                let backward = *pass == Pass::ForwardBackward;
                let case = Case { tokens, docs: args.docs, heads, kv_heads, head_dim, backward, scores };
                row(args, &bed, &case, &attend(&bed, &case, args.timing.repeat));
            }
        }
    }
    Ok(())
}

fn row(args: &Args, bed: &Bed, case: &Case, timed: &RunTimes) {
    let row = Row::new("attention")
        .with("pass", if case.backward { "forward_backward" } else { "forward" })
        .with("dtype", args.dtype.name())
        .with("tokens", case.tokens)
        .with("heads", case.heads)
        .with("kv_heads", case.kv_heads)
        .with("head_dim", case.head_dim)
        .with("scores", case.scores.name())
        .with("threads", bed.threads())
        .figure("ms", timed.median_s * 1e3)
        .figure("gflops", case.flops() / timed.median_s * 1e-9)
        .figure("ms_best", timed.best_s * 1e3)
        .with("isa", bed.isa());
    let row = if case.docs > 1 { row.with("docs", case.docs) } else { row };
    row.print(timed.loaded);
}

/// Times of one pass.
pub fn attend(bed: &Bed, case: &Case, repeat: usize) -> RunTimes {
    let Case { tokens, heads, kv_heads, head_dim, .. } = *case;
    let (device, machine) = (&bed.device, &bed.device.machine);
    let (q_cols, kv_cols) = (heads * head_dim, kv_heads * head_dim);
    let docs = case.documents();
    let positions: Vec<i32> = docs.iter().flat_map(|doc| 0..doc.len() as i32).collect();
    let positions = device.from_i32(&positions, Category::Data);
    let slices: Vec<Slice> = docs.iter().map(|doc| Slice::causal(doc.clone(), doc.clone(), None)).collect();
    let mask = mask(device, &slices, slices.len(), [&positions, &positions], case.pairs());
    let q = bed.random(tokens, q_cols, 1);
    let [k, v] = [2, 3].map(|seed| bed.random(tokens, kv_cols, seed));
    let out = device.empty(tokens, q_cols, bed.dtype, Category::Data);
    let lse = device.empty(tokens, heads, DType::F32, Category::Data);
    // Operands of deviation one give scores of deviation one.
    let mut forward = Attention::plain([&q, &k, &v], [&out, &lse], &mask, head_dim);
    if case.scores == Scores::Peaked {
        forward.scale *= SPREAD;
    }
    let bytes = |backward| machine.profile().workspace(&forward.desc(backward));
    if !case.backward {
        let ws = bed.scratch(bytes(false));
        return measure(repeat, || machine.attention(&forward, &ws));
    }
    let ws = bed.scratch(bytes(false).max(bytes(true)));
    let dout = bed.random(tokens, q_cols, 4);
    let dq = device.empty(tokens, q_cols, bed.dtype, Category::Data);
    let [dk, dv] = [0, 1].map(|_| device.empty(tokens, kv_cols, bed.dtype, Category::Data));
    let backward = AttentionBackward { forward, dout: &dout, dq: &dq, dk: &dk, dv: &dv, accumulate: false };
    measure(repeat, || {
        machine.attention(&forward, &ws);
        machine.attention_backward(&backward, &ws);
    })
}
