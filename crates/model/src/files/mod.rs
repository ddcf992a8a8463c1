//! Weight files: safetensors, read and written as streams, and Hugging Face folders of them.

mod convert;
mod folder;
mod header;
pub(crate) mod json;
mod load;
mod load_chunks;
mod mxfp4;
mod save;
mod source;
mod values;
mod writer;

pub(crate) use convert::convert;
pub use folder::{FolderOptions, HfFolder, SpecialIds, open, open_config, save_hf};
pub use header::{Header, Stored, fuzz_safetensors, header_bytes, parse_header};
pub use load::load;
pub use save::{Export, SaveOptions, export_tensors, save};
pub use source::{INDEX, SINGLE, SafeTensors, Source, Stream};
pub use values::read_f32;
pub use writer::{FileWriter, FolderWriter, TensorInfo, write_file};
