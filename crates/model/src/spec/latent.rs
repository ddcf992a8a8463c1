//! Sizes of latent attention.

/// Sizes of latent attention; [`Spec::head_dim`] is the size of a key, the first rotary setting's columns are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Columns of the queries' latent; they are projected directly without.
    pub query: Option<usize>,
    /// Columns of the latent of keys and values.
    pub key_value: usize,
    /// Columns of a head's value.
    pub value: usize,
}
