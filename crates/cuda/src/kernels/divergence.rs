//! Divergence of a tile of logits from a teacher.

use fathom_tensor::{CLOSEST, DType, Divergence, Known, Tensor};

use super::launch::{Args, Launch, expect};
use super::table::divergence as entries;

/// Divergence of a tile.
#[track_caller]
pub fn divergence(op: &Divergence<'_>) -> Launch {
    let [rows, vocab] = op.logits.shape();
    expect("divergence", "labels", op.labels, [1, rows]);
    expect("divergence", "parts", op.parts, [op.teacher.parts(), rows]);
    let stats = |all: &Tensor| {
        assert!(all.cols() == rows && all.dtype() == DType::F32, "divergence: statistics {all:?}");
        all.rows() / 2
    };
    let out = op.out;
    if let Some(out) = &out {
        expect("divergence", "loss", out.loss, [1, rows]);
        expect("divergence", "dlogits", out.dlogits, [rows, vocab]);
        expect("divergence", "weights", out.weights, [1, rows]);
    }
    let ranks = stats(op.stats);
    let student = Args::new().mat(op.logits).mat(op.stats).float(op.scale).float(op.softcap);
    let rest = |args: Args| {
        let args = match &out {
            Some(out) => args.plain_out(out.loss, DType::F32).out(out.dlogits).plain(out.weights, DType::F32),
            None => args.address(0).out_if(None).address(0),
        };
        args.float(out.map_or(0.0, |out| out.factor))
    };
    let tile = |args: Args| {
        let args = args.int(ranks).plain(op.labels, DType::I32);
        args.plain_out(op.parts, DType::F32).long(rows).long(vocab)
    };
    match op.teacher {
        Known::Whole { logits, stats: all, scale, softcap } => {
            expect("divergence", "the teacher's logits", logits, [rows, vocab]);
            assert_eq!(stats(all), ranks, "divergence: ranks of the teacher");
            let args = tile(student.mat(logits).mat(all).float(scale).float(softcap)).float(op.beta);
            Launch::new(entries::divergence, rows, rest(args))
        }
        Known::Best { ids, logps, rest: counts } => {
            let k = ids.cols();
            expect("divergence", "ids", ids, [rows, k]);
            expect("divergence", "logps", logps, [rows, k]);
            let best = student.plain(ids, DType::I32).plain(logps, DType::F32).long(k);
            let args = tile(best.flag(counts).float(CLOSEST)).long(op.first).float(op.beta);
            Launch::new(entries::divergence_of_best, rows, rest(args))
        }
    }
}
