//! A model as data: its sizes, its layers, its experts, its adapter, and which of its weights are trained.

mod adapter;
mod architecture;
mod check;
mod encoder;
mod latent;
mod moe;
mod parts;
mod quantized;
mod retrieval;
mod rounding;
mod trained;

pub use adapter::{Adapter, AdapterMethod, PromptEncoder, Size};
pub use architecture::{
    Family, LayerSpec, Own, Part, PartKind, Spec, Stack, StateSpec, SubLayer, SubLayerParams, scored_at,
};
pub(crate) use check::head_columns_refused;
pub use encoder::{EncoderHead, EncoderParts, Relative};
pub use latent::Latent;
pub use moe::{Drops, ExpertCapacity, Moe, SharedExperts};
pub use parts::{
    Biases, Factors, Mlp, PositionBias, QkNorm, RankExchange, Reach, Residual, Retrieval, Sharers,
    SplitDimension, StateProjections, slopes,
};
pub use quantized::Quantization;
pub use rounding::RoundTo;
pub use trained::TrainableWeights;
