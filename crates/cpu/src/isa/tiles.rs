//! AMX's tile instructions in software, for tests: a processor without tiles traps them (SIGILL), and the handler
//! computes their results and continues after them. The kernels thus run unmodified, instruction by instruction, on any
//! processor with AVX-512. (Intel SDM vol. 1, chapter 18; vol. 2, LDTILECFG to TDPBF16PS.)
//!
//! Only instructions in these kernels' encodings are supported; any other ends the process as it would have without the
//! handler.

use std::cell::RefCell;
use std::sync::OnceLock;

/// Rows of a tile, and bytes of one.
const ROWS: usize = 16;
const BYTES: usize = 64;

/// The tile configuration and the tiles' contents.
struct State {
    /// Rows, and bytes per row.
    shapes: [(usize, usize); 8],
    tiles: [[[u8; BYTES]; ROWS]; 8],
}

thread_local! {
    static STATE: RefCell<State> = const { RefCell::new(State { shapes: [(0, 0); 8], tiles: [[[0; BYTES]; ROWS]; 8] }) };
}

/// Installs the handler once; returns whether this processor has everything else that the kernels need.
pub fn installed() -> bool {
    static DONE: OnceLock<bool> = OnceLock::new();
    *DONE.get_or_init(|| {
        if !is_x86_feature_detected!("avx512bf16") {
            return false;
        }
        // SAFETY: the handler reads only the trapped instruction and this thread's tiles.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = trapped as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut()) == 0
        }
    })
}

/// The signal handler.
unsafe extern "C" fn trapped(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the trapped thread's registers.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let at = registers[libc::REG_RIP as usize] as *const u8;
        match Instruction::at(at, registers) {
            Some(instruction) => {
                STATE.with(|state| instruction.run(&mut state.borrow_mut()));
                registers[libc::REG_RIP as usize] += instruction.length as i64;
            }
            None => {
                libc::signal(libc::SIGILL, libc::SIG_DFL);
            }
        }
    }
}

/// A VEX-encoded instruction of the tile instructions' map.
struct Instruction {
    /// Opcode and prefix (0: none, 1: 66, 2: F3, 3: F2).
    code: (u8, u8),
    /// The tiles named by reg, r/m and vvvv.
    tiles: [usize; 3],
    /// True if there is no address operand.
    registers_only: bool,
    address: *mut u8,
    stride: isize,
    length: usize,
}

impl Instruction {
    /// # Safety
    /// There is an instruction at the address.
    unsafe fn at(at: *const u8, registers: &[i64; 23]) -> Option<Instruction> {
        // SAFETY: no byte is read past those that the preceding ones imply.
        let byte = |index: usize| unsafe { *at.add(index) };
        // Three bytes of VEX, map 0F38, W0 and 128 bits.
        if byte(0) != 0xc4 || byte(1) & 0x1f != 2 || byte(2) & 0x84 != 0 {
            return None;
        }
        let (extension, prefix, modrm) = (!byte(1), byte(2) & 3, byte(4));
        let (mode, low) = (modrm >> 6, modrm & 7);
        let tiles = [modrm >> 3 & 7, low, (!byte(2) >> 3) & 7].map(usize::from);
        let code = (byte(3), prefix);
        if mode == 3 {
            let (address, stride) = (std::ptr::null_mut(), 0);
            return Some(Instruction { code, tiles, registers_only: true, address, stride, length: 5 });
        }
        let general = |number: u8| registers[REGISTERS[usize::from(number)] as usize];
        let (mut length, mut base, mut stride) = (5, low | (extension >> 5 & 1) << 3, 0);
        if low == 4 {
            let sib = byte(5);
            length = 6;
            base = sib & 7 | (extension >> 5 & 1) << 3;
            let index = sib >> 3 & 7 | (extension >> 6 & 1) << 3;
            if index != 4 {
                stride = (general(index) << (sib >> 6)) as isize;
            }
        }
        let far = |from: usize| i32::from_le_bytes(std::array::from_fn(|index| byte(from + index)));
        let (moved, more) = match mode {
            0 if base & 7 == 5 => return None,
            0 => (0, 0),
            1 => (byte(length) as i8 as i64, 1),
            _ => (i64::from(far(length)), 4),
        };
        let address = (general(base) + moved) as *mut u8;
        Some(Instruction { code, tiles, registers_only: false, address, stride, length: length + more })
    }

    /// # Safety
    /// The addresses are those of the program.
    unsafe fn run(&self, state: &mut State) {
        let [to, left, right] = self.tiles;
        // SAFETY: passed on.
        unsafe {
            match (self.code, self.registers_only) {
                ((0x49, 0), false) => state.configure(std::slice::from_raw_parts(self.address, 64)),
                ((0x49, 0), true) => state.shapes = [(0, 0); 8],
                ((0x49, 3), true) => state.zero(to),
                ((0x4b, 3 | 1), false) => {
                    let (rows, bytes) = state.shape(to);
                    state.tiles[to] = [[0; BYTES]; ROWS];
                    for row in 0..rows {
                        let from = self.address.wrapping_offset(row as isize * self.stride);
                        from.copy_to_nonoverlapping(state.tiles[to][row].as_mut_ptr(), bytes);
                    }
                }
                ((0x4b, 2), false) => {
                    let (rows, bytes) = state.shape(to);
                    for row in 0..rows {
                        let at = self.address.wrapping_offset(row as isize * self.stride);
                        at.copy_from_nonoverlapping(state.tiles[to][row].as_ptr(), bytes);
                    }
                }
                ((0x5c, 2), true) => state.products(to, left, right, bf16_sums),
                ((0x5e, 3), true) => state.products(to, left, right, byte_sums::<true, true>),
                ((0x5e, 2), true) => state.products(to, left, right, byte_sums::<true, false>),
                ((0x5e, 1), true) => state.products(to, left, right, byte_sums::<false, true>),
                ((0x5e, 0), true) => state.products(to, left, right, byte_sums::<false, false>),
                _ => panic!("no tile instruction: {:x?}", self.code),
            }
        }
    }
}

