//! Mamba-2's scan and gated DeltaNet: states row by row, forward and backward, and sums over the rows of chunks.

use fathom_tensor::gpu::ScanScratch;
use fathom_tensor::{
    DType, Delta, DeltaAdvance, DeltaBackward, DeltaBegins, DeltaEnds, DeltaOperands, DocumentRun,
    DocumentRuns, OpDesc, RunStates, SCAN_CHUNK, SCAN_SPAN, Ssd, SsdBackward, SsdBegins, SsdEnds,
    SsdOperands, Tensor, state_cols,
};

use super::Entry;
use super::launch::{Args, Launch, Scratch, code, expect, start_mut};
use super::sums::{COLUMNS, add_chunks, rounds};
use super::table::{scan, sums};

/// Rows of q and k in shared memory, as in `scan.cu`.
const TILE: usize = 8;
/// Most columns of q and k: eight for each thread of a warp.
const MOST_COLUMNS: usize = 256;
/// Documents of a launch.
const RUNS: usize = 256;

/// Kernels of one of the two.
struct Entries {
    forward: Entry,
    reverse: Entry,
    gradients: Entry,
    keys: Entry,
    pass: Entry,
}

const SSD: Entries = Entries {
    forward: scan::ssd_forward,
    reverse: scan::ssd_reverse,
    gradients: scan::ssd_gradients,
    keys: scan::ssd_keys,
    pass: scan::ssd_pass,
};

const DELTA: Entries = Entries {
    forward: scan::delta_forward,
    reverse: scan::delta_reverse,
    gradients: scan::delta_gradients,
    keys: scan::delta_keys,
    pass: scan::delta_pass,
};

/// Operands of either, as kernels read them.
struct Scan<'a> {
    entries: Entries,
    u: &'a Tensor,
    steps: &'a Tensor,
    betas: Option<&'a Tensor>,
    /// a_log, bias of the steps, and D of Mamba-2: f32 [1, heads].
    weights: Vec<&'a Tensor>,
    documents: &'a DocumentRuns,
    /// Columns of u where q, k and x begin.
    starts: [usize; 3],
    /// Groups of heads that share q and k, heads, and columns of q and of x.
    sizes: [usize; 4],
    limit: [f32; 2],
    eps: f32,
    beta: f32,
    backward: OpDesc,
}

