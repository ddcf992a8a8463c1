//! Draft model of a served model: a small model with the same vocabulary on the same device.

use std::path::Path;

use fathom_engine::{Engine, Limits, page_bytes};
use fathom_model::{HfFolder, Model, ModelView};
use fathom_tensor::{DType, Device, PageFormat};
use fathom_text::Tokenizer;

use super::order::Order;
use crate::error::{Context, Result, caught};
use crate::events::Silent;
use crate::models;
use fathom_model::LoadedModel;
use fathom_train::recipe::Precision;

/// A draft model, loaded or planned.
pub(super) struct Draft {
    loaded: LoadedModel,
    tokenizer: Tokenizer,
    /// Type of the weights, and of keys and values.
    dtype: DType,
}

impl Draft {
    /// Loads the requested draft model, if any.
    ///
    /// # Errors
    /// No model there; out of memory.
    pub fn load(device: &Device, order: &Order) -> Result<Option<Draft>> {
        Draft::made(order, |folder, dtype| {
            caught(|| models::load_stored(device, folder, Some(dtype), &Silent))
        })
    }

    /// Plans the requested draft model, if any, without data.
    ///
    /// # Errors
    /// No model there.
    pub fn planned(meta: &Device, order: &Order) -> Result<Option<Draft>> {
        Draft::made(order, |folder, dtype| {
            let opened = fathom_model::open(folder)?;
            let (model, params) = Model::declare_stored(meta, &opened.spec, dtype, &opened.source);
            Ok(LoadedModel { device: meta.clone(), model, params })
        })
    }

    fn made(order: &Order, load: impl FnOnce(&Path, DType) -> Result<LoadedModel>) -> Result<Option<Draft>> {
        let Some(path) = &order.settings.draft else { return Ok(None) };
        let what = || format!("the draft model {} (--draft)", path.display());
        let made = || -> Result<Draft> {
            let folder = models::model_folder(path)?;
            let HfFolder { spec, source, .. } = fathom_model::open(&folder)?;
            models::check_writes(&folder, &spec)?;
            let dtype = order.precision.map_or_else(|| models::stored_dtype(&source), Precision::dtype);
            let tokenizer = models::tokenizer(&folder)?;
            Ok(Draft { loaded: load(&folder, dtype)?, tokenizer, dtype })
        };
        made().map(Some).with_context(what)
    }

    /// Returns the bytes of a page for each page class.
    pub fn page_bytes(&self, kv: PageFormat) -> Vec<u64> {
        page_bytes(&self.loaded.model, self.dtype, kv)
    }

    /// Returns the draft model's engine for a served model with these limits.
    pub fn engine<'a>(&'a self, device: &'a Device, limits: Limits) -> Engine<'a> {
        let view = ModelView { device, ..self.loaded.view() };
        let context_tokens = limits.context_tokens.min(view.model.spec.max_positions);
        Engine::new(view, &self.tokenizer, Limits { context_tokens, ..limits })
    }
}
