//! The training step and its plan.
#![allow(clippy::unwrap_used)]

mod adapters;
mod adapters_wide;
mod again;
mod budgets;
mod checkpoint;
mod configs;
mod distill;
mod draft;
mod encoders;
mod experts;
mod frozen;
mod leading;
mod mesh;
mod mesh_experts;
mod mesh_families;
mod mesh_mixers;
mod mesh_optimizers;
mod mesh_plan;
mod mesh_streams;
mod narrow;
mod nemo;
mod noise;
mod objective;
mod plan;
mod plan_whole;
mod preference;
mod published;
mod quantised;
#[path = "../../../model/tests/families/recurrent.rs"]
mod recurrent;
mod retrieval;
mod rewards;
mod rounded;
mod seq2seq;
mod several;
mod sft;
mod solve_mesh;
mod state;
mod step;
#[path = "../../../model/tests/families/streams.rs"]
mod streams;
mod survive;
mod terms;
mod timed;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

/// Cache of results that many tests compare with, computed once per key.
struct ResultCache<T>(Mutex<BTreeMap<String, Arc<OnceLock<T>>>>);

impl<T: Clone> ResultCache<T> {
    const fn new() -> ResultCache<T> {
        ResultCache(Mutex::new(BTreeMap::new()))
    }

    /// The cached result, computed by `make` if missing. Others with the same key wait for it, those with other keys do
    /// not.
    fn get(&self, key: String, make: impl FnOnce() -> T) -> T {
        let place = self.0.lock().unwrap().entry(key).or_default().clone();
        place.get_or_init(make).clone()
    }
}
