//! A configuration in force, with everything that outlives a request: counters, the audit log, and the threads that
//! have been judged. A reload replaces the configuration as a whole.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use crate::audit::Audit;
use crate::config::{Config, ConfigError};
use crate::engine::{Engine, Outcome, Subject};
use crate::ledger::Ledgers;
use crate::metrics::Metrics;
use crate::needs::Needs;
use crate::prompt::JudgedText;
use crate::rail::Context;
use crate::threads::JudgedMessages;
use crate::verdict::{Direction, Verdict};

/// A configuration in force.
pub struct Guard {
    state: RwLock<Arc<Engine>>,
    metrics: Arc<Metrics>,
    audit: Option<Audit>,
    pub(crate) seen: JudgedMessages,
    pub(crate) ledgers: Ledgers,
    needs: Needs,
}

impl Guard {
    /// Puts a configuration into force.
    ///
    /// # Errors
    /// Its audit log cannot be opened.
    pub fn new(config: Config, needs: &Needs) -> Result<Guard, ConfigError> {
        let audit = config.settings.audit.as_ref().map(|it| Audit::open(it, &config.folder)).transpose()?;
        config.warnings.iter().for_each(|warning| log::warn!("guard {}: {warning}", config.id));
        let metrics = Arc::new(Metrics::default());
        let engine = Engine::new(Arc::new(config), needs.clock.clone(), metrics.clone());
        let (seen, ledgers) = (JudgedMessages::new(needs.clock.clone()), Ledgers::new(needs.clock.clone()));
        Ok(Guard {
            state: RwLock::new(Arc::new(engine)),
            metrics,
            audit,
            seen,
            ledgers,
            needs: needs.clone(),
        })
    }

    /// Loads the configuration of a folder and puts it into force.
    ///
    /// # Errors
    /// Those of [`Config::load`] and [`Guard::new`].
    pub fn load(folder: &Path, needs: &Needs) -> Result<Guard, ConfigError> {
        Guard::new(Config::load(folder, needs)?, needs)
    }

    /// Loads the configuration's folder again. Running requests keep the configuration with which they began; the
    /// settings of the audit log stay as they were.
    ///
    /// # Errors
    /// Those of [`Config::load`]; the old configuration then stays in force.
    pub fn reload(&self) -> Result<(), ConfigError> {
        let folder = self.engine().config().folder.clone();
        let config = Config::load(&folder, &self.needs)?;
        config.warnings.iter().for_each(|warning| log::warn!("guard {}: {warning}", config.id));
        let engine = Engine::new(Arc::new(config), self.needs.clock.clone(), self.metrics.clone());
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(engine);
        Ok(())
    }

    /// The rails in force. A request takes them once and uses nothing else.
    pub fn engine(&self) -> Arc<Engine> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counters since the start.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Why the guard lets nothing pass, if its log cannot be written.
    pub fn broken(&self) -> Option<String> {
        self.audit.as_ref().and_then(Audit::broken)
    }

    /// Judges a retrieved passage before a model reads it, and records the judgement. `None` if the audit log cannot be
    /// written, and the passage must not be read.
    pub fn passage(&self, text: &str) -> Option<Outcome> {
        let (engine, context) = (self.engine(), Arc::new(Context::default()));
        let outcome = engine.judge(text, &Subject::new(Direction::Retrieval, context.clone()));
        let judged = (text, Direction::Retrieval);
        self.recorded(&engine, &context, judged, &outcome.verdicts).then_some(outcome)
    }

    /// Writes a judged text to the audit log; returns whether the text may pass.
    pub(crate) fn record(&self, engine: &Engine, context: &Context, judged: &JudgedText) -> bool {
        self.recorded(engine, context, (&judged.text, judged.direction), &judged.verdicts)
    }

    /// Writes a judged text to the audit log; returns whether the text may pass.
    pub(crate) fn recorded(
        &self,
        engine: &Engine,
        context: &Context,
        (text, direction): (&str, Direction),
        verdicts: &[Verdict],
    ) -> bool {
        let Some(audit) = &self.audit else { return true };
        let circumstances = (context, engine.config().hash.as_str(), &engine.degraded()[..]);
        audit.record(text, direction, verdicts, circumstances).is_ok()
    }
}
