//! Attention over ranks compared with one rank: values, gradients, order, memory and transfers.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fathom_cpu::Cpu;
use fathom_grad::{
    AttentionUse, Batch, Context, ContextLayout, Counters, CpComm, Grads, Keys, LayoutSizes, Param, Params,
    Places, Scope, Segments, SharedStream, Tape,
};
use fathom_tensor::mesh::{CountingLink, Grid, Mesh, Seat, ThreadsOptions, Traffic, Wires, threads};
use fathom_tensor::{Category, DType, Device, Machine, Meta, PoolUsage, Tensor};

const HEADS: usize = 24;
const HEAD_DIM: usize = 16;
const MAX_DOCS: usize = 7;

/// One attention over `cp` ranks.
#[derive(Clone, Debug)]
struct Case {
    comm: CpComm,
    cp: usize,
    docs: Vec<usize>,
    chunk: usize,
    window: Option<usize>,
    kv_heads: usize,
    dtype: DType,
    softcap: f32,
    sinks: bool,
    slopes: bool,
    head_groups: usize,
    chaos: Option<u64>,
    dynamic: bool,
}

/// Results of a rank.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    y: Vec<f32>,
    dx: Vec<f32>,
    dsinks: Vec<f32>,
    usage: PoolUsage,
    wires: Wires,
    sent_bytes: u64,
    received_bytes: u64,
    flops: [u128; 2],
}

