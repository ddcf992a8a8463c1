//! Scans over ranks that share documents, compared with one rank: values, gradients, memory and transfers.

use std::ops::Range;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{
    Batch, Context, ContextLayout, ConvUse, Counters, CpComm, Ctx, DeltaUse, Grads, HeadColumns, LayoutSizes,
    PIECES, Param, ParamId, Params, Places, Scope, Segments, SharedStream, SsdUse, Tape, Val,
};
use fathom_tensor::mesh::{CountingLink, Grid, Mesh, Seat, ThreadsOptions, Wires, threads};
use fathom_tensor::{Category, Device, Machine, Meta, PoolUsage};

const HEADS: usize = 4;
const WIDTH: usize = 8;
const STATE: usize = 16;
const TAPS: usize = 4;
const DOCUMENTS: [usize; 4] = [96, 1, 230, 57];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Scan {
    /// Mamba-2's, with so many groups.
    Ssd(usize),
    /// Gated DeltaNet's, with so many key heads.
    Delta(usize),
}

#[derive(Debug, PartialEq)]
struct Outcome {
    y: Vec<f32>,
    dx: Vec<f32>,
    dweights: Vec<Vec<f32>>,
    usage: PoolUsage,
    wires: Wires,
}

fn noise(seed: usize, at: usize) -> f32 {
    let z = (seed as u64 * 7919 + at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

impl Scan {
    /// Groups or key heads.
    fn shared(self) -> usize {
        match self {
            Scan::Ssd(shared) | Scan::Delta(shared) => shared,
        }
    }

    fn parts(self) -> [HeadColumns; 3] {
        let heads = HeadColumns { columns: HEADS * WIDTH, width: WIDTH };
        let shared = HeadColumns { columns: self.shared() * STATE, width: STATE };
        match self {
            Scan::Ssd(_) => [heads, shared, shared],
            Scan::Delta(_) => [shared, shared, heads],
        }
    }

    fn columns(self) -> usize {
        self.parts().iter().map(|part| part.columns).sum()
    }

    fn record(self, cx: &mut Ctx<'_>, x: Val, weights: &[ParamId]) -> Val {
        let (parts, heads) = (self.parts(), [HeadColumns { columns: HEADS, width: 1 }]);
        let [u, a, b] = cx.split(["u", "a", "b"], x, [self.columns(), HEADS, HEADS], None);
        let [u, a, b] = cx.to_heads(["u.dealt", "a.dealt", "b.dealt"], [u, a, b], [&parts, &heads, &heads]);
        let how = ConvUse { silu: true, state: "conv", parts: &parts };
        let u = cx.conv("conv", u, weights[0], Some(weights[1]), how);
        let shared = self.shared().max(cx.sharers());
        let names = ["y.dealt", "states", "began"];
        let y = match self {
            Scan::Ssd(_) => {
                let limit = [0.0, f32::INFINITY];
                let how = SsdUse { groups: shared, state: STATE, limit, memory: "memory" };
                cx.ssd(names, u, a, [weights[2], weights[3], weights[4]], how)
            }
            Scan::Delta(_) => {
                let how =
                    DeltaUse { key_heads: shared, key: STATE, l2_eps: 1e-6, beta: 1.0, memory: "memory" };
                cx.delta(names, [u, a, b], [weights[2], weights[3]], how)
            }
        };
        cx.to_tokens("y", y, WIDTH)
    }

    fn run_on(self, device: &Device, (layout, states): (&ContextLayout, Option<usize>)) -> Outcome {
        let sharing = SharedStream { layout, comm: &[CpComm::P2p], states };
        let positions: Vec<i32> = layout.docs().iter().flat_map(|rows| 0..rows.len() as i32).collect();
        device.pool.enter("batch", -1);
        let own = device.from_i32(&sharing.own(device, &positions), Category::Data);
        let docs = layout.docs().len().max(8);
        let (_, context) = Context::new(device, &sharing, &[], docs, &positions, &own);
        let documents = Some(sharing.documents(device, docs));
        let batch = Batch { context, documents, ..Batch::new(own.clone(), own) };
        let tokens: Vec<usize> = (0..positions.len()).collect();
        let rows = sharing.own(device, &tokens);
        let tensor = |cols: usize, seed: usize| {
            let values: Vec<f32> =
                rows.iter().flat_map(|row| (0..cols).map(move |col| noise(seed, row * cols + col))).collect();
            device.from_f32(rows.len(), cols, &values, Category::Data)
        };
        let mut params = Params::default();
        let all = self.columns();
        let shapes = [[all, TAPS], [1, all], [1, HEADS], [1, HEADS], [1, HEADS]];
        let weight = |(seed, [rows, cols]): (usize, [usize; 2])| {
            let values: Vec<f32> = (0..rows * cols).map(|at| noise(10 + seed, at)).collect();
            let value = device.from_f32(rows, cols, &values, Category::Params).into();
            params.push(Param { name: format!("w{seed}"), value, decays: false, trainable: true })
        };
        let weights: Vec<ParamId> = (0..).zip(shapes).map(weight).collect();
        let mut grads = Grads::zeros(device, &params);
        let (counters, places) = (Counters::default(), Places::none());
        let scope = Scope { device, params: &params, batch: (&batch).into(), counters: &counters };
        let mut tape = Tape::new(scope, &places).with_input_gradient();
        let x = tensor(all + 2 * HEADS, 1);
        let y = tape.segment(0, Some(x), &|cx, x| self.record(cx, x, &weights));
        let found = device.to_f32(&y);
        drop(y);
        let dx = tape.backward(tensor(HEADS * WIDTH, 2), &mut grads).map(|dx| device.to_f32(&dx));
        assert_eq!(device.mesh.check(), Ok(()));
        Outcome {
            y: found,
            dx: dx.unwrap_or_default(),
            dweights: grads.iter().map(|(_, grad)| device.to_f32(grad)).collect(),
            usage: device.pool.usage(),
            wires: device.mesh.wires(),
        }
    }
}

fn layout(cp: usize, dynamic: bool) -> ContextLayout {
    laid_out(&DOCUMENTS, &LayoutSizes { dynamic: dynamic.then_some(20), ..cut(cp, 16) })
}

/// Chunks of a rank's documents, of whatever number of tokens.
fn cut(cp: usize, chunk: usize) -> LayoutSizes<'static> {
    LayoutSizes { tokens: 0, cp, chunk, windows: &[None], dynamic: None, pieces: None }
}

fn laid_out(lengths: &[usize], cut: &LayoutSizes<'_>) -> ContextLayout {
    let ends = lengths.iter().scan(0, |end, length| {
        *end += length;
        Some(*end - length..*end)
    });
    let tokens = lengths.iter().sum();
    let docs: Vec<Range<usize>> = ends.collect();
    let cut = LayoutSizes { tokens, ..*cut };
    ContextLayout::new(&docs, &cut).unwrap_or_else(|message| panic!("{message}"))
}

fn run(scan: Scan, layout: &ContextLayout) -> Vec<Outcome> {
    every_rank(scan, layout, None)
}

/// All ranks' outcomes, by heads, or by states after so many rows.
fn every_rank(scan: Scan, layout: &ContextLayout, states: Option<usize>) -> Vec<Outcome> {
    let cp = layout.cp();
    std::thread::scope(|scope| {
        let rank = |seat: Seat| {
            scope.spawn(move || {
                let mesh = Mesh::new(Grid { cp, ..Grid::default() }, Box::new(seat.take()));
                scan.run_on(&Device::on_mesh(Arc::new(Cpu::new(1, None)), 1 << 28, mesh), (layout, states))
            })
        };
        let ranks: Vec<_> = threads(cp, ThreadsOptions::default()).into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|_| panic!("{scan:?}"))).collect()
    })
}

