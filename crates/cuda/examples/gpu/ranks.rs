//! Several ranks: as streams of one device, as processes with one device each if there are several, and a single rank
//! over NCCL. Also blocks captured as graphs.
#![allow(unsafe_code)]

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fathom_cuda::driver::{Rows, Way};
use fathom_cuda::libs::{Library, Probe, Search, probe};
use fathom_cuda::nccl::{Communicator, Kind, Nccl, World};
use fathom_cuda::{Cuda, Result};
use fathom_tensor::mesh::{Grid, Mesh, ThreadsOptions, conformance, threads};
use fathom_tensor::{
    Attention, Category, DType, Device, Extent, Machine as _, Mask, MatMul, Norm, NormKind, PackedMask,
    Slice, Tensor,
};

use super::Lines;

const BUDGET: u64 = 1 << 30;
const SOON: Duration = Duration::from_secs(30);

/// Runs all checks.
pub fn run(lines: &mut Lines) {
    let found = probe(&Search::from_environment(), true);
    for grid in [
        Grid { tp: 2, ..Grid::default() },
        Grid { tp: 2, pp: 2, ..Grid::default() },
        Grid { cp: 2, dp: 2, ep: 2, ..Grid::default() },
    ] {
        let done = streams(&found, grid);
        lines.say(format!("ranks as streams of one device, {grid}"), done.is_ok(), words(done));
    }
    let done = one_rank(&found);
    lines.say("NCCL with one rank", done.is_ok(), words(done));
    if found.devices.len() > 1 {
        let done = processes(found.devices.len());
        lines.say(format!("NCCL, {} devices", found.devices.len()), done.is_ok(), words(done));
    }
    match graphs(&found) {
        Ok((ok, text)) => lines.say("a block as a graph", ok, text),
        Err(error) => lines.say("a block as a graph", false, error.to_string()),
    }
}

fn words(done: std::result::Result<(), String>) -> String {
    done.err().unwrap_or_else(|| "every collective conforms".to_string())
}

/// Each rank is a thread with its own streams and memory on device 0.
fn streams(found: &Probe, grid: Grid) -> std::result::Result<(), String> {
    let options = ThreadsOptions { deadline: SOON, chaos: None };
    std::thread::scope(|scope| {
        let rank = |seat: fathom_tensor::mesh::Seat| {
            scope.spawn(move || -> std::result::Result<(), String> {
                let cuda = Arc::new(Cuda::open(found, 0).map_err(|error| error.to_string())?);
                let mesh = Mesh::new(grid, Box::new(seat.take()));
                conformance::check(&Device::on_mesh(cuda, BUDGET, mesh));
                Ok(())
            })
        };
        let ranks: Vec<_> = threads(grid.ranks(), options).into_iter().map(rank).collect();
        let ended =
            ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|_| Err("a rank panicked".into())));
        // All ranks are waited for before the first failure is reported.
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

fn library(found: &Probe) -> std::result::Result<Arc<Nccl>, String> {
    let library = found.libraries.iter().find(|found| found.library == Library::Nccl);
    let path = library.and_then(|found| found.path.as_ref()).ok_or("NCCL is not there")?;
    Ok(Arc::new(Nccl::open(path).map_err(|error| error.to_string())?))
}

/// One of several processes, for `gpu nccl HOST:PORT RANK RANKS`.
pub fn process(lines: &mut Lines, args: &[String]) {
    let numbers: Vec<usize> = args.iter().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let done = match (args, &numbers[..]) {
        ([at, ..], [rank, ranks]) => one_of(at, *rank, *ranks),
        _ => Err("usage: gpu nccl HOST:PORT RANK RANKS".to_string()),
    };
    lines.say("NCCL between processes", done.is_ok(), words(done));
}

fn one_of(at: &str, rank: usize, ranks: usize) -> std::result::Result<(), String> {
    let failed = |error: fathom_cuda::Error| error.to_string();
    let found = probe(&Search::from_environment(), true);
    let cuda = Arc::new(Cuda::open(&found, rank % found.devices.len().max(1)).map_err(failed)?);
    let world = World::meet(at, [rank, ranks], SOON).map_err(failed)?;
    let link = world.link(&cuda, &library(&found)?).map_err(failed)?;
    let grid = Grid { tp: ranks, ..Grid::default() };
    conformance::check(&Device::on_mesh(cuda.clone(), BUDGET, Mesh::new(grid, link)));
    cuda.synchronise().map_err(failed)?;
    world.gather(0).map(|_| ()).map_err(|error| error.to_string())
}

fn processes(devices: usize) -> std::result::Result<(), String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let start = |rank: usize| {
        let numbers = [rank, devices].map(|number| number.to_string());
        let mut command = Command::new(&own);
        // Gives each stream a hardware queue of its own.
        command.env("CUDA_DEVICE_MAX_CONNECTIONS", "32");
        command.args(["nccl", "127.0.0.1:29417"]).args(numbers).spawn()
    };
    let started: Vec<_> = (0..devices).map(start).collect();
    let mut failed = 0;
    for child in started {
        let ended = child.and_then(|mut child| child.wait());
        failed += usize::from(!ended.is_ok_and(|status| status.success()));
    }
    if failed == 0 {
        Ok(())
    } else {
        Err(format!("{failed} of {devices} processes failed; their lines say why"))
    }
}

