//! Weight files: safetensors, read and written as streams, and Hugging Face folders of them.

mod area;
mod convert;
mod folder;
mod header;
pub(crate) mod json;
mod load;
mod load_chunks;
mod mxfp4;
mod parts;
mod save;
mod sink;
mod source;
mod tied;
mod values;
mod writer;

pub use area::Area;
pub(crate) use convert::convert_into;
pub use folder::{FolderOptions, GenerationConfig, HfFolder, LeftOut, open, open_config, save_hf};
pub use header::{Header, Stored, fuzz_safetensors, header_bytes, parse_header};
pub use load::{Coded, Slot, load, load_slots};
pub use save::{Export, SaveOptions, export_tensors, save};
pub use sink::Hurry;
pub use source::{INDEX, SINGLE, SafeTensors, Source, Stream, rank_file};
pub use values::read_f32;
pub use writer::{FileWriter, FolderWriter, TensorInfo, Wholes, write_file, write_private};
