//! Attention without a library: deterministic, for any mask. Heads of at most 128 columns in bf16 or f16 run on tensor
//! cores; others use one warp per row.

use fathom_tensor::{
    Attention, AttentionBackward, Buckets, DType, DistanceBias, DistanceTerms, Extent, Mask, OpDesc,
    SUM_CHUNK, SinksBackward, Tensor,
};

use super::SCRATCH_BYTES;
use super::launch::{Args, Launch, Scratch, expect, start_mut};
use super::sums::add_chunks;
use super::table::{Entry, attention as entries, flash_bf16_64, flash_bf16_128, flash_f16_64, flash_f16_128};

/// Largest number of columns per head.
const MOST_COLUMNS: usize = 512;
/// Warps per block, each with one row of a head.
const WARPS: usize = 4;

/// The structure of a mask: table, count on the device or null, cap, positions.
#[track_caller]
fn masking(args: Args, mask: &Mask) -> Args {
    let (count, cap) = match &mask.slices {
        Extent::Fixed(count) => (0, *count),
        Extent::UpTo { cap, count } => (count.address(), *cap),
    };
    let fits = mask.table.dtype() == DType::I64
        && mask.table.cols() == 6
        && cap <= mask.table.rows()
        && [&mask.pos_q, &mask.pos_k].iter().all(|pos| pos.dtype() == DType::I32 && pos.is_contiguous());
    assert!(fits && mask.table.is_contiguous(), "mask: {mask:?}");
    let (pos_q, pos_k) = (mask.pos_q.address(), mask.pos_k.address());
    args.structure(&[mask.table.address(), count, cap as u64, pos_q, pos_k])
}

/// Packs scale and cap into one word.
fn scoring(args: Args, op: &Attention<'_>) -> Args {
    args.structure(&[u64::from(op.scale.to_bits()) | u64::from(op.softcap.to_bits()) << 32])
}

/// Most buckets of distances, as in `attention.cu`; half of them may share distances on one side.
const MOST_BUCKETS: usize = 64;
const MOST_BORDERS: usize = 32;

/// The structure of biases by distance: their table, or null, and where buckets begin, or that it has slopes.
#[track_caller]
fn biasing(args: Args, op: &Attention<'_>) -> Args {
    let mut words = [0u64; 20];
    if let Some(DistanceBias { table, terms, .. }) = &op.bias {
        let fits = table.dtype() == DType::F32
            && table.shape() == [terms.rows(), op.q.cols() / op.head_dim]
            && op.softcap == 0.0;
        assert!(fits, "attention: biases {:?}", op.bias);
        words[..2].copy_from_slice(&[table.address(), table.stride() as u64]);
        match terms {
            DistanceTerms::Buckets(buckets) => bucketing(*buckets, &mut words[2..]),
            DistanceTerms::Slopes => words[3] = pair(0, 1),
        }
    }
    args.structure(&words)
}

fn pair(low: usize, high: usize) -> u64 {
    low as u64 | (high as u64) << 32
}

/// The words that say where buckets begin.
#[track_caller]
fn bucketing(buckets: Buckets, words: &mut [u64]) {
    let count = if buckets.two_sided { buckets.count / 2 } else { buckets.count };
    let exact = count / 2;
    let fits = buckets.count <= MOST_BUCKETS && (1..=MOST_BORDERS).contains(&(count - exact));
    assert!(fits, "attention: {buckets:?}");
    words[..2].copy_from_slice(&[pair(count, exact), pair(usize::from(buckets.two_sided), 0)]);
    // Keys before the query have buckets on either kind of sides.
    let mut borders = [u32::MAX as usize >> 1; MOST_BORDERS];
    for distance in (exact..=buckets.max_distance).rev() {
        for border in &mut borders[..buckets.of(-(distance as i64)) - exact] {
            *border = distance;
        }
    }
    for (word, two) in words[2..].iter_mut().zip(borders.chunks_exact(2)) {
        *word = pair(two[0], two[1]);
    }
}

/// Numbers of query heads and key heads.
#[track_caller]
fn heads(op: &Attention<'_>) -> [usize; 2] {
    let dim = op.head_dim;
    let fits = (1..=MOST_COLUMNS).contains(&dim)
        && op.q.cols().is_multiple_of(dim)
        && op.k.cols().is_multiple_of(dim)
        && op.k.cols() > 0
        && op.q.cols().is_multiple_of(op.k.cols())
        && op.v.shape() == op.k.shape()
        && op.mask.pos_q.cols() == op.q.rows()
        && op.mask.pos_k.cols() == op.k.rows();
    assert!(fits, "attention: {op:?}");
    let heads = [op.q.cols() / dim, op.k.cols() / dim];
    expect("attention", "lse", op.lse, [op.q.rows(), heads[0]]);
    expect("attention", "out", op.out, op.q.shape());
    heads
}

