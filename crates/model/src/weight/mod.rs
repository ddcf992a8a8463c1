//! What a model says of each of its weights, once: its role, its shape, how ranks cut it, what files call it, how it begins,
//! and whether it is a projection, which may be low-precision, adapted or quantized. Whatever looks at a model's weights
//! (declaring, files, initialisation, low-precision GEMMs, costs) is a fold over a [`Walk`].

mod cut;
mod declaration;
mod names;
mod params;
mod walk;

pub use cut::{Cut, Inside, Seen};
pub(crate) use declaration::SCORE;
pub use declaration::{Begins, InFiles, Kind, Module, Normed, Parallel, Projection, Term, WeightSpec};
pub use names::{EncoderNames, Experts, LatentNames, MoeNames, Names, Qkv, Up};
pub(crate) use params::NOWHERE;
pub use params::{AdapterParams, DistanceParams, LastParams, LinearParams, NormParams, PrefixEncoder};
pub use walk::Walk;
pub(crate) use walk::{Adapts, See, Visit};
