//! Benchmark of a step over context parallel ranks of one core each, on documents of log-normal lengths: bytes sent and
//! seconds, with documents on all ranks and on few. `mixed_lengths [RANKS [TOKENS [MEAN]]]`.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use fathom_cpu::Cpu;
use fathom_grad::Places;
use fathom_model::{Caps, Init, LlamaSizes, Model, Spec, initialise};
use fathom_tensor::mesh::{Grid, Mesh, Seat, ThreadsOptions, threads};
use fathom_tensor::{DType, Device};
use fathom_train::parallel::Ranks;
use fathom_train::{InStep, MicroBatch, Trainer};

const REPEATS: usize = 5;

/// A number in 0..1 (SplitMix64).
fn uniform(index: u64) -> f64 {
    let mut z = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Documents with this mean length, sigma 1; the last is cut.
fn documents(tokens: usize, mean: f64) -> Vec<Range<usize>> {
    let (mut docs, mut start) = (Vec::new(), 0);
    for at in 1.. {
        let (u, v) = (1.0 - uniform(2 * at), uniform(2 * at + 1));
        let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        let end = tokens.min(start + (mean.ln() - 0.5 + normal).exp().ceil() as usize);
        docs.push(start..end);
        if end == tokens {
            break;
        }
        start = end;
    }
    docs
}

/// Bytes that the rank sent in a step, seconds of the fastest of several steps, the rank's waiting time in it, and the
/// loss.
fn rank(device: &Device, spec: &Spec, ranks: Ranks, batch: &[MicroBatch]) -> (u64, f64, f64, f32) {
    let tokens = batch[0].ids.len();
    let portion = ranks.portion(spec, &device.mesh);
    let (model, mut params) = Model::declare_part(device, spec, DType::Bf16, None, portion);
    initialise(device, &model, &mut params, Init::new(1));
    let mut trainer = Trainer::new(device, model, params);
    let how = InStep {
        ranks,
        ..InStep::plain(Places::linear().with_tiles(Some(2048)), Caps { docs: 4096, seq_tokens: tokens })
    };
    let (mut best, mut loss, mut waited, mut sent) = (f64::INFINITY, 0.0, 0.0, 0);
    for _ in 0..REPEATS {
        let (started, before) = (Instant::now(), device.mesh.traffic());
        match trainer.step(batch, &how) {
            Ok(result) => loss = result.loss.wait_f32() / result.count.wait_f32(),
            Err(error) => panic!("{error}"),
        }
        best = best.min(started.elapsed().as_secs_f64());
        let after = device.mesh.traffic();
        (waited, sent) = (after.wait_s - before.wait_s, after.sent_bytes - before.sent_bytes);
    }
    let ring = |((_, kind), wire): (&(String, &'static str), &fathom_tensor::mesh::Wire)| {
        if kind.starts_with("ring") { wire.bytes / REPEATS as u64 } else { 0 }
    };
    assert!(sent > 0, "nothing was sent");
    (device.mesh.wires().iter().map(ring).sum(), best, waited, loss)
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<usize>().unwrap_or(0));
    let cp = numbers.next().filter(|cp| *cp > 0).unwrap_or(2);
    let tokens = numbers.next().filter(|tokens| *tokens > 0).unwrap_or(16 << 10);
    let mean = numbers.next().filter(|mean| *mean > 0).unwrap_or(1024);
    let sizes =
        LlamaSizes { hidden: 512, layers: 4, heads: 8, kv_heads: 4, head_dim: 64, ..LlamaSizes::TINY };
    let spec =
        Spec::llama(LlamaSizes { ffn: 1408, vocab: 4096, max_positions: tokens, tied: false, ..sizes });
    let docs = documents(tokens, mean as f64);
    let ids: Vec<i32> = (0..tokens).map(|at| (at * at % 4093) as i32).collect();
    let labels = ids[1..].iter().copied().chain([-100]).collect();
    let positions = docs.iter().flat_map(|doc| 0..doc.len() as i32).collect();
    println!(
        "{} documents in {tokens} tokens, the longest {:?}",
        docs.len(),
        docs.iter().map(Range::len).max()
    );
    let batch = [MicroBatch { ids, labels, positions, docs, ..MicroBatch::default() }];
    for cp_dynamic in [false, true, false, true] {
        let ranks = Ranks { grid: Grid { cp, ..Grid::default() }, cp_dynamic, ..Ranks::default() };
        let found: Vec<(u64, f64, f64, f32)> = std::thread::scope(|scope| {
            let run = |seat: Seat| {
                let (spec, batch) = (&spec, &batch);
                scope.spawn(move || {
                    let mesh = Mesh::new(ranks.grid, Box::new(seat.take()));
                    rank(&Device::on_mesh(Arc::new(Cpu::new(1, None)), 8 << 30, mesh), spec, ranks, batch)
                })
            };
            let all: Vec<_> = threads(cp, ThreadsOptions::default()).into_iter().map(run).collect();
            all.into_iter().filter_map(|rank| rank.join().ok()).collect()
        });
        let bytes: u64 = found.iter().map(|(bytes, ..)| bytes).sum();
        let [seconds, waited] = [1, 2]
            .map(|which| found.iter().map(|one| if which == 1 { one.1 } else { one.2 }).fold(0.0, f64::max));
        println!(
            "cp={cp} dynamic={cp_dynamic}: {bytes} bytes of keys on the wire, {seconds:.3} s a step, most waiting {waited:.3} s, loss {:.6}",
            found[0].3
        );
    }
}