/// Index in a context of each of the sixteen registers, by their number in instructions.
const REGISTERS: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

type Tile = [[u8; BYTES]; ROWS];
/// Adds to a row of C from a row of A, the tile B, and a number of pairs or quadruples.
type Sums = unsafe fn(&mut [u8; BYTES], &[u8; BYTES], &Tile, usize);

impl State {
    fn configure(&mut self, bytes: &[u8]) {
        assert_eq!((bytes[0], bytes[1]), (1, 0), "palette and first row");
        for tile in 0..8 {
            let wide = u16::from_le_bytes([bytes[16 + 2 * tile], bytes[17 + 2 * tile]]);
            self.shapes[tile] = (bytes[48 + tile].into(), wide.into());
            assert!(self.shapes[tile].0 <= ROWS && self.shapes[tile].1 <= BYTES);
            self.tiles[tile] = [[0; BYTES]; ROWS];
        }
    }

    /// Shape of a tile; like the processor, refuses tiles that were not configured.
    fn shape(&self, tile: usize) -> (usize, usize) {
        assert_ne!(self.shapes[tile].0, 0, "tile {tile} is not configured");
        self.shapes[tile]
    }

    fn zero(&mut self, tile: usize) {
        self.shape(tile);
        self.tiles[tile] = [[0; BYTES]; ROWS];
    }

    /// # Safety
    /// The processor has AVX-512.
    unsafe fn products(&mut self, to: usize, left: usize, right: usize, sums: Sums) {
        let [c, a, b] = [to, left, right].map(|tile| self.shape(tile));
        assert!(to != left && to != right && left != right, "tiles of a product differ");
        assert!(c.0 == a.0 && a.1 / 4 == b.0 && c.1 == b.1, "shapes {c:?} += {a:?} {b:?}");
        let (a, b) = (self.tiles[left], self.tiles[right]);
        for row in 0..c.0 {
            let kept = c.1;
            // SAFETY: passed on.
            unsafe { sums(&mut self.tiles[to][row], &a[row], &b, a.len().min(self.shapes[left].1 / 4)) };
            self.tiles[to][row][kept..].fill(0);
        }
        for row in c.0..ROWS {
            self.tiles[to][row] = [0; BYTES];
        }
    }
}

/// TDPBF16PS: two chains of fused products, then their sum, then C; denormals are zeros and results round to nearest,
/// whatever the thread's setting.
#[target_feature(enable = "avx512f")]
unsafe fn bf16_sums(c: &mut [u8; BYTES], a: &[u8; BYTES], b: &Tile, pairs: usize) {
    use std::arch::x86_64::*;
    // SAFETY: rows hold 64 bytes. The handler has its own control register, which is restored when it returns.
    unsafe {
        let control = 0x9fc0u32;
        std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack, preserves_flags));
        let mut chains = [_mm512_setzero_ps(); 2];
        for (pair, row) in b.iter().enumerate().take(pairs) {
            let row = _mm512_loadu_si512(row.as_ptr().cast());
            let low = _mm512_castsi512_ps(_mm512_slli_epi32(row, 16));
            let high = _mm512_castsi512_ps(_mm512_and_si512(row, _mm512_set1_epi32(-1 << 16)));
            let of = |at: usize| _mm512_set1_ps(f32::from_le_bytes([0, 0, a[at], a[at + 1]]));
            chains[0] = _mm512_fmadd_ps(of(4 * pair), low, chains[0]);
            chains[1] = _mm512_fmadd_ps(of(4 * pair + 2), high, chains[1]);
        }
        let sum = _mm512_add_ps(chains[0], chains[1]);
        let to = c.as_mut_ptr().cast();
        _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), sum));
    }
}

/// TDPBSSD and its variants: sums of four products of bytes, without saturation.
unsafe fn byte_sums<const A: bool, const B: bool>(
    c: &mut [u8; BYTES],
    a: &[u8; BYTES],
    b: &Tile,
    fours: usize,
) {
    let wide = |byte: u8, signed: bool| if signed { i32::from(byte as i8) } else { i32::from(byte) };
    for (col, sum) in c.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let mut total = i32::from_le_bytes(*sum);
        for four in 0..fours {
            for byte in 0..4 {
                let products = wide(a[4 * four + byte], A) * wide(b[four][4 * col + byte], B);
                total = total.wrapping_add(products);
            }
        }
        *sum = total.to_le_bytes();
    }
}
