//! Kinds of rails, one file each.

pub mod regex;
