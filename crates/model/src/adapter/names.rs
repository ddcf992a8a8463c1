//! PEFT's names.

/// Prefix of every name.
pub(super) const BEFORE: &str = "base_model.model.";

/// Marker in the names of an adapted module's own weights.
pub(super) const INSIDE: &str = ".base_layer.";

/// `peft_type` of networks after sub-layers, which PEFT does not have.
pub(super) const NETWORKS: &str = "HOULSBY";
