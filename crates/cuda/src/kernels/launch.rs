//! A kernel launch: entry point, grid, arguments in CUDA's format.

use std::ffi::c_void;

use fathom_tensor::{DType, Tensor};

use super::Entry;

/// Blocks, threads and shared memory of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Blocks on x and y.
    pub blocks: [u32; 2],
    /// Threads per block.
    pub threads: u32,
    /// Dynamic shared memory per block.
    pub shared_bytes: u32,
}

/// Address of the machine's memory that launches may overwrite, [`super::SCRATCH_BYTES`] long.
#[derive(Clone, Copy, Debug)]
pub struct Scratch(pub u64);

/// Largest number of words and of parameters of a kernel.
const WORDS: usize = 64;
const PARAMETERS: usize = 24;

/// Arguments, each in its own words of eight bytes; a structure has several.
#[derive(Clone, Copy)]
pub struct Args {
    words: [u64; WORDS],
    starts: [u8; PARAMETERS],
    kinds: [u8; PARAMETERS],
    used: usize,
    count: usize,
}

/// A kernel with its grid and arguments.
#[derive(Clone, Copy)]
pub struct Launch {
    /// The kernel.
    pub entry: Entry,
    /// Its grid. A launch without blocks does nothing, and CUDA refuses it: see [`Launch::is_empty`].
    pub grid: Grid,
    /// Its arguments.
    pub args: Args,
}

impl Launch {
    /// A launch of `blocks` blocks on x.
    ///
    /// # Panics
    /// If CUDA allows no such grid.
    #[track_caller]
    pub(super) fn new(entry: Entry, blocks: usize, args: Args) -> Launch {
        Launch::on(entry, [blocks, 1], 0, args)
    }

    /// A launch on x and y with dynamic shared memory.
    #[track_caller]
    pub(super) fn on(entry: Entry, [x, y]: [usize; 2], shared_bytes: usize, args: Args) -> Launch {
        let fits = x < 1 << 31 && y < 1 << 16 && shared_bytes <= 48 << 10;
        assert!(fits, "{}: {x} x {y} blocks with {shared_bytes} bytes of shared memory", entry.name);
        let grid =
            Grid { blocks: [x as u32, y as u32], threads: entry.threads, shared_bytes: shared_bytes as u32 };
        Launch { entry, grid, args }
    }

    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.grid.blocks.contains(&0)
    }
}

impl Args {
    /// An empty argument list.
    pub(super) fn new() -> Args {
        Args { words: [0; WORDS], starts: [0; PARAMETERS], kinds: [0; PARAMETERS], used: 0, count: 0 }
    }

    fn push(mut self, kind: u8, words: &[u64]) -> Args {
        self.starts[self.count] = self.used as u8;
        self.kinds[self.count] = kind;
        self.words[self.used..self.used + words.len()].copy_from_slice(words);
        self.used += words.len();
        self.count += 1;
        self
    }

    pub(super) fn address(self, address: u64) -> Args {
        self.push(b'p', &[address])
    }

    pub(super) fn long(self, x: usize) -> Args {
        self.push(b'l', &[x as u64])
    }

    /// A 64-bit value.
    pub(super) fn bits(self, x: u64) -> Args {
        self.push(b'l', &[x])
    }

    /// # Panics
    /// If `x` has more than 31 bits.
    #[track_caller]
    pub(super) fn int(self, x: usize) -> Args {
        assert!(x <= i32::MAX as usize, "a kernel takes {x} as an i32");
        self.push(b'i', &[x as u64])
    }

    pub(super) fn int_bits(self, x: i32) -> Args {
        self.push(b'i', &[u64::from(x.cast_unsigned())])
    }

    pub(super) fn flag(self, x: bool) -> Args {
        self.push(b'i', &[u64::from(x)])
    }

    pub(super) fn float(self, x: f32) -> Args {
        self.push(b'f', &[u64::from(x.to_bits())])
    }