fn noise(seed: u64, index: usize) -> f32 {
    let mut z = (seed << 32).wrapping_add(index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let x = ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
    // Exact in bf16.
    2.0 * f32::from_bits(x.to_bits() >> 16 << 16)
}

impl Case {
    fn new(comm: CpComm, cp: usize) -> Case {
        Case {
            comm,
            cp,
            docs: vec![96 * cp],
            chunk: 16,
            window: None,
            kv_heads: if cp == 3 { 3 } else { 2 },
            dtype: DType::F32,
            softcap: 0.0,
            sinks: false,
            slopes: false,
            head_groups: 1,
            chaos: None,
            dynamic: false,
        }
    }

    fn tokens(&self) -> usize {
        self.docs.iter().sum()
    }

    /// Columns of q, and of k.
    fn widths(&self) -> [usize; 2] {
        [HEADS * HEAD_DIM, self.kv_heads * HEAD_DIM]
    }

    fn ranges(&self) -> Vec<Range<usize>> {
        let ends = self.docs.iter().scan(0, |end, length| {
            *end += length;
            Some(*end - length..*end)
        });
        ends.collect()
    }

    fn layout(&self) -> ContextLayout {
        let (tokens, dynamic) = (self.tokens(), self.dynamic.then_some(20));
        let cut = LayoutSizes {
            tokens,
            cp: self.cp,
            chunk: self.chunk,
            windows: &[self.window],
            dynamic,
            pieces: None,
        };
        ContextLayout::new(&self.ranges(), &cut).unwrap_or_else(|message| panic!("{message}"))
    }

    /// The same case on one rank.
    fn alone(&self) -> Case {
        Case { cp: 1, comm: CpComm::P2p, chaos: None, ..self.clone() }
    }

    fn run_on(&self, device: &Device) -> Outcome {
        let layout = self.layout();
        let comm = [self.comm];
        let sharing = SharedStream { layout: &layout, comm: &comm, states: None };
        let positions: Vec<i32> = self.docs.iter().flat_map(|length| 0..*length as i32).collect();
        device.pool.enter("batch", -1);
        let own = device.from_i32(&sharing.own(device, &positions), Category::Data);
        let (masks, context) = Context::new(device, &sharing, &[self.window], MAX_DOCS, &positions, &own);
        let slopes: Vec<f32> = (0..HEADS).map(|head| 0.8f32.powi(head as i32)).collect();
        let slopes = self.slopes.then(|| device.from_f32(1, HEADS, &slopes, Category::Data));
        let batch = Batch { masks, context, slopes, ..Batch::new(own.clone(), own) };

        let [q, k] = self.widths();
        let tensor = |cols: usize, seed: u64| {
            let all: Vec<usize> = (0..self.tokens()).collect();
            let rows = sharing.own(device, &all);
            let values: Vec<f32> =
                rows.iter().flat_map(|row| (0..cols).map(move |col| noise(seed, row * cols + col))).collect();
            let wide = device.from_f32(rows.len(), cols, &values, Category::Data);
            let tensor = device.empty(rows.len(), cols, self.dtype, Category::Data);
            device.machine.copy(&wide, &tensor);
            tensor
        };
        let (x, dy) = (tensor(q + 2 * k, 1), tensor(q, 2));
        let mut params = Params::default();
        let sinks: Vec<f32> = (0..HEADS).map(|head| noise(3, head)).collect();
        let value = device.from_f32(1, HEADS, &sinks, Category::Params).into();
        let sinks = params.push(Param { name: "sinks".into(), value, decays: false, trainable: true });
        let sinks = self.sinks.then_some(sinks);
        let mut grads = Grads::zeros(device, &params);
        let (counters, places) = (Counters::default(), Places::none().with_head_groups(self.head_groups));
        let how = AttentionUse {
            keys: Keys::Own,
            mask: 0,
            head_dim: HEAD_DIM,
            scale: 0.25,
            softcap: self.softcap,
            apart: None,
            slopes: self.slopes,
        };
        let scope = Scope { device, params: &params, batch: (&batch).into(), counters: &counters };
        let mut tape = Tape::new(scope, &places).with_input_gradient();
        let y = tape.segment(0, Some(x), &|cx, x| {
            let [q, k, v] = cx.split(["q", "k", "v"], x, [q, k, k], None);
            cx.attention(q, k, v, how, sinks)
        });
        let read = |tensor: &Tensor| device.to_f32(tensor);
        let found = read(&y);
        drop(y);
        let dx = tape.backward(dy, &mut grads).map(|dx| read(&dx)).unwrap_or_default();
        let dsinks = grads.iter().flat_map(|(_, grad)| read(grad)).collect();
        assert_eq!(device.mesh.check(), Ok(()));
        let usage = device.pool.usage();
        for category in [Category::Comm, Category::Workspace, Category::Activations] {
            assert_eq!(usage.by_category[category], 0, "{category:?} is left");
        }
        let counted = counters.get();
        let Traffic { sent_bytes, received_bytes, .. } = device.mesh.traffic();
        let flops = [counted.model_flops, counted.hardware_flops];
        Outcome { y: found, dx, dsinks, usage, wires: device.mesh.wires(), sent_bytes, received_bytes, flops }
    }

    fn grid(&self) -> Grid {
        Grid { cp: self.cp, ..Grid::default() }
    }

    /// Runs on threads; results by rank.
    fn run(&self) -> Vec<Outcome> {
        let options = ThreadsOptions { deadline: Duration::from_secs(600), chaos: self.chaos };
        std::thread::scope(|scope| {
            let rank = |seat: Seat| {
                scope.spawn(move || {
                    let mesh = Mesh::new(self.grid(), Box::new(seat.take()));
                    self.run_on(&Device::on_mesh(Arc::new(Cpu::new(1, None)), 1 << 28, mesh))
                })
            };
            let ranks: Vec<_> = threads(self.cp, options).into_iter().map(rank).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|_| panic!("{self:?}"))).collect()
        })
    }

    /// The plan of each rank, without data.
    fn plan(&self) -> Vec<Outcome> {
        let machine: Arc<dyn Machine> = Arc::new(Meta::new(Cpu::new(1, None).profile().clone()));
        let rank = |rank: usize| {
            let mesh = Mesh::new(self.grid(), Box::new(CountingLink::new(rank, self.cp)));
            self.run_on(&Device::on_mesh(machine.clone(), 1 << 28, mesh))
        };
        (0..self.cp).map(rank).collect()
    }

    /// The ranks' rows in stream order.
    fn together(&self, ranks: &[Outcome], of: impl Fn(&Outcome) -> &Vec<f32>) -> Vec<f32> {
        let layout = self.layout();
        let cols = of(&ranks[0]).len() / layout.rank_tokens();
        let mut whole = vec![f32::NAN; self.tokens() * cols];
        for (rank, outcome) in ranks.iter().enumerate() {
            let mut row = 0;
            for range in layout.ranges(rank) {
                let (from, to) = (row * cols, range.start * cols);
                whole[to..to + range.len() * cols]
                    .copy_from_slice(&of(outcome)[from..from + range.len() * cols]);
                row += range.len();
            }
        }
        whole
    }
}