impl<'a> Scan<'a> {
    #[track_caller]
    fn ssd(of: &SsdOperands<'a>) -> Scan<'a> {
        let (heads, width) = (of.heads(), of.width());
        let (inner, shared) = (heads * width, of.groups * of.state);
        Scan {
            entries: SSD,
            u: of.u,
            steps: of.dt,
            betas: None,
            weights: vec![of.a_log, of.dt_bias, of.d],
            documents: of.documents,
            starts: [inner + shared, inner, 0],
            sizes: [of.groups, heads, of.state, width],
            limit: of.limit,
            eps: 0.0,
            beta: 0.0,
            backward: of.desc(true),
        }
        .checked("ssd")
    }

    #[track_caller]
    fn delta(of: &DeltaOperands<'a>) -> Scan<'a> {
        let shared = of.key_heads * of.key;
        Scan {
            entries: DELTA,
            u: of.u,
            steps: of.a,
            betas: Some(of.b),
            weights: vec![of.a_log, of.dt_bias],
            documents: of.documents,
            starts: [0, shared, 2 * shared],
            sizes: [of.key_heads, of.heads(), of.key, of.value()],
            limit: [0.0, f32::INFINITY],
            eps: of.eps,
            beta: of.beta,
            backward: of.desc(false, true),
        }
        .checked("delta")
    }

    #[track_caller]
    fn checked(self, op: &str) -> Scan<'a> {
        let ([groups, heads, n, p], rows) = (self.sizes, self.u.rows());
        assert!(heads.is_multiple_of(groups), "{op}: {groups} groups of {heads} heads");
        assert!(
            n <= MOST_COLUMNS,
            "{op}: {n} columns of a state's rows, at most {MOST_COLUMNS} are possible"
        );
        expect(op, "u", self.u, [rows, 2 * groups * n + heads * p]);
        for steps in [Some(self.steps), self.betas].into_iter().flatten() {
            expect(op, "steps", steps, [rows, heads]);
        }
        self.weights.iter().for_each(|weight| expect(op, "a weight", weight, [1, heads]));
        let end = self.documents.runs.last().map_or(0, |run| run.rows.end);
        assert!(end == rows, "{op}: documents of {end} rows, u {:?}", self.u);
        self
    }

    /// The first argument of all kernels.
    #[track_caller]
    fn args(&self) -> Args {
        let mat = |x: &Tensor| [x.address(), x.stride() as u64, code(x.dtype())];
        let float = |x: &&Tensor| {
            assert!(x.dtype() == DType::F32, "a scan's weights are f32, not {x:?}");
            x.address()
        };
        let halves = |low: f32, high: f32| u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32;
        let weights = self.weights.iter().map(float).chain([0]).take(3);
        let words = [mat(self.u), mat(self.steps), self.betas.map_or([0; 3], mat)].into_iter().flatten();
        let numbers = self.starts.into_iter().chain(self.sizes).map(|number| number as u64);
        let words: Vec<u64> = words
            .chain(weights)
            .chain([self.documents.table.address()])
            .chain(numbers)
            .chain([halves(self.limit[0], self.limit[1]), halves(self.eps, self.beta)])
            .collect();
        Args::new().structure(&words)
    }

    /// States at borders of runs, as kernels read them.
    #[track_caller]
    fn border(&self, states: Option<RunStates<'_>>) -> [u64; 3] {
        let ([_, heads, n, p], Some(RunStates { of, states })) = (self.sizes, states) else { return [0; 3] };
        expect("a scan", "states of runs", states, [states.rows(), heads * n * p]);
        assert!(states.dtype() == DType::F32, "a scan: states of runs are f32, not {states:?}");
        [of.table.address(), start_mut(states), states.stride() as u64]
    }

    /// The states after runs, with the products of their decays or their matrices, or with `dy` the gradients of those before them.
    #[track_caller]
    fn pass(&self, dy: Option<&Tensor>, states: RunStates<'_>, factors: Option<&Tensor>) -> Vec<Launch> {
        let [_, heads, n, p] = self.sizes;
        let corrects = self.betas.is_some();
        if let Some(factors) = factors {
            let of_head = if corrects { n * n } else { 1 };
            expect("a scan", "factors of runs", factors, [states.states.rows(), heads * of_head]);
            assert!(factors.dtype() == DType::F32, "a scan: factors of runs are f32, not {factors:?}");
        }
        let columns = if corrects && dy.is_none() { p + n } else { p };
        let (factors, stride) = factors.map_or((0, 0), |factors| (start_mut(factors), factors.stride()));
        let launch = |run: usize| {
            let args = match dy {
                Some(dy) => self.args().mat(dy),
                None => self.args().raw_mat(0, 0, 0),
            };
            let args = args.structure(&self.border(Some(states))).address(factors).long(stride).int(run);
            let runs = RUNS.min(self.documents.runs.len() - run);
            self.by_rows(self.entries.pass, (columns, runs), args)
        };
        (0..self.documents.runs.len()).step_by(RUNS).map(launch).collect()
    }

    /// Blocks of the kernels that go row by row, with their shared memory.
    #[track_caller]
    fn by_rows(&self, entry: Entry, (columns, parts): (usize, usize), args: Args) -> Launch {
        let [_, heads, n, _] = self.sizes;
        Launch::on(entry, [heads * columns.div_ceil(8), parts], 8 * TILE * n, args)
    }

    #[track_caller]
    fn forward(
        &self,
        states: &[Tensor],
        before: Option<RunStates<'_>>,
        out: &Tensor,
        kept: &Tensor,
    ) -> Vec<Launch> {
        let ([_, heads, n, p], runs) = (self.sizes, &self.documents.runs);
        expect("a scan", "the result", out, [self.u.rows(), heads * p]);
        expect("a scan", "kept", kept, [self.u.rows(), state_cols(heads * n * p)]);
        let there: Vec<(usize, &DocumentRun)> =
            runs.iter().enumerate().filter(|(_, run)| !run.rows.is_empty()).collect();
        let launch = |state: u64, first: &(usize, &DocumentRun), count: usize| {
            let kept = if state == 0 { start_mut(kept) } else { 0 };
            let args = self.args().out(out).address(state).structure(&self.border(before));
            let args = args.address(kept).flag(state == 0).address(0).address(0);
            let args = args.int(first.0).long(first.1.rows.start).long(1 << 40);
            self.by_rows(self.entries.forward, (p, count), args)
        };
        if states.is_empty() {
            let begin = runs.iter().all(|run| run.offset == 0);
            assert!(begin, "a scan: a document that begins on another rank needs its state: {runs:?}");
            return there.chunks(RUNS).map(|part| launch(0, &part[0], part.len())).collect();
        }
        assert!(states.len() == runs.len(), "a scan: {} states of {} runs", states.len(), runs.len());
        let of_run = |run: &(usize, &DocumentRun)| {
            expect("a scan", "a state", &states[run.0], [heads, n * p]);
            launch(start_mut(&states[run.0]), run, 1)
        };
        there.iter().map(of_run).collect()
    }

    #[track_caller]
    fn backward(&self, op: &Gradients<'_>, ws: &Tensor, scratch: Scratch) -> Vec<Launch> {
        let ([groups, heads, n, p], rows) = (self.sizes, self.u.rows());
        expect("a scan", "dy", op.dy, [rows, heads * p]);
        op.du.iter().for_each(|du| expect("a scan", "du", du, self.u.shape()));
        for steps in [op.dsteps, op.dbetas].into_iter().flatten() {
            expect("a scan", "the gradient of steps", steps, [rows, heads]);
        }
        let Some(parts) = ScanScratch::of(&self.backward) else {
            panic!("no backward pass: {:?}", self.backward)
        };
        assert!(ws.bytes() >= parts.bytes, "a scan: {} bytes of scratch, {} wanted", ws.bytes(), parts.bytes);
        let at = |offset: u64| start_mut(ws) + offset;
        let half = 4 * (heads * n * p) as u64;
        let (mut launches, mut turn) = (Vec::new(), 0);
        for Round { run, runs, first, last, spans, chunks } in
            round_list(&self.documents.runs, parts.places).into_iter().rev()
        {
            let rest = if self.betas.is_some() { at(parts.rest) } else { 0 };
            let args = self.args().raw_mat(0, 0, 0).address(0).structure(&self.border(op.borders[0]));
            let args = args.plain(op.kept, DType::F32).flag(false);
            let args = args.address(at(parts.entering)).address(rest).int(run).long(first).long(SCAN_SPAN);
            launches.push(self.by_rows(self.entries.forward, (p, spans), args));
            let [after, before] = [turn, 1 - turn].map(|half_of| at(parts.carried) + half_of * half);
            turn = 1 - turn;
            let args =
                self.args().mat(op.dy).address(at(parts.leaving)).address(at(parts.added)).address(after);
            let args = args.address(before).structure(&self.border(op.borders[1]));
            let args = args.int(run).long(first).long(last);
            launches.push(self.by_rows(self.entries.reverse, (p, runs), args));
            let args = self.args().mat(op.dy).address(at(parts.entering)).address(at(parts.leaving));
            let args = args.address(rest).address(at(parts.added)).out_if(op.du).out_if(op.dsteps);
            let args =
                args.out_if(op.dbetas).address(at(parts.keys)).address(at(parts.terms)).int(run).long(first);
            launches.push(Launch::new(self.entries.gradients, chunks * heads, args));
            if let Some(du) = op.du {
                let args = self.args().address(at(parts.keys)).out(du).long(first).long(last - first);
                launches.push(Launch::new(
                    self.entries.keys,
                    ((last - first) * groups * 2).div_ceil(8),
                    args,
                ));
            }
        }
        launches.extend(self.sums(op, at(parts.terms), scratch));
        launches
    }

    /// Sums of the terms of weights' gradients, in ascending chunks of 128 rows.
    #[track_caller]
    fn sums(&self, op: &Gradients<'_>, terms: u64, scratch: Scratch) -> Vec<Launch> {
        let ([_, heads, ..], rows) = (self.sizes, self.u.rows());
        let width = self.weights.len() * heads;
        let wanted: Vec<(u64, u64)> = op
            .dweights
            .iter()
            .enumerate()
            .filter_map(|(index, to)| Some((index, (*to)?)))
            .map(|(index, to)| {
                expect("a scan", "the gradient of a weight", to, [1, heads]);
                assert!(to.dtype() == DType::F32, "a scan: weight gradients are f32, not {to:?}");
                (start_mut(to), scratch.0 + 4 * (index * heads) as u64)
            })
            .collect();
        let round = |(first, chunks): (usize, usize)| {
            let args = Args::new().raw_mat(terms, width, code(DType::F32)).address(scratch.0).long(first);
            let part = [width.div_ceil(COLUMNS), chunks];
            let part = Launch::on(sums::column_chunks, part, 0, args.long(rows).long(width));
            let add = wanted.iter().map(move |(to, from)| add_chunks(*to, *from, heads, chunks, width));
            std::iter::once(part).chain(add)
        };
        rounds(rows, width).filter(|_| !wanted.is_empty()).flat_map(round).collect()
    }
}

/// The gradients of either that are wanted.
struct Gradients<'a> {
    /// States before runs, and gradients of those after them.
    borders: [Option<RunStates<'a>>; 2],
    kept: &'a Tensor,
    dy: &'a Tensor,
    du: Option<&'a Tensor>,
    dsteps: Option<&'a Tensor>,
    dbetas: Option<&'a Tensor>,
    dweights: &'a [Option<&'a Tensor>],
}

