//! Declarations of weights, one per weight of a sub-layer: role, shape, split among ranks, names in files,
//! initialization, and whether it is a projection, which may be low-precision, adapted or quantized. Everything that
//! iterates over a model's weights (allocation, files, initialisation, low-precision GEMMs, costs) is a fold over a
//! [`Walk`].

mod cut;
mod declaration;
mod names;
mod params;
mod walk;

pub use cut::{Cut, InputSharing, Inside};
pub use declaration::{
    Begins, InFiles, Kind, Module, NormSpec, Parallel, Projection, StoredRows, Term, WeightSpec,
};
pub(crate) use declaration::{LABELS, SCORE};
pub use names::{CrossNames, EncoderNames, Experts, LatentNames, MoeNames, Names, Qkv, Up};
pub(crate) use params::NOWHERE;
pub use params::{AdapterParams, DistanceParams, LastParams, LinearParams, NormParams, PrefixEncoder};
pub use walk::Walk;
pub(crate) use walk::{Adapts, See, Visit};
