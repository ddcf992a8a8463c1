//! Kinds of rails, one file each.

pub mod encodings;
pub mod hidden_text;
pub mod injection;
pub mod language;
pub mod length;
mod patterns;
pub mod personal_data;
pub mod rate;
pub mod regex;
pub mod secrets;
pub mod tools;