/// Rows of the stream that a backward pass takes at a time: whole spans of documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Round {
    /// The first run, and the number of runs.
    run: usize,
    runs: usize,
    first: usize,
    last: usize,
    spans: usize,
    chunks: usize,
}

/// The rounds of a stream, whose chunks fit into some places: one for each [`SCAN_CHUNK`] rows, and one more for each run.
fn round_list(runs: &[DocumentRun], places: usize) -> Vec<Round> {
    let mut all: Vec<Round> = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        for from in run.rows.clone().step_by(SCAN_SPAN) {
            let to = run.rows.end.min(from + SCAN_SPAN);
            let chunks = (to - from).div_ceil(SCAN_CHUNK);
            let fits = |round: &&mut Round| (to - 1 - round.first) / SCAN_CHUNK + index - round.run < places;
            match all.last_mut().filter(fits) {
                Some(round) => {
                    (round.runs, round.last) = (index - round.run + 1, to);
                    (round.spans, round.chunks) = (round.spans + 1, round.chunks + chunks);
                }
                None => all.push(Round { run: index, runs: 1, first: from, last: to, spans: 1, chunks }),
            }
        }
    }
    all
}

/// Mamba-2's scan.
#[track_caller]
pub fn ssd(op: &Ssd<'_>) -> Vec<Launch> {
    Scan::ssd(&op.of).forward(op.states, op.before, op.y, op.kept)
}

