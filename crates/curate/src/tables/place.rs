//! Where the plans of whole tables run: in this process, or on a cluster.

use std::sync::Arc;

use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::prelude::{SessionConfig, SessionContext};

use super::functions;
use crate::error::Error;

/// What carries out the plans of whole tables. The results are the same bytes everywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TableEngine {
    /// This process.
    #[default]
    Embedded,
    /// The executors of a Ballista cluster. They, the scheduler and this process see the same files under the same paths.
    #[cfg(feature = "ballista")]
    Ballista {
        /// Address of the scheduler, `df://host:port`.
        scheduler: String,
    },
}

impl TableEngine {
    /// The cluster of this scheduler, `df://host:port`.
    ///
    /// # Errors
    /// Not such an address, or no server answers there.
    #[cfg(feature = "ballista")]
    pub fn ballista(scheduler: &str) -> Result<TableEngine, Error> {
        super::cluster::reach(scheduler)?;
        Ok(TableEngine::Ballista { scheduler: scheduler.to_owned() })
    }

    /// A context whose queries run there, with all functions. `config` says how work is cut; `environment` is for what runs
    /// in this process.
    ///
    /// # Errors
    /// A scheduler that does not answer.
    pub(crate) fn context(
        &self,
        config: SessionConfig,
        environment: Arc<RuntimeEnv>,
    ) -> Result<SessionContext, Error> {
        let context = match self {
            TableEngine::Embedded => SessionContext::new_with_config_rt(config, environment),
            #[cfg(feature = "ballista")]
            TableEngine::Ballista { scheduler } => super::cluster::connect(scheduler, config, environment)?,
        };
        functions().into_iter().for_each(|function| context.register_udf(function));
        Ok(context)
    }

    /// How often a query is tried. An executor that is lost takes finished results with it; the cluster repeats what a later
    /// stage needs, but not what only the client has yet to fetch.
    pub(crate) fn attempts(&self) -> usize {
        match self {
            TableEngine::Embedded => 1,
            #[cfg(feature = "ballista")]
            TableEngine::Ballista { .. } => 3,
        }
    }
}
