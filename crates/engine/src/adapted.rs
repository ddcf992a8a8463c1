//! A base with an adapter over its weights.

use std::rc::{Rc, Weak};

use fathom_grad::{Params, Terms};
use fathom_model::Model;

/// The base with an adapter.
pub(crate) struct AdaptedModel {
    /// The model, which shares weights with its base.
    pub model: Model,
    /// Its weights.
    pub params: Params,
    /// Its terms at the base's projections, if it does nothing else.
    pub terms: Option<Rc<Terms>>,
    /// The hash of the adapter's files.
    pub identity: String,
}

/// A loaded adapter, with its name.
pub(crate) struct LoadedAdapter(pub String, pub AdaptedModel);

/// An adapter whose name was removed; gone when its last request has ended.
pub(crate) type AdapterRef = Weak<AdaptedModel>;
