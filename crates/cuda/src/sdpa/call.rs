//! The operands of a call of cuDNN's attention.

/// Arguments of an attention call in addition to its case.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Address of every tensor in memory, by number.
    pub tensors: &'a [(i64, u64)],
    /// Address of the engine's scratch.
    pub workspace: u64,
    /// Bytes of the scratch.
    pub workspace_bytes: u64,
    /// Scale of the scores.
    pub scale: f32,
    /// Reach of [`Case::window`](crate::sdpa::case::Case::window); unused if the case has none.
    pub window: usize,
}
