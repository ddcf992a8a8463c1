//! Configurations by name: those of one folder, whose `guard.toml` or whose subfolders are configurations.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::config::{ConfigError, FILE};
use crate::guard::Guard;
use crate::needs::Needs;

/// Configurations by name.
#[derive(Clone)]
pub struct Guards {
    all: BTreeMap<String, Arc<Guard>>,
    /// Name of the one that is used if a request names none.
    default: String,
}

impl Guards {
    /// A single configuration.
    pub fn of(guard: Arc<Guard>) -> Guards {
        let id = guard.engine().config().id.clone();
        Guards { all: BTreeMap::from([(id.clone(), guard)]), default: id }
    }

    /// Loads `guard.toml` of a folder, or those of its subfolders.
    ///
    /// # Errors
    /// A configuration that cannot be loaded, or a folder without any.
    pub fn load(folder: &Path, needs: &Needs) -> Result<Guards, ConfigError> {
        if folder.join(FILE).exists() || folder.is_file() {
            return Ok(Guards::of(Arc::new(Guard::load(folder, needs)?)));
        }
        let entries =
            std::fs::read_dir(folder).map_err(|error| fathom_base::Error::io("read", folder, error))?;
        let mut all = BTreeMap::new();
        for entry in entries.filter_map(Result::ok) {
            if entry.path().join(FILE).exists() {
                let guard = Guard::load(&entry.path(), needs)?;
                all.insert(guard.engine().config().id.clone(), Arc::new(guard));
            }
        }
        let Some(default) = all.keys().next().cloned() else {
            let what = format!("{} has no {FILE}, and none of its subfolders has one", folder.display());
            return Err(fathom_base::Error::Missing { what }.into());
        };
        Ok(Guards { all, default })
    }

    /// The configuration of this name, or the first if none is given.
    pub fn get(&self, id: Option<&str>) -> Option<&Arc<Guard>> {
        self.all.get(id.unwrap_or(&self.default))
    }

    /// The configuration of requests that name none.
    pub fn default(&self) -> &Arc<Guard> {
        &self.all[&self.default]
    }

    /// Names of all configurations.
    pub fn ids(&self) -> Vec<&str> {
        self.all.keys().map(String::as_str).collect()
    }

    /// All configurations.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Guard>> {
        self.all.values()
    }

    /// Answer of `/v1/rails/configs`.
    pub fn list(&self) -> Value {
        let one = |guard: &Arc<Guard>| {
            let engine = guard.engine();
            let config = engine.config();
            let rail = |rail: &crate::ConfiguredRail| {
                let on: Vec<&str> = rail.setting.on.iter().map(|it| it.name()).collect();
                json!({"name": rail.setting.name, "use": rail.manifest.name, "on": on, "action": rail.setting.action})
            };
            let rails: Vec<Value> = config.rails.iter().map(rail).collect();
            json!({"id": config.id, "rails": rails, "degraded": engine.degraded()})
        };
        self.all.values().map(one).collect()
    }
}
