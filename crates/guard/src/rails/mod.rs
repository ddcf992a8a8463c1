//! Kinds of rails, one file each.

pub mod classifier;
pub mod content_safety;
pub mod dialog;
pub mod facts;
pub mod hallucination;
pub mod jailbreak;
mod judging;
pub(crate) use judging::message_text;
pub mod regex;
mod safety;
pub mod self_check;
pub mod topic;
