//! Tests of whole indexes.
#![allow(clippy::unwrap_used)]

mod bed;
mod index;
mod killed;
mod ranking;
mod servers;
mod stores;