/// Rows per block on tensor cores.
const ROWS: usize = 64;

/// Entry points on tensor cores (forward, dq, dk with dv) if they support these operands: one type, narrow heads.
fn on_tensor_cores(op: &Attention<'_>, dout: Option<&Tensor>) -> Option<[Entry; 3]> {
    let (dtype, dim) = (op.q.dtype(), op.head_dim);
    let alike = [op.k, op.v].into_iter().chain(dout).all(|operand| operand.dtype() == dtype);
    if !alike || dim > 128 || !dim.is_multiple_of(8) || op.bias.is_some() {
        return None;
    }
    match (dtype, dim <= 64) {
        (DType::Bf16, true) => Some([
            flash_bf16_64::flash_bf16_64,
            flash_bf16_64::flash_dq_bf16_64,
            flash_bf16_64::flash_dkv_bf16_64,
        ]),
        (DType::Bf16, false) => Some([
            flash_bf16_128::flash_bf16_128,
            flash_bf16_128::flash_dq_bf16_128,
            flash_bf16_128::flash_dkv_bf16_128,
        ]),
        (DType::F16, true) => {
            Some([flash_f16_64::flash_f16_64, flash_f16_64::flash_dq_f16_64, flash_f16_64::flash_dkv_f16_64])
        }
        (DType::F16, false) => Some([
            flash_f16_128::flash_f16_128,
            flash_f16_128::flash_dq_f16_128,
            flash_f16_128::flash_dkv_f16_128,
        ]),
        _ => None,
    }
}

/// Attention.
#[track_caller]
pub fn attention(op: &Attention<'_>) -> Launch {
    let ([heads, kv_heads], rows, dim) = (heads(op), op.q.rows(), op.head_dim);
    let args = Args::new().mat(op.q).mat(op.k).mat(op.v).out(op.out).out(op.lse);
    let args = scoring(masking(args, op.mask), op).plain_if(op.sinks, DType::F32);
    let args = args.long(rows).int(heads).int(kv_heads).int(dim).flag(op.resume);
    if let Some([entry, ..]) = on_tensor_cores(op, None) {
        return Launch::new(entry, rows.div_ceil(ROWS) * heads, args);
    }
    let blocks = (rows * heads).div_ceil(WARPS);
    Launch::on(entries::attention, [blocks, 1], WARPS * dim * 4, biasing(args, op))
}

/// Largest number of columns per head in [`attention_join`]: a warp has one row.
const MOST_JOINED: usize = 256;

/// Merges results over some keys, `part` [t, heads x head_dim] with its logarithms [t, heads], or [heads, t] if
/// `by_head`, into `out` and `lse` [t, heads] of other keys; with `fresh` there are no others yet.
///
/// # Panics
/// If shapes differ or the head size is not a multiple of eight columns.
#[track_caller]
pub fn attention_join(
    (part, part_lse, by_head): (&Tensor, &Tensor, bool),
    [out, lse]: [&Tensor; 2],
    head_dim: usize,
    fresh: bool,
) -> Launch {
    let (rows, heads) = (out.rows(), out.cols() / head_dim);
    let fits = head_dim.is_multiple_of(8) && (8..=MOST_JOINED).contains(&head_dim);
    assert!(fits && heads * head_dim == out.cols(), "attention_join: {out:?}, heads of {head_dim} columns");
    expect("attention_join", "part", part, out.shape());
    expect("attention_join", "lse", lse, [rows, heads]);
    expect("attention_join", "part_lse", part_lse, if by_head { [heads, rows] } else { [rows, heads] });
    assert!(part_lse.dtype() == DType::F32, "attention_join: part_lse is {part_lse:?}");
    let steps = if by_head { [1, part_lse.stride()] } else { [part_lse.stride(), 1] };
    let team = (head_dim / 8).next_power_of_two();
    let args = Args::new().mat(part).address(part_lse.address()).long(steps[0]).long(steps[1]);
    let args = args.out(out).out(lse).long(rows).int(heads).int(head_dim).int(team).flag(fresh);
    Launch::new(entries::attention_join, (rows * heads).div_ceil(256 / team), args)
}

/// Bytes of workspace: for the backward pass, one f32 for each query row of each head.
pub fn attention_scratch_bytes(op: &OpDesc) -> u64 {
    match *op {
        OpDesc::Attention(of) if of.backward => 4 * (of.q_tokens * of.heads) as u64,
        _ => 0,
    }
}

