//! Rates of products by expert, including the work around them: sorting slots and, if a library multiplies, gathering
//! and scattering rows.

use fathom_tensor::{Category, DType, GroupedMatMul, GroupedWeight, Machine};

use super::Lines;
use super::rates::Bench;

const TOKENS: usize = 8192;
const SLOTS: usize = 8;
const EXPERTS: usize = 64;
const INNER: usize = 2048;
const OUT: usize = 1408;

/// Forward pass and weight gradient, with evenly spread slots.
pub fn run(lines: &mut Lines, bench: &Bench) -> fathom_cuda::Result<()> {
    let of: Vec<i32> = (0..TOKENS * SLOTS).map(|at| (at * 7919 % EXPERTS) as i32).collect();
    let index = bench.device.from_i32(&of, Category::Data).reshape(TOKENS, SLOTS);
    let (a, weights) = (bench.numbers(TOKENS, INNER), bench.numbers(EXPERTS * OUT, INNER));
    let c = bench.empty(TOKENS, SLOTS * OUT, DType::Bf16);
    let (experts, index) = (EXPERTS, &index);
    let op = GroupedMatMul { a: &a, weights: &weights, experts, trans: true, index, c: &c };
    let ws = bench.scratch(&op.desc());
    said(lines, bench, "forward", || bench.cuda.grouped_matmul(&op, &ws))?;
    let (dy, gradient) = (bench.numbers(TOKENS, SLOTS * OUT), bench.empty(EXPERTS * OUT, INNER, DType::F32));
    bench.cuda.zero(&gradient);
    let op = GroupedWeight { a: &dy, b: &a, index, experts, c: &gradient };
    let ws = bench.scratch(&op.desc());
    said(lines, bench, "the weights' gradient", || bench.cuda.grouped_weight(&op, &ws))
}

fn said(lines: &mut Lines, bench: &Bench, what: &str, call: impl FnMut()) -> fathom_cuda::Result<()> {
    let library = "cuBLASLt's groups";
    let before = bench.cuda.grouped_calls();
    let seconds = bench.seconds(call)?;
    let by = bench.cuda.grouped_calls().since(before, library);
    let rate = 2.0 * (TOKENS * SLOTS * INNER) as f64 * OUT as f64 / seconds / 1e12;
    let name =
        format!("products by expert, {TOKENS} tokens to {SLOTS} of {EXPERTS}, {INNER} x {OUT}, {what}");
    lines.say(name, by == library || !bench.cuda.has_groups(), format!("{rate:.0} TFLOP/s by {by}"));
    Ok(())
}
