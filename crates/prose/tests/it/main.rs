//! Tests of text components through the public interface.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests too.

mod cleaning;
mod extraction;
mod filters;
mod hostile_pages;
mod language;
mod mutated;
mod national;
mod news;
mod pages;
mod pii;
mod pii_addresses;