/// Tests every call of the binding with one rank, and the link.
fn one_rank(found: &Probe) -> std::result::Result<(), String> {
    let failed = |error: fathom_cuda::Error| error.to_string();
    let nccl = library(found)?;
    let cuda = Arc::new(Cuda::open(found, 0).map_err(failed)?);
    calls(&cuda, &nccl).map_err(failed)?.map_or(Ok(()), Err)?;
    let world = World::meet("", [0, 1], SOON).map_err(failed)?;
    let link = world.link(&cuda, &nccl).map_err(failed)?;
    conformance::check(&Device::on_mesh(cuda, BUDGET, Mesh::new(Grid::default(), link)));
    Ok(())
}

/// The first call that misbehaved, if any.
fn calls(cuda: &Arc<Cuda>, nccl: &Arc<Nccl>) -> Result<Option<String>> {
    const COUNT: usize = 1 << 16;
    let (driver, stream) = (cuda.driver().clone(), cuda.compute()?);
    let comm = Communicator::join(nccl, &driver, nccl.unique_id()?, [0, 1], None, SOON)?;
    let device = Device::new(cuda.clone(), BUDGET);
    let from = device.from_f32(1, COUNT, &(0..COUNT).map(|at| at as f32).collect::<Vec<_>>(), Category::Data);
    let into = device.zeros(1, COUNT, DType::F32, Category::Data);
    let (a, b, bytes) = (from.address(), into.address(), COUNT * 4);
    type Call<'a> = (&'static str, &'a dyn Fn() -> Result<()>);
    // SAFETY: both tensors have this many bytes and live to the end of this function, which waits for each call.
    let list: [Call<'_>; 6] = unsafe {
        [
            ("all_reduce", &|| comm.all_reduce(a, b, COUNT, Kind::F32, stream)),
            ("all_reduce of bf16", &|| comm.all_reduce(a, b, 2 * COUNT, Kind::Bf16, stream)),
            ("reduce_scatter", &|| comm.reduce_scatter(a, b, COUNT, Kind::F32, stream)),
            ("all_gather", &|| comm.all_gather(a, b, bytes, stream)),
            ("broadcast", &|| comm.broadcast(a, b, bytes, 0, stream)),
            ("send and receive", &|| comm.swap((a, 0), (b, 0), bytes, stream)),
        ]
    };
    for (name, call) in list {
        cuda.zero(&into);
        cuda.synchronise()?;
        call()?;
        cuda.synchronise()?;
        let (sent, got) = (cuda.read(&from).wait(), cuda.read(&into).wait());
        if sent != got {
            return Ok(Some(format!("{name}: other bytes")));
        }
    }
    let copied = Rows::flat(a, bytes);
    // SAFETY: as above.
    unsafe { driver.copy(Way::Across, copied, Rows::flat(b, bytes), stream)? };
    cuda.synchronise()?;
    Ok(nccl.failure(SOON))
}