/// Its gradients.
#[track_caller]
pub fn ssd_backward(op: &SsdBackward<'_>, ws: &Tensor, scratch: Scratch) -> Vec<Launch> {
    let &SsdBackward { ref of, before, after, kept, dy, du, ddt, ref dweights } = op;
    let of_op = Gradients { borders: [before, after], kept, dy, du, dsteps: ddt, dbetas: None, dweights };
    Scan::ssd(of).backward(&of_op, ws, scratch)
}

/// The maps of runs: the state that each makes of zero, and its decay.
#[track_caller]
pub fn ssd_ends(op: &SsdEnds<'_>) -> Vec<Launch> {
    Scan::ssd(&op.of).pass(None, op.ends, Some(op.decays))
}

/// The gradients of the states before runs, from the runs' own results.
#[track_caller]
pub fn ssd_begins(op: &SsdBegins<'_>) -> Vec<Launch> {
    Scan::ssd(&op.of).pass(Some(op.dy), op.begins, None)
}

/// `state = decays state + added`.
#[track_caller]
pub fn ssd_advance(state: &Tensor, decays: &Tensor, added: &Tensor) -> Launch {
    let [heads, count] = state.shape();
    expect("ssd_advance", "decays", decays, [1, heads]);
    expect("ssd_advance", "what is added", added, state.shape());
    let args = Args::new().address(start_mut(state)).plain(decays, DType::F32).plain(added, DType::F32);
    Launch::new(scan::ssd_advance, state.len().div_ceil(256), args.long(heads).long(count))
}

