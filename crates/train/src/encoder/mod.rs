//! Objectives of encoders: masked-language modelling, vectors that are compared within a step, and labels of texts and
//! pairs. Each is an [`Objective`](crate::Objective) like any other, over a model without a causal mask.

mod check;
mod contrast;
mod labels;
mod masked;
mod masking;

pub use check::check_encoder;
pub(crate) use contrast::keys as encoder_keys;
pub use contrast::{Contrast, Pooling};
pub use labels::{LabelLoss, LabelObjective};
pub use masked::MaskedObjective;
pub use masking::{MaskingRule, MaskingUnit};