    /// A structure of whole words; kinds are letters, A for one word, B for two, and so on.
    pub(super) fn structure(self, words: &[u64]) -> Args {
        self.push(b'A' + words.len() as u8 - 1, words)
    }

    /// A matrix to read.
    #[track_caller]
    pub(super) fn mat(self, tensor: &Tensor) -> Args {
        self.raw_mat(tensor.address(), tensor.stride(), code(tensor.dtype()))
    }

    /// A matrix to write.
    ///
    /// # Panics
    /// If another thread is reading it.
    #[track_caller]
    pub(super) fn out(self, tensor: &Tensor) -> Args {
        self.raw_mat(start_mut(tensor), tensor.stride(), code(tensor.dtype()))
    }

    pub(super) fn raw_mat(self, address: u64, stride: usize, code: u64) -> Args {
        self.structure(&[address, stride as u64, code])
    }

    /// A matrix that may be absent.
    #[track_caller]
    pub(super) fn mat_if(self, tensor: Option<&Tensor>) -> Args {
        match tensor {
            Some(tensor) => self.mat(tensor),
            None => self.raw_mat(0, 0, 0),
        }
    }

    /// Like [`Args::mat_if`], to write.
    #[track_caller]
    pub(super) fn out_if(self, tensor: Option<&Tensor>) -> Args {
        match tensor {
            Some(tensor) => self.out(tensor),
            None => self.raw_mat(0, 0, 0),
        }
    }

    /// The elements of a contiguous tensor of this type, to read.
    #[track_caller]
    pub(super) fn plain(self, tensor: &Tensor, dtype: DType) -> Args {
        check_plain(tensor, dtype);
        self.address(tensor.address())
    }

    /// Like [`Args::plain`], to write.
    #[track_caller]
    pub(super) fn plain_out(self, tensor: &Tensor, dtype: DType) -> Args {
        check_plain(tensor, dtype);
        self.address(start_mut(tensor))
    }

    /// Like [`Args::plain`], null if absent.
    #[track_caller]
    pub(super) fn plain_if(self, tensor: Option<&Tensor>, dtype: DType) -> Args {
        match tensor {
            Some(tensor) => self.plain(tensor, dtype),
            None => self.address(0),
        }
    }

    /// Rows and columns in cells of eight.
    pub(super) fn sheet(self, sheet: Sheet) -> Args {
        self.int(sheet.shift).int(sheet.pieces)
    }

    /// One letter per parameter: p address, l 64-bit, i 32-bit, f float, A, B, .. structures of 1, 2, .. words.
    pub fn kinds(&self) -> &str {
        std::str::from_utf8(&self.kinds[..self.count]).unwrap_or_default()
    }

    /// The words of all arguments.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words[..self.used]
    }

    /// Calls `f` with the addresses of the arguments, as `cuLaunchKernel` takes them; they are valid during the call.
    pub fn with_pointers<R>(&mut self, f: impl FnOnce(&mut [*mut c_void]) -> R) -> R {
        let mut pointers = [std::ptr::null_mut(); PARAMETERS];
        let base = self.words.as_mut_ptr();
        for (pointer, start) in pointers.iter_mut().zip(&self.starts[..self.count]) {
            *pointer = base.wrapping_add(*start as usize).cast();
        }
        f(&mut pointers[..self.count])
    }
}

#[track_caller]
fn check_plain(tensor: &Tensor, dtype: DType) {
    assert!(tensor.dtype() == dtype && tensor.is_contiguous(), "{tensor:?} is not plain {dtype:?}");
}

/// Address of a tensor to write.
///
/// # Panics
/// If another thread is reading it.
#[track_caller]
pub(super) fn start_mut(tensor: &Tensor) -> u64 {
    assert!(
        !tensor.is_shared(),
        "{tensor:?} would be written while another thread reads it; end its share first"
    );
    tensor.address()
}

