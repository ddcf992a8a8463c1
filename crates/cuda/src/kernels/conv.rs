//! Causal convolutions over documents.

use fathom_tensor::{Conv, ConvBackward, ConvOperands, DType, Tensor};

use super::launch::{Args, Launch, Scratch, expect, start_mut};
use super::sums::{add_chunks, rounds};
use super::table::conv as entries;

/// Most rows that an output depends on.
const MOST_TAPS: usize = 8;

#[track_caller]
fn check(op: &str, of: &ConvOperands<'_>) {
    let [cols, taps] = of.weight.shape();
    expect(op, "u", of.u, [of.u.rows(), cols]);
    of.bias.iter().for_each(|bias| expect(op, "bias", bias, [1, cols]));
    assert!((1..=MOST_TAPS).contains(&taps), "{op}: {taps} taps, at most {MOST_TAPS} are possible");
    let end = of.documents.runs.last().map_or(0, |run| run.rows.end);
    assert!(end == of.u.rows(), "{op}: documents of {end} rows, u {:?}", of.u);
}

fn operands(of: &ConvOperands<'_>) -> Args {
    Args::new().mat(of.u).mat(of.weight).mat_if(of.bias)
}

/// The convolution, and the states.
#[track_caller]
pub fn conv(op: &Conv<'_>) -> Vec<Launch> {
    let (of, [cols, taps]) = (&op.of, op.of.weight.shape());
    check("conv", of);
    expect("conv", "out", op.out, of.u.shape());
    let runs = &of.documents.runs;
    let launch = |state: u64, first: usize, rows: usize| {
        let args = operands(of).out(op.out).plain(&of.documents.table, DType::I32).address(state);
        let args = args.long(first).long(rows).long(cols).int(runs.len()).int(taps).flag(of.silu);
        Launch::new(entries::conv, (rows * cols).div_ceil(256), args)
    };
    if op.states.is_empty() {
        return vec![launch(0, 0, of.u.rows())];
    }
    assert!(op.states.len() == runs.len(), "conv: {} states of {} runs", op.states.len(), runs.len());
    let of_run = |(run, state): (&fathom_tensor::DocumentRun, &Tensor)| {
        expect("conv", "a state", state, [taps - 1, cols]);
        let (first, rows) = (run.rows.start, run.rows.len());
        let args =
            Args::new().mat(of.u).plain_out(state, DType::F32).long(first).long(rows).long(cols).int(taps);
        let next = Launch::new(entries::conv_state, if rows > 0 { cols.div_ceil(256) } else { 0 }, args);
        [launch(start_mut(state), first, rows), next]
    };
    runs.iter().zip(op.states).flat_map(of_run).collect()
}

/// The gradients, those of weights in ascending chunks of 128 rows.
#[track_caller]
pub fn conv_backward(op: &ConvBackward<'_>, scratch: Scratch) -> Vec<Launch> {
    let (of, [cols, taps], rows) = (&op.of, op.of.weight.shape(), op.of.u.rows());
    check("conv_backward", of);
    expect("conv_backward", "dy", op.dy, of.u.shape());
    let (table, runs) = (&of.documents.table, of.documents.runs.len());
    let mut launches = Vec::new();
    if let Some(du) = op.du {
        expect("conv_backward", "du", du, of.u.shape());
        let args = operands(of).mat(op.dy).out(du).plain(table, DType::I32).long(rows).long(cols).int(runs);
        let args = args.int(taps).flag(of.silu);
        launches.push(Launch::new(entries::conv_backward, (rows * cols).div_ceil(256), args));
    }
    let sums: Vec<(u64, usize, usize)> = [(op.dweight, [cols, taps], 0), (op.dbias, [1, cols], cols * taps)]
        .into_iter()
        .filter_map(|(to, shape, first)| Some((to?, shape, first)))
        .map(|(to, shape, first)| {
            expect("conv_backward", "a sum", to, shape);
            let plain = to.dtype() == DType::F32 && to.is_contiguous();
            assert!(plain, "conv_backward: {to:?} is no plain f32");
            (start_mut(to), first, shape[0] * shape[1])
        })
        .collect();
    let width = cols * (taps + 1);
    for (first, chunks) in rounds(rows, width).filter(|_| !sums.is_empty()) {
        let args = operands(of).mat(op.dy).plain(table, DType::I32).address(scratch.0).long(first).long(rows);
        let args = args.long(cols).int(runs).int(taps).flag(of.silu);
        launches.push(Launch::on(entries::conv_chunks, [cols.div_ceil(256), chunks], 0, args));
        launches.extend(
            sums.iter().map(|(to, from, count)| {
                add_chunks(*to, scratch.0 + 4 * *from as u64, *count, chunks, width)
            }),
        );
    }
    launches
}
