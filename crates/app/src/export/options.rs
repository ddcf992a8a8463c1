//! Options of a conversion, its formats, and its summary.

use std::path::PathBuf;

use fathom_model::{GgufType, QuantisedSave};
use fathom_tensor::DType;
use fathom_tensor::ggml::Kind;
use fathom_train::recipe::{Precision, QatName, QuantizationName};

/// Source, destination and format of a conversion.
#[derive(Clone, Debug)]
pub struct Conversion {
    /// Folder of a run, a checkpoint or a Hugging Face model.
    pub from: PathBuf,
    /// Hugging Face folder or GGUF file to write.
    pub to: PathBuf,
    /// Type of the GGUF file to write; `None` for a folder.
    pub gguf: Option<GgufType>,
    /// Type of the weights; `None` keeps the stored one.
    pub precision: Option<Precision>,
    /// Quantization of projections as bitsandbytes stores them; `None` for none.
    pub quantised: Option<QuantisedSave>,
    /// Maximum size of one file, in bytes.
    pub max_shard_bytes: u64,
    /// Writes only the adapter of a run.
    pub adapter: bool,
    /// Adapters to merge into a Hugging Face model, with their weights.
    pub with: Vec<(PathBuf, f32)>,
}

fathom_base::choice! {
    /// Format that a model is written in.
    pub enum Format {
        /// A Hugging Face folder.
        Huggingface = "huggingface",
        /// A file for llama.cpp.
        Gguf = "gguf",
    }
}

fathom_base::choice! {
    /// How the matrices of a GGUF file are stored.
    pub enum GgufName {
        /// bf16.
        Bf16 = "bf16",
        /// f16.
        F16 = "f16",
        /// f32.
        F32 = "f32",
        /// 8 bits, blocks of 32.
        Q8_0 = "q8_0",
        /// 4 bits, blocks of 32.
        Q4_0 = "q4_0",
        /// 4 bits, blocks of 32 with an offset.
        Q4_1 = "q4_1",
        /// 5 bits, blocks of 32.
        Q5_0 = "q5_0",
        /// 5 bits, blocks of 32 with an offset.
        Q5_1 = "q5_1",
        /// llama.cpp's mixture of 4 and 6 bits.
        Q4KM = "q4_k_m",
        /// llama.cpp's mixture of 5 and 6 bits.
        Q5KM = "q5_k_m",
        /// 6 bits.
        Q6K = "q6_k",
    }
}

fathom_base::choice! {
    /// Formats of few bits.
    pub enum Target {
        /// A .gguf file: 8 bits, blocks of 32.
        Q8_0 = "q8_0",
        /// A .gguf file: 4 bits, blocks of 32.
        Q4_0 = "q4_0",
        /// A .gguf file: 4 bits, blocks of 32 with an offset.
        Q4_1 = "q4_1",
        /// A .gguf file: 5 bits, blocks of 32.
        Q5_0 = "q5_0",
        /// A .gguf file: 5 bits, blocks of 32 with an offset.
        Q5_1 = "q5_1",
        /// A .gguf file: llama.cpp's mixture of 4 and 6 bits.
        Q4KM = "q4_k_m",
        /// A .gguf file: llama.cpp's mixture of 5 and 6 bits.
        Q5KM = "q5_k_m",
        /// A .gguf file: 6 bits.
        Q6K = "q6_k",
        /// A folder as bitsandbytes has it: 8 bits, a scale a row.
        Int8 = "int8",
        /// A folder as bitsandbytes has it: 4 bits, blocks of 64.
        Nf4 = "nf4",
        /// A folder as compressed-tensors has it: 4 bits, groups of 128, to nearest.
        Int4 = "int4",
        /// A folder as compressed-tensors has it: 4 bits (e2m1), blocks of 32 under a power of two, to nearest.
        Mxfp4 = "mxfp4",
        /// A folder as compressed-tensors has it: 4 bits (e2m1), blocks of 16 under a number of e4m3, to nearest.
        Nvfp4 = "nvfp4",
        /// A folder as compressed-tensors has it: FP8 (e4m3), a scale a row.
        Fp8 = "fp8",
        /// A folder as GPTQ leaves it: 4 bits by groups, judged by --data.
        Gptq = "gptq",
        /// A folder as AWQ leaves it: 4 bits by groups, judged by --data.
        Awq = "awq",
    }
}

impl Target {
    /// Returns whether [`crate::quantize`] makes this format; the others are converted tensor by tensor.
    pub fn is_coded(self) -> bool {
        use Target::{Awq, Fp8, Gptq, Int4, Mxfp4, Nvfp4};
        matches!(self, Int4 | Mxfp4 | Nvfp4 | Fp8 | Gptq | Awq)
    }

    /// Returns the conversion to a format that is not [`Target::is_coded`].
    pub fn conversion(self, from: PathBuf, to: PathBuf) -> Conversion {
        let gguf = match self {
            Target::Q8_0 => Some(GgufName::Q8_0),
            Target::Q4_0 => Some(GgufName::Q4_0),
            Target::Q4_1 => Some(GgufName::Q4_1),
            Target::Q5_0 => Some(GgufName::Q5_0),
            Target::Q5_1 => Some(GgufName::Q5_1),
            Target::Q4KM => Some(GgufName::Q4KM),
            Target::Q5KM => Some(GgufName::Q5KM),
            Target::Q6K => Some(GgufName::Q6K),
            _ => None,
        };
        let quantised = match self {
            Target::Int8 => Conversion::quantised(QuantizationName::Int8, false),
            Target::Nf4 => Conversion::quantised(QuantizationName::Nf4, true),
            _ => None,
        };
        let gguf = gguf.map(GgufName::kind);
        Conversion {
            from,
            to,
            gguf,
            precision: None,
            quantised,
            max_shard_bytes: 5_000_000_000,
            adapter: false,
            with: Vec::new(),
        }
    }
}

impl GgufName {
    /// Returns the type of this name.
    pub fn kind(self) -> GgufType {
        let found = GgufType::ALL.iter().find(|(name, _)| self.to_string() == *name);
        found.map_or(GgufType::Plain(Kind::Bf16), |(_, kind)| *kind)
    }
}

impl Conversion {
    /// Returns the format of projections; `double` stores NF4's scales in eight bits.
    pub fn quantised(name: QuantizationName, double: bool) -> Option<QuantisedSave> {
        name.format().map(|format| QuantisedSave { format, double })
    }

    /// Returns whether this writes a Hugging Face folder with the weights as stored.
    pub(crate) fn is_plain(&self) -> bool {
        let as_they_are = self.precision.is_none() && self.quantised.is_none();
        as_they_are && self.gguf.is_none() && !self.adapter && self.with.is_empty()
    }
}

/// Summary of a conversion.
#[derive(Clone, Debug)]
pub struct ConversionSummary {
    /// Family of the model.
    pub family: String,
    /// Number of weights.
    pub weights: u64,
    /// Type of the weights.
    pub dtype: DType,
    /// Format that projections were rounded to, which is the one that the exported run was trained with.
    pub rounded: QatName,
    /// Projections are quantized, and the model's experts are not.
    pub whole_experts: bool,
}
