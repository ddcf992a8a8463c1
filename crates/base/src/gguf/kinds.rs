//! Tensor types of GGUF files.

/// Storage of a tensor's elements: plain numbers, or blocks of quantized codes with scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// 32-bit floating-point numbers.
    F32,
    /// IEEE 16-bit floating-point numbers.
    F16,
    /// bfloat16, the upper half of f32.
    Bf16,
    /// Blocks of 32 with 8 bits per element.
    Q8_0,
    /// Blocks of 32 with 4 bits per element.
    Q4_0,
    /// Like `Q4_0`, with an offset.
    Q4_1,
    /// Blocks of 32 with 5 bits per element.
    Q5_0,
    /// Like `Q5_0`, with an offset.
    Q5_1,
    /// Blocks of 256 with 4 bits per element, and a scale and offset per 32.
    Q4K,
    /// Blocks of 256 with 5 bits per element, and a scale and offset per 32.
    Q5K,
    /// Blocks of 256 with 6 bits per element, and a scale per 16.
    Q6K,
}

/// Types in use elsewhere that are not supported.
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
    /// All supported types.
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

    /// Type with this code.
    ///
    /// # Errors
    /// A message that the type is not supported.
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

    /// Code used in files.
    pub fn code(self) -> u32 {
        self.row().0
    }

    /// Name used by ggml.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Elements per block; 1 for plain numbers.
    pub fn block(self) -> usize {
        self.row().2
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        self.row().3
    }

    /// Code, name, elements and bytes of a block.
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

    /// Bytes of this many elements, which must be whole blocks.
    pub fn bytes(self, elements: usize) -> usize {
        elements / self.block() * self.block_bytes()
    }
}
