//! PEFT's names.

/// What stands before every name.
pub(super) const BEFORE: &str = "base_model.model.";

/// What stands in the names of an adapted module's own weights.
pub(super) const INSIDE: &str = ".base_layer.";

/// What files call networks behind sub-layers, which PEFT does not have.
pub(super) const NETWORKS: &str = "HOULSBY";
