//! MLflow's tracking server, by its REST protocol (`/api/2.0/mlflow`).

use std::path::PathBuf;

use fathom_base::recipe::Row;
use fathom_serve::bench::Target;
use serde_json::{Value, json};

use super::delivery::{Sample, Server as Delivers, post};
use crate::error::Result;
use crate::job::Job;
use crate::report::unix_s;

/// Experiment that runs belong to.
const EXPERIMENT: &str = "fathom";
/// Most metrics and parameters of a request, and letters of a parameter, that MLflow takes.
const METRICS: usize = 1000;
const PARAMS: usize = 100;
const LETTERS: usize = 500;
/// File that keeps the id of the run, which a resumed run goes on with.
const FILE: &str = "mlflow.json";

/// A run on a server.
pub(super) struct Server {
    target: Target,
    name: String,
    file: PathBuf,
    recipe: Vec<Row>,
    /// Address, kept with the id of a run, which is one server's own.
    address: String,
    run: Option<String>,
}

impl Server {
    /// Reads an address such as `http://localhost:5000`.
    ///
    /// # Errors
    /// An address that is not HTTP.
    pub fn new(job: &Job, address: &str) -> Result<Server> {
        let file = job.folder.join(FILE);
        let kept = std::fs::read(&file).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        let known = kept.filter(|kept| kept["server"] == address).and_then(|kept| text(&kept["run_id"]));
        Ok(Server {
            target: Target::parse(address)?,
            name: job.recipe().run.name.clone(),
            file,
            recipe: job.loaded.rows().to_vec(),
            address: address.into(),
            run: known,
        })
    }

    fn call(&self, what: &str, body: &Value) -> std::result::Result<Value, String> {
        post(&self.target, &format!("/api/2.0/mlflow/{what}"), body)
    }

    /// Id of the run, which is created once.
    fn run(&mut self) -> std::result::Result<String, String> {
        if let Some(run) = &self.run {
            return Ok(run.clone());
        }
        let filter = json!({ "filter": format!("name = '{EXPERIMENT}'"), "max_results": 1 });
        let found = self.call("experiments/search", &filter)?;
        let experiment = match text(&found["experiments"][0]["experiment_id"]) {
            Some(known) => known,
            None => {
                let made = self.call("experiments/create", &json!({ "name": EXPERIMENT }))?;
                text(&made["experiment_id"]).ok_or("it made no experiment")?
            }
        };
        let made = self.call(
            "runs/create",
            &json!({ "experiment_id": experiment, "run_name": self.name, "start_time": (unix_s() * 1e3) as u64 }),
        )?;
        let run = text(&made["run"]["info"]["run_id"]).ok_or("it made no run")?;
        for rows in self.recipe.chunks(PARAMS) {
            let value = |row: &Row| row.value.chars().take(LETTERS).collect::<String>();
            let params: Vec<Value> =
                rows.iter().map(|row| json!({ "key": row.path, "value": value(row) })).collect();
            self.call("runs/log-batch", &json!({ "run_id": run, "params": params }))?;
        }
        let kept = json!({ "server": self.address, "run_id": run }).to_string();
        fathom_base::files::write(&self.file, kept.as_bytes()).map_err(|error| error.to_string())?;
        self.run = Some(run.clone());
        Ok(run)
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_string)
}

impl Delivers for Server {
    fn deliver(&mut self, batch: &[Sample]) -> std::result::Result<(), String> {
        let run = self.run()?;
        let metric = |of: &Sample, (name, value): &(String, f64)| json!({ "key": name.replace(',', ""), "value": value, "timestamp": (of.wall_s * 1e3) as u64, "step": of.step });
        let metrics: Vec<Value> =
            batch.iter().flat_map(|of| of.finite().map(move |scalar| metric(of, scalar))).collect();
        for some in metrics.chunks(METRICS) {
            self.call("runs/log-batch", &json!({ "run_id": run, "metrics": some }))?;
        }
        Ok(())
    }

    fn finish(&mut self) -> std::result::Result<(), String> {
        let run = self.run()?;
        let end = json!({ "run_id": run, "status": "FINISHED", "end_time": (unix_s() * 1e3) as u64 });
        self.call("runs/update", &end).map(drop)
    }
}