/// The ranks' rows in stream order.
fn together(layout: &ContextLayout, ranks: &[Outcome], of: impl Fn(&Outcome) -> &[f32]) -> Vec<f32> {
    let cols = of(&ranks[0]).len() / layout.rank_tokens();
    let mut whole = vec![f32::NAN; layout.tokens() * cols];
    for (rank, outcome) in ranks.iter().enumerate() {
        let rows = of(outcome).chunks(cols);
        for (token, row) in layout.ranges(rank).iter().cloned().flatten().zip(rows) {
            whole[token * cols..][..cols].copy_from_slice(row);
        }
    }
    whole
}

#[track_caller]
fn close(what: &str, found: &[f32], expected: &[f32]) {
    within(2e-6, what, found, expected);
}

#[track_caller]
fn within(bound: f32, what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(1e-30f32, |most, x| most.max(x.abs()));
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= bound * largest, "{what}: {found} for {expected}");
    }
}

#[test]
fn scans_by_heads_are_those_of_one_rank() {
    for scan in [Scan::Ssd(4), Scan::Ssd(2), Scan::Ssd(1), Scan::Delta(4), Scan::Delta(2)] {
        let alone = run(scan, &layout(1, false)).remove(0);
        for (cp, dynamic) in [(2, false), (4, false), (2, true)] {
            let layout = layout(cp, dynamic);
            let ranks = run(scan, &layout);
            let what = format!("{scan:?} on {cp} ranks, {dynamic}");
            // Rows are read in the same order on one rank.
            assert!(together(&layout, &ranks, |rank| &rank.y) == alone.y, "{what}");
            close(&what, &together(&layout, &ranks, |rank| &rank.dx), &alone.dx);
            for weight in 0..alone.dweights.len() {
                let mut sum = vec![0.0; alone.dweights[weight].len()];
                for rank in &ranks {
                    sum.iter_mut().zip(&rank.dweights[weight]).for_each(|(sum, own)| *sum += own);
                }
                close(&format!("{what}, weight {weight}"), &sum, &alone.dweights[weight]);
            }
        }
    }
}

