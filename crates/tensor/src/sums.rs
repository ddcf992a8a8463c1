//! Order of addition: where a sum may be cut into several calls.

/// Rows per chunk of a sum over rows, on every machine. A kernel adds a chunk's rows in its own fixed order, as suits
/// its vectors or matrix units, and chunk after chunk, ascending, to what the output holds. Cutting a sum into calls at
/// a multiple of this changes no bit: tiles, micro-batches and parts of a context are whole chunks. A larger value
/// would rule out smaller tiles; a smaller one would leave kernels too little work between reads of the output.
pub const SUM_CHUNK: usize = 128;

/// Neighbours that a unit of products sums in its own order before adding to the output: two for `vdpbf16ps`, at most
/// this many for an AMX tile. Rows that begin at a multiple of it are summed as if they began at 0.
pub const SUM_UNIT: usize = 32;

/// True if cutting rows here changes no sum over them: a nonzero multiple of [`SUM_CHUNK`].
pub fn is_whole_chunks(rows: usize) -> bool {
    rows > 0 && rows.is_multiple_of(SUM_CHUNK)
}
