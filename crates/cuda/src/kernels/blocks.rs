//! Packing and unpacking of quantized weights.

use fathom_tensor::{BlockFormat, DType, Pack, Unpack};

use super::launch::{Args, Launch, Sheet};
use super::table::blocks as entries;

/// Packs rows of f32.
///
/// # Panics
/// If shapes or types do not fit.
#[track_caller]
pub fn pack(op: &Pack<'_>) -> Launch {
    op.check();
    let ([rows, cols], format) = (op.x.shape(), op.format);
    let args = Args::new().plain(op.x, DType::F32).plain_out(op.out, DType::U8);
    let sizes = |args: Args| args.long(cols).long(format.row_bytes(cols)).long(format.scales_at(cols));
    match format {
        BlockFormat::Nf4 => {
            let blocks = (rows * format.scales(cols)).div_ceil(256);
            Launch::new(entries::pack_nf4, blocks, sizes(args.long(rows)))
        }
        BlockFormat::Int8 => Launch::new(entries::pack_int8, if cols == 0 { 0 } else { rows }, sizes(args)),
        BlockFormat::Ggml(_) | BlockFormat::Octets(_) | BlockFormat::Grouped(_) => {
            panic!("pack: a GPU has no kernel for {}", format.name())
        }
    }
}

/// Unpacks rows.
///
/// # Panics
/// If shapes or types do not fit.
#[track_caller]
pub fn unpack(op: &Unpack<'_>) -> Launch {
    op.check();
    let ([rows, cols], format) = (op.out.shape(), op.format);
    if matches!(format, BlockFormat::Ggml(_) | BlockFormat::Octets(_) | BlockFormat::Grouped(_)) {
        panic!("unpack: a GPU has no kernel for {}", format.name());
    }
    let sheet = Sheet::new(rows, cols);
    let args = Args::new().plain(op.packed, DType::U8).out(op.out).long(rows).long(cols);
    let args = args.long(format.row_bytes(cols)).long(format.scales_at(cols));
    Launch::new(entries::unpack, sheet.blocks(), args.flag(format == BlockFormat::Nf4).sheet(sheet))
}
