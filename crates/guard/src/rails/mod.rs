//! Kinds of rails, one file each.

pub mod classifier;
pub mod content_safety;
pub mod dialog;
pub mod encodings;
pub mod facts;
pub mod hallucination;
pub mod hidden_text;
pub mod injection;
pub mod jailbreak;
mod judging;
pub mod language;
pub mod length;
mod partial;
mod patterns;
pub mod personal_data;
pub mod rate;
pub mod regex;
mod safety;
pub mod secrets;
pub mod self_check;
pub mod tools;
pub mod topic;

pub(crate) use judging::message_text;
pub(crate) use regex::parsed as parsed_pattern;
