//! Grids of operations far too large to run: ten million tokens on a machine without data.

use std::sync::Arc;

use fathom_cuda::kernels::{self, Launch, Scratch};
use fathom_tensor::{
    Attention, Category, CrossEntropy, DType, Device, Extent, Mask, MatMul, Meta, Norm, NormKind, Profile,
    Rope, Tensor,
};

const TOKENS: usize = 10_000_000;

fn device() -> Device {
    Device::new(Arc::new(Meta::new(Profile::portable(1))), 1 << 50)
}

fn blocks(launch: Launch) -> u64 {
    launch.grid.blocks.iter().map(|n| u64::from(*n)).product()
}

#[test]
fn ten_million_tokens_fit_in_grids() {
    let device = device();
    let of = |rows, cols, dtype| -> Tensor { device.empty(rows, cols, dtype, Category::Data) };
    let x = of(TOKENS, 8192, DType::Bf16);
    let heads = of(TOKENS, 1024, DType::Bf16);
    assert_eq!(blocks(kernels::add(&x, &x, &x)), (TOKENS * 8192).div_ceil(2048) as u64);
    assert_eq!(blocks(kernels::zero(&x)), (TOKENS * 8192 * 2).div_ceil(2048) as u64);
    let kind = NormKind { centred: false, plus_one: false, round_first: false, eps: 1e-6 };
    let norm = |weight: &Tensor, stats: &Tensor| {
        blocks(kernels::norm(&Norm { kind, x: &x, weight, bias: None, out: &x, stats }))
    };
    assert_eq!(norm(&of(1, 8192, DType::F32), &of(TOKENS, 1, DType::F32)), TOKENS as u64);
    assert_eq!(norm(&of(1, 128, DType::F32), &of(TOKENS, 64, DType::F32)), (TOKENS * 64 / 8) as u64);
    let table = of(TOKENS, 128, DType::F32);
    let op = Rope {
        x: &x,
        out: &x,
        table: &table,
        head_dim: 128,
        interleaved: false,
        inverse: false,
        accumulate: false,
    };
    assert_eq!(blocks(kernels::rope(&op)), (TOKENS * 2) as u64);
    let (a, c) = (of(8192, 8192, DType::Bf16), of(TOKENS, 8192, DType::F32));
    let op = MatMul { a: &x, a_trans: false, b: &a, b_trans: true, c: &c, accumulate: false };
    assert_eq!(blocks(kernels::matmul(&op)), (TOKENS / 128 * 64) as u64);
    let row = |dtype| of(1, TOKENS, dtype);
    let mask = Mask {
        table: of(1, 6, DType::I64),
        slices: Extent::Fixed(1),
        pos_q: row(DType::I32),
        pos_k: row(DType::I32),
        pairs: 0,
        packed: None,
        partial: false,
        pages: None,
    };
    let op = Attention {
        q: &x,
        k: &heads,
        v: &heads,
        out: &x,
        lse: &of(TOKENS, 64, DType::F32),
        mask: &mask,
        head_dim: 128,
        scale: 1.0,
        softcap: 0.0,
        sinks: None,
        bias: None,
        resume: false,
    };
    assert_eq!(blocks(kernels::attention(&op)), (TOKENS / 64 * 64) as u64);
    let windows = kernels::embed_backward(&row(DType::I32), &x, 1.0, &of(128_256, 8192, DType::F32), None);
    assert_eq!(windows.iter().map(|launch| blocks(*launch)).sum::<u64>(), TOKENS as u64);
    // Sums over rows run in rounds of as many chunks as fit in scratch.
    let rounds = kernels::bias_backward(&x, &of(1, 8192, DType::F32), Scratch(0));
    assert_eq!(rounds.len(), 2 * (TOKENS / 128).div_ceil(128));
}

/// Empty operations give launches without blocks.
#[test]
fn nothing_is_a_launch_without_blocks() {
    let device = device();
    let of = |rows, cols, dtype| -> Tensor { device.empty(rows, cols, dtype, Category::Data) };
    let (x, row) = (of(0, 64, DType::F32), of(1, 0, DType::F32));
    assert!(kernels::add(&x, &x, &x).is_empty() && kernels::scale(&x, 2.0, &x).is_empty());
    let labels = of(1, 0, DType::I32);
    let loss = CrossEntropy::losses(&x, &labels, &row);
    assert!(kernels::cross_entropy(&loss).is_empty() && kernels::sum(&row, &of(1, 1, DType::F32)).is_empty());
}