#[test]
fn plans_of_scans_by_heads_are_exact() {
    let machine: Arc<dyn Machine> = Arc::new(Meta::new(Cpu::new(1, None).profile().clone()));
    for scan in [Scan::Ssd(2), Scan::Delta(2)] {
        let layout = layout(4, false);
        for (rank, real) in run(scan, &layout).iter().enumerate() {
            let mesh = Mesh::new(Grid { cp: 4, ..Grid::default() }, Box::new(CountingLink::new(rank, 4)));
            let plan = scan.run_on(&Device::on_mesh(machine.clone(), 1 << 28, mesh), (&layout, None));
            assert_eq!((plan.usage, plan.wires), (real.usage.clone(), real.wires.clone()), "{scan:?}");
        }
    }
}

/// Streams whose documents begin and end within pieces and at their borders, span several pieces and ranks, or are shorter than the
/// rows that a convolution reads; pieces of one row among them.
fn streams(cp: usize) -> Vec<ContextLayout> {
    let pieces =
        |lengths: &[usize], chunk| laid_out(lengths, &LayoutSizes { pieces: Some(PIECES), ..cut(cp, chunk) });
    let dynamic = |lengths: &[usize]| {
        laid_out(lengths, &LayoutSizes { pieces: Some(PIECES), dynamic: Some(20), ..cut(cp, 96) })
    };
    let many: Vec<usize> = (0..60).map(|at| 1 + at % 15).collect();
    vec![
        pieces(&DOCUMENTS, 96),
        pieces(&[384], 96),
        pieces(&[384], 16),
        pieces(&[48, 48, 96, 2, 190], 48),
        pieces(&[1, 1, 2, 1, 3, 8], 1),
        pieces(&[2600, 5400], 4000),
        dynamic(&DOCUMENTS),
        dynamic(&many),
    ]
}

