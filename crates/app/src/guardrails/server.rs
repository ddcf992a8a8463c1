//! Guardrails of a server: the configurations of a folder around every model, and judgements without one.

use std::path::Path;
use std::sync::Arc;

use fathom_base::Service;
use fathom_guard::checks::{self, CheckError};
use fathom_guard::{Cost, Guard, GuardedService, Guards, JournalParts, Needs, RailRun, Session};
use fathom_serve::{Fault, RailRecord, RailSpan, RailedModel, Rails, Screen, ScreenVerdict};
use serde_json::{Value, json};

use super::served::ServedModels;
use crate::error::{Error, Result};

/// The guardrails of a folder, and the models that they are around.
pub struct Guardrails {
    guards: Guards,
    /// Models as they are without rails.
    served: Arc<ServedModels>,
}

impl Guardrails {
    /// Loads `guard.toml` of a folder, or those of its subfolders.
    ///
    /// # Errors
    /// No configuration there, or one that is refused, with file and line.
    pub fn load(folder: &Path, needs: &Needs) -> Result<Guardrails> {
        let guards = Guards::load(folder, needs).map_err(|error| Error::Refused(error.to_string()))?;
        Ok(Guardrails { guards, served: Arc::default() })
    }

    /// These guardrails around the models of a server, which their rails may ask.
    pub(super) fn serving(self, served: Arc<ServedModels>) -> Guardrails {
        Guardrails { served, ..self }
    }

    /// Judges messages, as `/v1/checks` does.
    ///
    /// # Errors
    /// A malformed request; one that no rail judges; an audit log that cannot be written.
    pub fn judge(&self, request: &Value) -> Result<Value> {
        checks::check(&self.guards, &Session::default(), request)
            .map_err(|error| Error::Refused(error.to_string()))
    }

    /// Judges passages that are retrieved, by the configuration of requests that name none.
    pub fn screen(self: &Arc<Self>) -> Screen {
        let rails = self.clone();
        Arc::new(move |text| {
            let Some(outcome) = rails.guards.default().passage(text) else {
                return ScreenVerdict::Omitted("the audit log cannot be written".into());
            };
            match outcome.block() {
                Some(verdict) => {
                    ScreenVerdict::Omitted(format!("{}: {}", verdict.rail, verdict.reason.words()))
                }
                None if outcome.is_rewritten() => ScreenVerdict::Rewritten(outcome.text),
                None => ScreenVerdict::Passed,
            }
        })
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Guard>> {
        self.guards.all()
    }
}

/// Course of one request through the rails.
struct Record {
    config: String,
    session: Session,
}

impl RailRecord for Record {
    fn answer(&self) -> Option<Value> {
        let shown = self.session.shown?;
        let mut answer = json!({"config_id": self.config});
        if shown != JournalParts::default() {
            answer["log"] = self.session.journal.as_ref().map(|journal| journal.json(shown)).into();
        }
        Some(answer)
    }

    fn runs(&self) -> Vec<RailSpan> {
        let Some(journal) = &self.session.journal else { return Vec::new() };
        let calls = journal.calls();
        let span = |run: RailRun| RailSpan {
            direction: run.direction.name(),
            decisions: run.decisions.iter().map(|it| it.name().to_string()).collect(),
            stops: run.stops(),
            model_calls: calls.iter().filter(|call| call.rail == run.rail).count(),
            began: run.began,
            took: run.took,
            rail: run.rail,
        };
        journal.runs().into_iter().map(span).collect()
    }
}

fn fault(error: CheckError) -> Fault {
    match error {
        CheckError::Malformed(what) => Fault::bad(what).of("guardrails"),
        CheckError::Unprocessable(what) => Fault::unprocessable(what).of("guardrails"),
        CheckError::Unavailable(what) => Fault::unavailable(what),
    }
}

impl Rails for Guardrails {
    fn around(&self, model: &str, service: Arc<dyn Service>) -> Arc<dyn Service> {
        self.served.put(model, service.clone());
        Arc::new(GuardedService::new(service, self.guards.default().clone()))
    }

    fn for_request(
        &self,
        model: &str,
        options: Option<&Value>,
        key: &str,
    ) -> std::result::Result<RailedModel, Fault> {
        let key = (!key.is_empty()).then(|| key.to_string());
        let (guard, session) = checks::session(&self.guards, options, key).map_err(fault)?;
        let service =
            self.served.get(model).ok_or_else(|| Fault::ours(format!("no rails are around {model}")))?;
        let record = Record { config: guard.engine().config().id.clone(), session: session.clone() };
        let service = Arc::new(GuardedService::new(service, guard).of(session));
        Ok(RailedModel { service, record: Arc::new(record) })
    }

    fn asks_models(&self) -> bool {
        let asks = |guard: &Arc<Guard>| {
            guard.engine().config().rails.iter().any(|rail| rail.manifest.cost == Cost::Model)
        };
        self.all().any(asks)
    }

    fn check(&self, request: &Value, key: &str) -> std::result::Result<Value, Fault> {
        let key = (!key.is_empty()).then(|| key.to_string());
        checks::check(&self.guards, &Session { key, ..Session::default() }, request).map_err(fault)
    }

    fn configs(&self) -> Value {
        self.guards.list()
    }

    fn degraded(&self) -> Vec<String> {
        self.all().flat_map(|guard| guard.engine().degraded()).collect()
    }

    fn ready(&self) -> std::result::Result<(), String> {
        for guard in self.all() {
            if let Some(why) = guard.broken() {
                return Err(why);
            }
            let failed = |(rail, failure)| format!("the rail {rail} is not ready: {failure}");
            guard.engine().ready().map_err(failed)?;
        }
        Ok(())
    }

    fn metrics(&self) -> String {
        self.all().map(|guard| guard.metrics().prometheus()).collect()
    }

    fn reload(&self) -> std::result::Result<(), String> {
        self.all().try_for_each(|guard| guard.reload()).map_err(|error| error.to_string())
    }
}