/// Compares with errors relative to the largest element. In f32 they come from the order of addition; one element of dk
/// or dv is a chain of as many additions as heads times tokens. In bf16 the bounds are two roundings of the largest
/// element, and a mean error like that of two separately rounded results: probabilities are rounded relative to their
/// row's maximum so far, results once, and partial gradients in messages.
#[track_caller]
fn close(case: &Case, what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what} of {case:?}");
    let largest = expected.iter().fold(1e-30f32, |most, x| most.max(x.abs()));
    let error = found.iter().zip(expected).fold(0.0f32, |most, (found, expected)| {
        let error = (found - expected).abs() / largest;
        if error.is_nan() { f32::INFINITY } else { most.max(error) }
    });
    let square = |x: f32| f64::from(x).powi(2);
    let errors: f64 = found.iter().zip(expected).map(|(found, expected)| square(found - expected)).sum();
    let mean = (errors / expected.iter().map(|x| square(*x)).sum::<f64>().max(1e-30)).sqrt();
    let (most, root) = match (case.dtype, what) {
        (DType::F32, "output" | "dq") => (1e-6, 1e-6),
        (DType::F32, _) => (1e-5, 4e-6),
        _ => (1.0 / 64.0, 4e-3),
    };
    assert!(
        error <= most && mean <= root,
        "{what} of {case:?}: {error:.1e} of the largest, {mean:.1e} in the mean"
    );
}

/// Columns of every row.
fn columns(values: &[f32], width: usize, cols: Range<usize>) -> Vec<f32> {
    values.chunks(width).flat_map(|row| row[cols.clone()].iter().copied()).collect()
}

#[track_caller]
fn check(case: &Case) {
    let expected = &case.alone().run()[0];
    let found = case.run();
    let [q, k] = case.widths();
    let (y, dx) = (case.together(&found, |one| &one.y), case.together(&found, |one| &one.dx));
    close(case, "output", &y, &expected.y);
    let width = q + 2 * k;
    for (what, cols) in [("dq", 0..q), ("dk", q..q + k), ("dv", q + k..width)] {
        let [found, expected] = [&dx, &expected.dx].map(|dx| columns(dx, width, cols.clone()));
        close(case, what, &found, &expected);
    }
    let sum = |head: usize| found.iter().map(|one| one.dsinks[head]).sum::<f32>();
    let dsinks: Vec<f32> = (0..HEADS).map(sum).collect();
    // Sums over all rows that nearly cancel.
    let largest = expected.dsinks.iter().fold(1e-30f32, |most, x| most.max(x.abs()));
    let limit = if case.dtype == DType::F32 { 1e-5 } else { 2e-3 };
    for (found, expected) in dsinks.iter().zip(&expected.dsinks) {
        let error = (found - expected).abs() / largest;
        assert!(error <= limit, "dsinks of {case:?}: {error:.1e} of the largest");
    }
    let flops = |index: usize| found.iter().map(|one| one.flops[index]).sum::<u128>();
    assert_eq!([flops(0), flops(1)], expected.flops, "{case:?}");

    // Keys gathered in stream order are processed in the order of one rank.
    let whole_heads = case.comm == CpComm::A2a && case.kv_heads.is_multiple_of(case.cp);
    if case.comm == CpComm::AllGather || case.comm == CpComm::A2a {
        assert!(y == expected.y, "{case:?}: other bits");
        assert!(
            columns(&dx, width, 0..q) == columns(&expected.dx, width, 0..q),
            "{case:?}: other bits of dq"
        );
    }
    if whole_heads {
        assert!(dx == expected.dx, "{case:?}: other bits of dk and dv");
    }

    let again = Case { chaos: Some(case.tokens() as u64), ..case.clone() }.run();
    assert!(again == found, "{case:?}: another run, other bits or other memory");
    for (rank, (found, plan)) in found.iter().zip(case.plan()).enumerate() {
        assert_eq!(found.usage, plan.usage, "{case:?}: memory of rank {rank}");
        assert_eq!(found.wires, plan.wires, "{case:?}: wire of rank {rank}");
        let bytes = |one: &Outcome| [one.sent_bytes, one.received_bytes];
        assert_eq!((bytes(found), found.flops), (bytes(&plan), plan.flops), "{case:?}: rank {rank}");
    }
}

fn kinds(cp: usize) -> Vec<CpComm> {
    let inner = if cp.is_multiple_of(2) { 2 } else { cp };
    vec![CpComm::P2p, CpComm::AllGather, CpComm::A2a, CpComm::A2aP2p { inner }]
}

/// Documents of uneven lengths, one of a single token.
fn packed(cp: usize) -> Vec<usize> {
    let tokens = 96 * cp;
    let mut docs = vec![1, 37, tokens / 3 - 5, 50];
    docs.push(tokens - docs.iter().sum::<usize>());
    docs
}