#[test]
fn scans_by_states_are_those_of_one_rank() {
    for scan in [Scan::Ssd(4), Scan::Ssd(1), Scan::Delta(4), Scan::Delta(2)] {
        for cp in [2, 4] {
            for layout in streams(cp) {
                let docs: Vec<usize> = layout.docs().iter().map(Range::len).collect();
                let alone = run(scan, &laid_out(&docs, &cut(1, 1))).remove(0);
                let ranks = every_rank(scan, &layout, Some(TAPS - 1));
                let what = format!("{scan:?} of {docs:?} on {cp} ranks");
                let check = |what: &str, found: &[f32], expected: &[f32]| within(1e-5, what, found, expected);
                check(&what, &together(&layout, &ranks, |rank| &rank.y), &alone.y);
                check(&format!("{what}, input"), &together(&layout, &ranks, |rank| &rank.dx), &alone.dx);
                for weight in 0..alone.dweights.len() {
                    let mut sum = vec![0.0; alone.dweights[weight].len()];
                    for rank in &ranks {
                        sum.iter_mut().zip(&rank.dweights[weight]).for_each(|(sum, own)| *sum += own);
                    }
                    check(&format!("{what}, weight {weight}"), &sum, &alone.dweights[weight]);
                }
            }
        }
    }
}

#[test]
fn plans_of_scans_by_states_are_exact() {
    let machine: Arc<dyn Machine> = Arc::new(Meta::new(Cpu::new(1, None).profile().clone()));
    for (scan, layout) in [Scan::Ssd(2), Scan::Delta(2)]
        .into_iter()
        .flat_map(|scan| streams(4).into_iter().map(move |layout| (scan, layout)))
    {
        for (rank, real) in every_rank(scan, &layout, Some(TAPS - 1)).iter().enumerate() {
            let mesh = Mesh::new(Grid { cp: 4, ..Grid::default() }, Box::new(CountingLink::new(rank, 4)));
            let device = Device::on_mesh(machine.clone(), 1 << 28, mesh);
            let plan = scan.run_on(&device, (&layout, Some(TAPS - 1)));
            assert_eq!(
                (plan.usage, plan.wires),
                (real.usage.clone(), real.wires.clone()),
                "{scan:?} {layout:?}"
            );
        }
    }
}

/// Bytes that all ranks send.
fn sent(scan: Scan, layout: &ContextLayout, states: Option<usize>) -> u64 {
    let ranks = every_rank(scan, layout, states);
    ranks.iter().flat_map(|rank| rank.wires.values()).map(|wire| wire.bytes).sum()
}

#[test]
fn traffic_of_scans_by_states_does_not_grow_with_length() {
    for (scan, cp, ratio) in [(Scan::Ssd(2), 2, 4), (Scan::Ssd(2), 4, 4), (Scan::Delta(2), 2, 2)] {
        let whole = |tokens| laid_out(&[tokens], &LayoutSizes { pieces: Some(PIECES), ..cut(cp, tokens) });
        let [short, long] = [whole(512), whole(4096)];
        let by_states = [&short, &long].map(|layout| sent(scan, layout, Some(TAPS - 1)));
        assert_eq!(by_states[0], by_states[1], "{scan:?} on {cp} ranks");
        let by_heads = [&short, &long].map(|layout| sent(scan, layout, None));
        assert!(
            by_heads[1] == 8 * by_heads[0] && by_heads[1] > ratio * by_states[1],
            "{scan:?}: {by_heads:?} {by_states:?}"
        );
    }
    // Documents on one rank send nothing.
    let apart = laid_out(&[64, 64], &LayoutSizes { dynamic: Some(20), ..cut(2, 64) });
    assert_eq!([0, 1].map(|rank| apart.ranges(rank).len()), [1, 1], "{apart:?}");
    assert_eq!([Scan::Ssd(2), Scan::Delta(2)].map(|scan| sent(scan, &apart, Some(TAPS - 1))), [0, 0]);
}
