//! Cross-entropy of a tile of logits.

use fathom_tensor::{CrossEntropy, DType};

use super::launch::{Args, Launch, expect};
use super::table::loss as entries;

/// Cross-entropy of a tile. A label out of range gives a loss of NaN if the vocabulary is not spread.
#[track_caller]
pub fn cross_entropy(op: &CrossEntropy<'_>) -> Launch {
    let [rows, vocab] = op.logits.shape();
    expect("cross_entropy", "labels", op.labels, [1, rows]);
    expect("cross_entropy", "loss", op.loss, [1, rows]);
    if let Some(dlogits) = op.dlogits {
        expect("cross_entropy", "dlogits", dlogits, [rows, vocab]);
        let apart = dlogits.address() != op.logits.address();
        let same = dlogits.dtype() == op.logits.dtype() && dlogits.stride() == op.logits.stride();
        assert!(apart || same, "cross_entropy: {dlogits:?} in place of {:?}", op.logits);
    }
    let (stats, all) = op.spread.map_or((None, None), |spread| (spread.stats, spread.all));
    let each = if op.measures.is_some() { 4 } else { 2 };
    if let Some(stats) = stats {
        expect("cross_entropy", "stats", stats, [each, rows]);
    }
    if let Some(measures) = op.measures {
        expect("cross_entropy", "measures", measures, [2, rows]);
    }
    if let Some(all) = all {
        let fits = all.cols() == rows && all.dtype() == DType::F32 && all.rows().is_multiple_of(each);
        assert!(fits, "cross_entropy: statistics {all:?}");
    }
    let args = Args::new().mat(op.logits).plain(op.labels, DType::I32).plain_if(op.weights, DType::F32);
    let args = args.plain_out(op.loss, DType::F32).out_if(op.dlogits).long(vocab);
    let args = args.float(op.scale).float(op.softcap).float(op.z_loss);
    let args = args.flag(op.spread.is_some()).long(op.spread.map_or(0, |spread| spread.first));
    let args = args.out_if(stats).mat_if(all).int(all.map_or(0, |all| all.rows() / each));
    let args = args.out_if(op.measures);
    Launch::new(entries::cross_entropy, rows, args)
}