/// A mask of one sequence, so that no lists are uploaded and cuDNN can be part of the captured block.
fn mask(device: &Device, tokens: usize) -> Mask {
    let slices = [Slice::causal(0..tokens, 0..tokens, None)];
    let numbers: Vec<i32> = (0..tokens as i32).collect();
    let s = &slices[0];
    let row = [s.q_start, s.q_end, s.k_start, s.k_end, s.lo, s.hi].map(|x| x.to_le_bytes()).concat();
    let table = device.empty(1, 6, DType::I64, Category::Data);
    device.machine.write(&table, &row);
    let positions = device.from_i32(&numbers, Category::Data);
    let packed = PackedMask::of(&slices, &numbers, &numbers);
    let (slices, pos_q, pos_k) = (Extent::Fixed(1), positions.clone(), positions);
    Mask { table, slices, pos_q, pos_k, pairs: 0, packed, partial: false, pages: None }
}

/// Runs a block of products, attention and norms four times: issued, captured, replayed twice. Returns whether results
/// agree, and the counts.
fn graphs(found: &Probe) -> Result<(bool, String)> {
    let cuda = Arc::new(Cuda::open(found, 0)?.with_graphs(true));
    let device = Device::new(cuda.clone(), BUDGET);
    let numbers: Vec<f32> = (0..512 * 512).map(|at| ((at * 37 % 101) as f32 - 50.0) / 500.0).collect();
    let wide = device.from_f32(512, 512, &numbers, Category::Data);
    let empty = |dtype| device.empty(512, 512, dtype, Category::Data);
    let [x, w, y, z, a] = [(); 5].map(|()| empty(DType::Bf16));
    let weight = device.empty(1, 512, DType::Bf16, Category::Data);
    cuda.copy(&wide, &w);
    cuda.copy(&wide.view_rows(0..1), &weight);
    let stats = device.empty(512, 1, DType::F32, Category::Data);
    let (mask, lse) = (mask(&device, 512), device.empty(512, 4, DType::F32, Category::Data));
    let kind = NormKind { centred: false, plus_one: false, round_first: true, eps: 1e-5 };
    let mut results: Vec<Vec<f32>> = Vec::new();
    for _ in 0..4 {
        cuda.copy(&wide, &x);
        cuda.enter_block();
        for _ in 0..3 {
            let op = MatMul { a: &x, a_trans: false, b: &w, b_trans: true, c: &y, accumulate: false };
            let bytes = cuda.profile().workspace(&op.desc()).max(1) as usize;
            let ws: Tensor = device.empty(1, bytes, DType::U8, Category::Workspace);
            cuda.matmul(&op, &ws);
            cuda.norm(&Norm { kind, x: &y, weight: &weight, bias: None, out: &z, stats: &stats });
            let op = Attention {
                q: &z,
                k: &z,
                v: &y,
                out: &a,
                lse: &lse,
                mask: &mask,
                head_dim: 128,
                scale: 0.1,
                softcap: 0.0,
                sinks: None,
                bias: None,
                resume: false,
            };
            let bytes = cuda.profile().workspace(&op.desc(false)).max(1) as usize;
            let ws = device.empty(1, bytes, DType::U8, Category::Workspace);
            cuda.attention(&op, &ws);
            cuda.add(&a, &x, &x);
        }
        cuda.leave_block();
        results.push(device.to_f32(&x));
    }
    let counts = cuda.graphs();
    let same = results.windows(2).all(|pair| pair[0] == pair[1]) && results[0].iter().any(|x| *x != 0.0);
    let ok = same && counts.captured == 1 && counts.replayed[0] == 2 && counts.refused.0 == 0;
    Ok((ok, format!("the same numbers: {same}; {counts:?}")))
}