/// Gated DeltaNet.
#[track_caller]
pub fn delta(op: &Delta<'_>) -> Vec<Launch> {
    Scan::delta(&op.of).forward(op.states, op.before, op.out, op.kept)
}

/// Its gradients.
#[track_caller]
pub fn delta_backward(op: &DeltaBackward<'_>, ws: &Tensor, scratch: Scratch) -> Vec<Launch> {
    let &DeltaBackward { ref of, before, after, kept, dout: dy, du, da, db, ref dweights } = op;
    let of_op = Gradients { borders: [before, after], kept, dy, du, dsteps: da, dbetas: db, dweights };
    Scan::delta(of).backward(&of_op, ws, scratch)
}

/// The maps of runs: the state that each makes of zero, and its matrix.
#[track_caller]
pub fn delta_ends(op: &DeltaEnds<'_>) -> Vec<Launch> {
    Scan::delta(&op.of).pass(None, op.ends, Some(op.matrices))
}

/// The gradients of the states before runs, from the runs' own results.
#[track_caller]
pub fn delta_begins(op: &DeltaBegins<'_>) -> Vec<Launch> {
    Scan::delta(&op.of).pass(Some(op.dout), op.begins, None)
}

/// `after = M before + added`.
#[track_caller]
pub fn delta_advance(op: &DeltaAdvance<'_>) -> Launch {
    let ([heads, cols], key) = (op.before.shape(), op.matrices.cols().isqrt());
    expect("delta_advance", "matrices", op.matrices, [heads, key * key]);
    for (what, tensor) in [("what is added", op.added), ("states after runs", op.after)] {
        expect("delta_advance", what, tensor, op.before.shape());
    }
    let args = Args::new().plain(op.matrices, DType::F32).flag(op.transposed).plain(op.before, DType::F32);
    let args = args.plain(op.added, DType::F32).address(start_mut(op.after));
    let args = args.long(heads).long(key).long(cols / key);
    Launch::new(scan::delta_advance, op.before.len().div_ceil(256), args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_have_whole_spans_and_fit_their_places() {
        let lengths = [5, 2300, 0, 1, 128, 9000, 40, 40];
        let mut end = 0;
        let run = |(document, length): (usize, &usize)| {
            end += length;
            DocumentRun { rows: end - length..end, document, offset: 0 }
        };
        let runs: Vec<DocumentRun> = lengths.iter().enumerate().map(run).collect();
        for places in [16, 17, 40, 1000] {
            let rounds = round_list(&runs, places);
            assert_eq!(rounds[0].first, 0);
            assert_eq!(rounds.last().unwrap().last, 11514);
            assert!(rounds.windows(2).all(|pair| pair[0].last == pair[1].first));
            assert_eq!(rounds.iter().map(|round| round.chunks).sum::<usize>(), 1 + 18 + 1 + 1 + 71 + 1 + 1);
            for Round { run, runs: count, first, last, .. } in rounds {
                assert!((last - 1 - first) / SCAN_CHUNK + count - 1 < places);
                assert!((first - runs[run].rows.start).is_multiple_of(SCAN_SPAN));
            }
        }
    }
}
