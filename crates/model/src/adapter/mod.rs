//! Adapters as data: method, modules and sizes. A specification with an adapter declares the adapter's weights next
//! to those of each projection, so names in files, sharding, initialization, plans and checkpoints follow.
//!
//! Names in files are PEFT's without `base_model.model.`: an adapter applies to a projection as files name it
//! (`q_proj`), even where the model fuses several into one weight.

mod apply;
mod begin;
mod card;
mod config;
mod declare;
mod experts;
mod houlsby;
mod leading;
mod lstm;
mod merge;
mod names;
mod off;
mod peft;
mod read;
mod saved;
mod share;
mod singular;
mod tables;
mod targets;
mod tensors;
mod turned;
mod virtual_tokens;
mod weights;

pub use begin::{adapt, begin_as, load_adapted};
pub use card::in_python;
pub(crate) use experts::declare_experts;
pub use houlsby::HoulsbyParams;
pub use leading::{PrefixParams, PromptParams};
pub(crate) use leading::{declare_prefix, led};
pub use merge::merge;
pub use peft::{SavedAdapter, load_peft, open_peft, save_peft};
pub use share::{changes_base, fix_lengths, load_scores, share_base, share_untrained, shared_bytes};
pub(crate) use tables::head_term;
pub use tables::{EmbedTerm, TableParams};
pub use targets::Targets;
pub use tensors::PeftTensors;