/// Gradient of attention, and of biases in ascending chunks of [`SUM_CHUNK`] rows.
#[track_caller]
pub fn attention_backward(op: &AttentionBackward<'_>, ws: &Tensor, scratch: Scratch) -> Vec<Launch> {
    let forward = &op.forward;
    let ([heads, kv_heads], dim) = (heads(forward), forward.head_dim);
    let (rows, keys) = (forward.q.rows(), forward.k.rows());
    for (what, tensor, like) in [
        ("dout", op.dout, forward.q),
        ("dq", op.dq, forward.q),
        ("dk", op.dk, forward.k),
        ("dv", op.dv, forward.v),
    ] {
        expect("attention_backward", what, tensor, like.shape());
    }
    let wanted = attention_scratch_bytes(&forward.desc(true));
    assert!(ws.bytes() >= wanted, "attention_backward: workspace {ws:?} of {wanted} bytes");
    let delta = start_mut(ws);
    let args = Args::new().mat(forward.out).mat(op.dout).address(delta).long(rows).int(heads).int(dim);
    let mut launches = vec![Launch::new(entries::attention_delta, (rows * heads).div_ceil(8), args)];
    let fast = on_tensor_cores(forward, Some(op.dout));
    let shared = WARPS * 2 * dim * 4;
    let pass = |plain: Entry, at: usize, rows: usize, heads: usize, args: Args| match fast {
        Some(entries) => Launch::new(entries[at], rows.div_ceil(ROWS) * heads, args),
        None => Launch::on(plain, [(rows * heads).div_ceil(WARPS), 1], shared, biasing(args, forward)),
    };
    let inputs = || {
        let args = Args::new().mat(forward.q).mat(forward.k).mat(forward.v).mat(op.dout);
        args.mat(forward.lse).address(delta)
    };
    let args = scoring(masking(inputs().out(op.dq), forward.mask), forward).long(rows);
    let args = args.int(heads).int(kv_heads).int(dim).flag(op.accumulate);
    launches.push(pass(entries::attention_dq, 1, rows, heads, args));
    let args = scoring(masking(inputs().out(op.dk).out(op.dv), forward.mask), forward).long(keys);
    let args = args.int(heads).int(kv_heads).int(dim);
    launches.push(pass(entries::attention_dkv, 2, keys, kv_heads, args));
    let Some((gradient, buckets)) = forward.bias.and_then(|bias| Some((bias.gradient?, bias.terms.rows())))
    else {
        return launches;
    };
    expect("attention_backward", "the gradient of biases", gradient, [buckets, heads]);
    assert!(gradient.is_contiguous(), "attention_backward: {gradient:?} has gaps");
    let (chunks, width) = (rows.div_ceil(SUM_CHUNK), buckets * heads);
    let most = SCRATCH_BYTES as usize / 4 / width;
    for first in (0..chunks).step_by(most) {
        let count = most.min(chunks - first);
        let args =
            scoring(masking(inputs().address(scratch.0), forward.mask), forward).long(first * SUM_CHUNK);
        let args = args.long(rows).int(heads).int(kv_heads).int(dim).int(buckets);
        let args = biasing(args, forward);
        launches.push(Launch::on(entries::bias_chunks, [count * heads, 1], shared, args));
        launches.push(add_chunks(start_mut(gradient), scratch.0, width, count, width));
    }
    launches
}

/// The gradient of sinks: one block per chunk of [`SUM_CHUNK`] rows, whose sums are added in order.
#[track_caller]
pub fn sinks_backward(op: &SinksBackward<'_>, scratch: Scratch) -> Vec<Launch> {
    let [rows, heads] = op.lse.shape();
    expect("sinks_backward", "dout", op.dout, op.out.shape());
    for (what, tensor) in [("sinks", op.sinks), ("dsinks", op.dsinks)] {
        expect("sinks_backward", what, tensor, [1, heads]);
        assert!(tensor.dtype() == DType::F32, "sinks_backward: {what} is {tensor:?}");
    }
    let (chunks, most) = (rows.div_ceil(SUM_CHUNK), SCRATCH_BYTES as usize / 4 / heads);
    let round = |first: usize| {
        let count = most.min(chunks - first);
        let args = Args::new().mat(op.out).mat(op.dout).mat(op.lse).plain(op.sinks, DType::F32);
        let args = args.address(scratch.0).long(first * SUM_CHUNK).long(rows).int(heads);
        let args = args.int(op.out.cols() / heads);
        let sums = Launch::new(entries::sink_chunks, count * heads, args);
        [sums, add_chunks(start_mut(op.dsinks), scratch.0, heads, count, heads)]
    };
    (0..chunks).step_by(most).flat_map(round).collect()
}
