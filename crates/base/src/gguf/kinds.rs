//! Types of tensors in GGUF files.

/// How a tensor's elements are stored: numbers, or blocks of codes with their scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Numbers of 32 bits.
    F32,
    /// IEEE's numbers of 16 bits.
    F16,
    /// The upper half of f32.
    Bf16,
    /// Blocks of 32 in 8 bits.
    Q8_0,
    /// Blocks of 32 in 4 bits.
    Q4_0,
    /// The same with an offset.
    Q4_1,
    /// Blocks of 32 in 5 bits.
    Q5_0,
    /// The same with an offset.
    Q5_1,
    /// Blocks of 256 in 4 bits, with scales and offsets of each 32.
    Q4K,
    /// Blocks of 256 in 5 bits, with scales and offsets of each 32.
    Q5K,
    /// Blocks of 256 in 6 bits, with scales of each 16.
    Q6K,
}

/// Types that others use and that are not read.
const OTHERS: [(u32, &str); 23] = [
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 11] = [
        Kind::F32,
        Kind::F16,
        Kind::Bf16,
        Kind::Q8_0,
        Kind::Q4_0,
        Kind::Q4_1,
        Kind::Q5_0,
        Kind::Q5_1,
        Kind::Q4K,
        Kind::Q5K,
        Kind::Q6K,
    ];

    /// The type with this number in files.
    ///
    /// # Errors
    /// In words: that it is not supported.
    pub fn of(code: u32) -> Result<Kind, String> {
        Kind::ALL.into_iter().find(|kind| kind.code() == code).ok_or_else(|| {
            let known = Kind::ALL.map(Kind::name).join(", ");
            match OTHERS.iter().find(|(other, _)| *other == code) {
                Some((_, name)) => {
                    format!("is of the type {name}, which is not supported; supported: {known}")
                }
                None => format!("is of the unknown type {code}; supported: {known}"),
            }
        })
    }

    /// Its number in files.
    pub fn code(self) -> u32 {
        self.row().0
    }

    /// ggml's name.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Elements of a block; one of numbers.
    pub fn block(self) -> usize {
        self.row().2
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.row().3
    }

    /// All four.
    fn row(self) -> (u32, &'static str, usize, usize) {
        match self {
            Kind::F32 => (0, "F32", 1, 4),
            Kind::F16 => (1, "F16", 1, 2),
            Kind::Q4_0 => (2, "Q4_0", 32, 18),
            Kind::Q4_1 => (3, "Q4_1", 32, 20),
            Kind::Q5_0 => (6, "Q5_0", 32, 22),
            Kind::Q5_1 => (7, "Q5_1", 32, 24),
            Kind::Q8_0 => (8, "Q8_0", 32, 34),
            Kind::Q4K => (12, "Q4_K", 256, 144),
            Kind::Q5K => (13, "Q5_K", 256, 176),
            Kind::Q6K => (14, "Q6_K", 256, 210),
            Kind::Bf16 => (30, "BF16", 1, 2),
        }
    }

    /// Bytes of so many elements, which are whole blocks.
    pub fn bytes(self, elements: usize) -> usize {
        elements / self.block() * self.block_bytes()
    }
}
