//! Sizes of latent attention.

/// Sizes of latent attention; [`Spec::head_dim`] is the size of a key, the first rotary setting's columns are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Columns of the query latent; without one, queries are projected directly.
    pub query: Option<usize>,
    /// Columns of the key/value latent.
    pub key_value: usize,
    /// Columns of a head's value.
    pub value: usize,
}