#[test]
fn every_kind_is_attention_of_one_rank() {
    for cp in [2, 3, 4, 8] {
        for comm in kinds(cp) {
            for docs in [vec![96 * cp], packed(cp)] {
                let case = Case { docs, ..Case::new(comm, cp) };
                check(&case);
                check(&Case { dtype: DType::Bf16, ..case.clone() });
                check(&Case { kv_heads: 1, ..case.clone() });
                check(&Case { window: Some(29), ..case.clone() });
                if comm == CpComm::P2p {
                    check(&Case { dynamic: true, ..case.clone() });
                    let windows = Case { dynamic: true, window: Some(29), ..case };
                    check(&Case { dtype: DType::Bf16, ..windows.clone() });
                    check(&Case { sinks: true, ..windows });
                }
            }
        }
    }
}

#[test]
fn caps_sinks_and_groups_of_heads() {
    for cp in [2, 4] {
        for comm in kinds(cp) {
            let case = Case { docs: packed(cp), kv_heads: 8, ..Case::new(comm, cp) };
            check(&Case { sinks: true, ..case.clone() });
            check(&Case { softcap: 3.0, sinks: true, window: Some(40), dtype: DType::Bf16, ..case.clone() });
            check(&Case { head_groups: 2, sinks: true, ..case.clone() });
            check(&Case { slopes: true, ..case.clone() });
            check(&Case { slopes: true, head_groups: 2, dtype: DType::Bf16, ..case.clone() });
            check(&Case { head_groups: 8, dtype: DType::Bf16, ..case });
        }
    }
}

#[test]
fn a_circle_of_four_in_a_ring_of_two() {
    let case = Case { docs: packed(8), ..Case::new(CpComm::A2aP2p { inner: 4 }, 8) };
    check(&case);
    check(&Case { kv_heads: 8, dtype: DType::Bf16, ..case });
}

#[test]
fn chunks_that_do_not_divide_and_documents_of_one_rank() {
    for comm in kinds(4) {
        check(&Case { chunk: 40, docs: vec![130, 200, 54], ..Case::new(comm, 4) });
        // One document of one chunk for each rank: most pairs of ranks exchange nothing.
        check(&Case { chunk: 64, docs: vec![32; 4], ..Case::new(comm, 4) });
    }
}

/// With documents on few ranks, those on a single rank are not sent, nor keys of a document on all ranks that come
/// after all queries.
#[test]
fn only_keys_that_are_attended_to_travel() {
    let sent = |case: &Case| -> Vec<u64> { case.run().iter().map(|rank| rank.sent_bytes).collect() };
    let case = Case::new(CpComm::P2p, 4);
    let all = sent(&case);
    let alone = Case { dynamic: true, docs: vec![96; 4], ..case.clone() };
    check(&alone);
    assert_eq!(sent(&alone), [0; 4]);
    let one = Case { dynamic: true, ..case.clone() };
    let total = |sent: &[u64]| sent.iter().sum::<u64>();
    assert_eq!(4 * total(&sent(&one)), 3 * total(&all));
    let mixed = Case { dynamic: true, docs: vec![180, 60, 50, 60, 34], ..case };
    check(&mixed);
    check(&Case { sinks: true, head_groups: 2, ..mixed.clone() });
    assert!(total(&sent(&mixed)) < total(&all) / 2, "{:?} of {all:?}", sent(&mixed));
}

/// The memory of a batch does not depend on its documents.
#[test]
fn memory_is_the_same_for_all_documents() {
    let dynamic = kinds(4).into_iter().map(|comm| (comm, false)).chain([(CpComm::P2p, true)]);
    for (comm, dynamic) in dynamic {
        let usages = |docs: Vec<usize>| -> Vec<PoolUsage> {
            Case { docs, dynamic, ..Case::new(comm, 4) }.plan().into_iter().map(|rank| rank.usage).collect()
        };
        let dense = usages(vec![384]);
        assert!(dense.iter().all(|usage| *usage == dense[0]), "{comm}: ranks differ");
        for docs in [packed(4), vec![100, 184, 100], vec![96; 4]] {
            assert_eq!(usages(docs), dense, "{comm}");
        }
    }
}

#[test]
fn heads_that_cannot_be_dealt_are_reported() {
    let message = CpComm::A2a.check(8, 24, 6).unwrap_err();
    assert!(message.contains("24 query heads and 6 key heads") && message.ends_with("1, 2"), "{message}");
    assert_eq!(CpComm::A2aP2p { inner: 2 }.check(8, 24, 6), Ok(()));
    assert!(CpComm::A2aP2p { inner: 3 }.check(8, 24, 6).is_err());
}
