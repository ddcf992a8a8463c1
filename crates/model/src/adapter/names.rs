//! PEFT's names.

use crate::spec::{EncoderHead, Spec};

/// Prefix of every name.
pub(super) const BEFORE: &str = "base_model.model.";

/// Marker in the names of an adapted module's own weights.
pub(super) const INSIDE: &str = ".base_layer.";

/// Modules that PEFT trains and saves as a whole next to an adapter of a classifier.
pub(super) const HEADS: [&str; 2] = ["classifier", "score"];

/// `peft_type` of networks after sub-layers, which PEFT does not have.
pub(super) const NETWORKS: &str = "HOULSBY";

impl Spec {
    /// Returns whether it is an encoder without a head, whose modules have no prefix in Transformers.
    pub(super) fn is_bare(&self) -> bool {
        self.encoder.as_ref().is_some_and(|parts| parts.head == EncoderHead::None)
    }

    /// A module's name in Transformers.
    pub(super) fn module_name<'n>(&self, name: &'n str) -> &'n str {
        let base = self.family.names.base;
        Some(name).filter(|_| self.is_bare()).and_then(|name| name.strip_prefix(base)).unwrap_or(name)
    }

    /// A tensor's name in an adapter's file.
    pub(super) fn in_adapter(&self, name: &str) -> String {
        format!("{BEFORE}{}", self.module_name(name))
    }

    /// The model's name of a tensor in an adapter's file; `None` if PEFT has no such names.
    pub(super) fn name_in_model(&self, stored: &str) -> Option<String> {
        let (name, base) = (stored.strip_prefix(BEFORE)?, self.family.names.base);
        let lacks_base = self.is_bare() && !name.starts_with(base);
        Some(if lacks_base { format!("{base}{name}") } else { name.into() })
    }

    /// Returns whether a tensor of the base or its adapter is of a part that an encoder without a head does not use.
    pub(super) fn is_left_over(&self, name: &str) -> bool {
        let starts = self.family.names.ignored_starts;
        self.is_bare()
            && starts.iter().any(|start| name.starts_with(start) || self.module_name(name).starts_with(start))
    }
}