/// The kernels' code of a storage type.
///
/// # Panics
/// If kernels do not support the type.
#[track_caller]
pub(super) fn code(dtype: DType) -> u64 {
    match dtype {
        DType::F32 => 0,
        DType::Bf16 => 1,
        DType::F16 => 2,
        DType::F8E4M3 => 3,
        DType::F8E5M2 => 4,
        other => panic!("the kernels compute nothing with {other:?}"),
    }
}

/// The entry point for a type, of kernels that are written for one type each.
#[track_caller]
pub(super) fn pick(dtype: DType, [f32, bf16, f16]: [Entry; 3]) -> Entry {
    match dtype {
        DType::F32 => f32,
        DType::Bf16 => bf16,
        DType::F16 => f16,
        other => panic!("{} has no version for {other:?}", f32.name),
    }
}

/// # Panics
/// If a tensor is not `shape`.
#[track_caller]
pub(super) fn expect(op: &str, what: &str, tensor: &Tensor, shape: [usize; 2]) {
    assert!(tensor.shape() == shape, "{op}: {what} is {tensor:?}, expected {shape:?}");
}

/// Rows and columns in cells of eight elements: a block of 256 threads handles `256 >> shift` rows of `1 << shift`
/// cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sheet {
    pub rows: usize,
    pub cols: usize,
    pub shift: usize,
    pub pieces: usize,
}

impl Sheet {
    pub fn new(rows: usize, cols: usize) -> Sheet {
        let cells = cols.div_ceil(8).max(1);
        let shift = (cells.next_power_of_two().trailing_zeros() as usize).min(8);
        Sheet { rows, cols, shift, pieces: cells.div_ceil(1 << shift) }
    }

    /// Like [`Sheet::new`]; if no tensor has gaps, a single long row.
    pub fn of(tensors: &[&Tensor]) -> Sheet {
        let [rows, cols] = tensors[0].shape();
        let whole = tensors.iter().all(|tensor| tensor.is_contiguous());
        if whole { Sheet::new(1, rows * cols) } else { Sheet::new(rows, cols) }
    }

    pub fn blocks(&self) -> usize {
        if self.cols == 0 { 0 } else { self.rows.div_ceil(256 >> self.shift) * self.pieces }
    }
}

/// Threads that share the sums of one row: a warp, or a block for wide rows. Depends only on the width.
pub(super) fn team(width: usize) -> usize {
    if width <= 512 { 32 } else { 256 }
}

/// Number of 256-thread blocks for this many teams.
pub(super) fn teams(items: usize, team: usize) -> usize {
    items.div_ceil(256 / team)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sheets_cover_rows_and_columns() {
        for (rows, cols, shift, blocks) in
            [(1, 1, 0, 1), (300, 8, 0, 2), (5, 100, 4, 1), (7, 2048, 8, 7), (7, 2049, 8, 14), (3, 0, 0, 0)]
        {
            let sheet = Sheet::new(rows, cols);
            assert_eq!((sheet.shift, sheet.blocks()), (shift, blocks), "{rows} x {cols}");
            assert!((sheet.pieces << sheet.shift) * 8 >= cols);
        }
        // Ten million tokens of 16384 columns.
        assert!(Sheet::new(1, 10_000_000 * 16_384).blocks() < 1 << 31);
    }

    #[test]
    fn arguments_are_where_their_pointers_lead() {
        let mut args = Args::new().address(7).raw_mat(1, 2, 3).float(1.5).int(9);
        assert_eq!(args.kinds(), "pCfi");
        let offsets = args.with_pointers(|pointers| {
            pointers.iter().map(|p| p.addr() - pointers[0].addr()).collect::<Vec<_>>()
        });
        assert_eq!(offsets, [0, 8, 32, 40]);
        assert_eq!(args.words[..6], [7, 1, 2, 3, u64::from(1.5f32.to_bits()), 9]);
    }
}
