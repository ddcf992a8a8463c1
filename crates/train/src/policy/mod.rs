//! Learning from rewards: a policy writes answers, rewards score them, and training makes the good ones more likely.
//! The sampler uses the weights being trained, so every probability ratio is one until they change.
//!
//! [`advantages`] and [`Policy`] are the mathematics, in f64 on the host. [`Rollouts`] creates the sources of a run:
//! prompts, answers by an implementation of [`fathom_model::Rollout`], rewards of [`reward`] and [`rules`], documents
//! in micro-batches.

mod advantage;
pub mod apart;
pub(crate) mod check;
pub mod environment;
mod episode;
mod episodes;
mod importance;
mod judged;
mod judging;
mod kept;
mod loss;
pub mod pack;
mod planned;
mod policies;
mod replicas;
pub mod reward;
mod rollouts;
pub mod rules;
mod schema;
mod telling;
mod writing;

pub use advantage::{AdvantageName, RolloutRewards, advantages, gae, mean_and_deviation, overlong, whitened};
pub use episode::EpisodePlayer;
pub use importance::importance;
pub(crate) use judging::{declared, judging};
pub use loss::{Divergence, Entropies, Estimator, Level, Policy, Reduction, Surrogate, Values};
pub use planned::planned;
pub use policies::RolloutInputs;
pub use replicas::scores;
pub use rollouts::Rollouts;
