//! Weight files: safetensors, read and written as streams, and Hugging Face folders of them; GGUF files.

mod area;
mod bitsandbytes;
mod chunk;
mod coder;
mod convert;
mod few_bits;
mod folder;
mod fours;
mod generation;
mod gguf;
mod header;
mod joined;
pub(crate) mod json;
mod load;
mod load_blocked;
mod load_chunks;
mod load_packed;
mod nested;
mod parts;
mod quantized;
mod resaved;
mod safetensors;
mod save;
mod save_quantised;
mod scored;
mod shards;
mod sink;
mod slot;
mod source;
mod stream;
mod table;
mod tied;
mod values;
mod writer;

pub use area::Area;
pub(crate) use area::of_stack;
pub(crate) use coder::compressed_config;
pub use coder::{Coder, Fp8Save};
pub(crate) use convert::convert_into;
pub use folder::{
    FolderOptions, HfFolder, LeftOut, open, open_any, open_any_config, open_config, open_writer,
    open_writer_config, save_hf,
};
pub use fours::{group_of, save_hf_rounded};
pub use generation::GenerationConfig;
pub use gguf::{GgufType, save_gguf};
pub use header::{Header, TensorEntry, fuzz_safetensors, header_bytes, parse_header};
pub(crate) use json::read_object;
pub use load::{load, load_slots};
pub use quantized::QuantizedTensor;
pub use save::{Export, SaveOptions, export_tensors, save};
pub(crate) use save_quantised::is_projection;
pub use save_quantised::{BlockTensor, QuantisedSave, block_tensors, save_hf_coded, save_hf_quantised};
pub(crate) use scored::SCORE;
pub use scored::WithRandomTensor;
pub use sink::Hurry;
pub use slot::{CodeScales, Slot};
pub use source::{INDEX, SINGLE, Source, Stream, rank_file};
pub use table::SafeTensors;
pub use values::read_f32;
pub use writer::{FileWriter, FolderWriter, TensorInfo, Wholes, write_file, write_private};
