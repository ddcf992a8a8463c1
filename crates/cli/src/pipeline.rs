//! The main job: text to tokens, stages of training with measurements between them, a Hugging Face folder and a report.
//! Every phase leaves its result in the run's folder, so running again resumes.

mod closing;
mod corpus;
mod export;
mod time;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use fathom_base::machine_facts::MachineFacts;
use fathom_base::metrics::{Event, MetricsWriter, events, read_events};
use fathom_base::recipe::Recipe as Loaded;
use fathom_base::rss;
use fathom_model::{Spec, open_config};
use fathom_report::tensorboard::EventFile;
use fathom_tensor::Device;
use fathom_text::Tokenizer;
use fathom_text::store::Store;
use fathom_train::recipe::Recipe;
use fathom_train::{
    Checkpoints, Draft, Outcome, Parts, Run, Stores, Trainer, check_places, new_model, stage, train_experts,
};

use crate::crew::Crew;
use crate::live::Live;
use crate::measure::{OnDevice, Subject, sample};
use crate::{commands, describe, device, folder, ranks};
use time::Ahead;
use watch::{BEFORE, Watch, if_there_is_room};

pub use export::generation;

/// The specification that a recipe starts from.
pub fn spec(recipe: &Recipe) -> Result<Spec> {
    let mut spec = match &recipe.model.from {
        Some(folder) => open_config(&device::model_folder(folder)?)?.0,
        None => new_model(recipe)?,
    };
    train_experts(recipe, &mut spec)?;
    Ok(spec)
}

/// A run in progress.
struct Job<'a> {
    recipe: &'a Recipe,
    loaded: &'a Loaded<Recipe>,
    folder: PathBuf,
    begun: Instant,
    live: Live,
    /// Shows the run while it goes on.
    tensorboard: Option<EventFile>,
    /// FLOPs of a step of each stage, as planned.
    flops: Vec<f64>,
}

/// Runs a recipe to its end, or until `stop` is set.
pub fn run(loaded: &Loaded<Recipe>, command: &str, stop: &Arc<AtomicBool>, crew: &Crew) -> Result<Outcome> {
    if crew.is_first() {
        crew.lead(|| lead(loaded, command, stop, crew))
    } else {
        ranks::follow_first(&loaded.value, stop, crew)
    }
}

/// The part of the first of several processes, or of the only one.
fn lead(loaded: &Loaded<Recipe>, command: &str, stop: &Arc<AtomicBool>, crew: &Crew) -> Result<Outcome> {
    let recipe = &loaded.value;
    let folder = recipe.run.out.clone();
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let (begun, live) = (Instant::now(), Live::new());
    let mut job = Job { recipe, loaded, folder, begun, live, tensorboard: None, flops: Vec::new() };
    let _claimed = folder::claim(&job.folder, &job.live)?;
    folder::same_recipe(&job.folder, loaded)?;
    if job.is_done()? {
        job.page_if_missing()?;
        job.live.say(&format!(
            "{} is finished already; its report is {}",
            job.folder.display(),
            job.page().display()
        ));
        crew.nothing_to_do();
        return Ok(Outcome::Finished);
    }
    let mut metrics = MetricsWriter::open(job.log())?;
    job.input()?;
    job.check_tokenizer()?;
    job.flops = job.fits(crew)?;
    job.begin(command, &mut metrics)?;
    let Some(corpus) = job.corpus(&mut metrics, stop)? else {
        job.live.say("asked to stop while the text was curated; run the same command again to go on");
        crew.interrupted();
        return Ok(Outcome::Interrupted);
    };
    job.check_export()?;
    crew.ready();
    job.train(metrics, corpus, stop, crew)
}

impl Job<'_> {
    fn log(&self) -> PathBuf {
        self.folder.join("metrics.jsonl")
    }

    fn page(&self) -> PathBuf {
        self.folder.join("report.html")
    }

    /// The report of a run that was killed between its last event and its page.
    fn page_if_missing(&self) -> Result<()> {
        if self.page().exists() {
            Ok(())
        } else {
            commands::report::write(&self.folder, &self.page()).map(drop)
        }
    }

    /// Whether all that the recipe asks for is done: more steps may have come to it since.
    fn is_done(&self) -> Result<bool> {
        let events = read_events(self.log()).unwrap_or_default();
        if !events.iter().any(|event| matches!(Event::from_value(event), Some(Event::Done(_)))) {
            return Ok(false);
        }
        // A run is done also where its checkpoints were removed to save room.
        let found = Checkpoints::new(&self.folder.join("checkpoints"), 1).found().unwrap_or_default();
        Ok(!found.is_some_and(|found| found.progress().has_more(self.recipe)))
    }

    fn begin(&self, command: &str, metrics: &mut MetricsWriter) -> Result<()> {
        let short = describe::short(self.recipe).unwrap_or_default();
        if !short.is_empty() {
            self.live.say(&format!("note: {short}"));
        }
        if !read_events(self.log())?.is_empty() {
            return Ok(());
        }
        metrics.write(&Event::Run(events::Run { short, ..run_event(self.loaded, command) }))?;
        Ok(())
    }

    /// Refuses a run whose plan exceeds the memory budget, before any memory is taken. FLOPs of a step of the first rank, by stage.
    fn fits(&self, crew: &Crew) -> Result<Vec<f64>> {
        let cpu = device::open(&self.recipe.machine)?;
        let profile = cpu.machine.profile();
        // What predictions were made with, to be read beside them.
        let path = self.folder.join("machine.json");
        fathom_base::files::write(
            &path,
            format!("{:#}\n", serde_json::to_value(profile.sheet())?).as_bytes(),
        )
        .with_context(|| format!("cannot write {}", path.display()))?;
        let place = crew.place(self.recipe, stage::ranks(self.recipe, 0)?.grid.ranks());
        let pool = cpu.pool.budget();
        let mut budgets = commands::plan::budgets(self.recipe, profile, pool, place);
        // Of what a pool may use others may have taken some.
        budgets.memory = budgets.memory.min(pool / place.memory as u64);
        budgets.host /= place.host as u64;
        let specs = commands::plan::specs(self.recipe)?;
        check_places(self.recipe, &specs, profile)?;
        let mut flops = Vec::new();
        for (index, spec) in specs.iter().enumerate() {
            let ranks = stage::ranks(self.recipe, index)?;
            let mut of_ranks = Vec::new();
            for (rank, _) in fathom_train::distinct(&ranks, spec) {
                let draft = Draft { profile, spec, recipe: self.recipe.clone(), index, budgets, rank };
                of_ranks.push(draft.check()?.plan.hardware_flops as f64);
            }
            flops.push(of_ranks.first().copied().unwrap_or(0.0));
        }
        Ok(flops)
    }

    fn train(
        self,
        metrics: MetricsWriter,
        (tokenizer, corpus): (Tokenizer, Option<Store>),
        stop: &AtomicBool,
        crew: &Crew,
    ) -> Result<Outcome> {
        let (recipe, folder, tokenizer) = (self.recipe, self.folder.clone(), &tokenizer);
        let vocab = tokenizer.vocab_size();
        let stores = &Stores::open(recipe, corpus.map(Arc::new), vocab)?;
        stores.check_tokenizer(tokenizer)?;
        let mesh = stage::ranks(recipe, 0)?;
        let seconds = &time::stage_seconds(recipe, self.begun);
        let disk_sharers = crew.place(recipe, mesh.grid.ranks()).disk;
        let shared = &ranks::Shared { recipe, folder: &folder, stores, vocab, seconds, disk_sharers, stop };
        if mesh.grid.ranks() == 1 {
            return self.first_rank(device::open(&recipe.machine)?, metrics, tokenizer, shared);
        }
        let first = |device| self.first_rank(device, metrics, tokenizer, shared);
        ranks::run(recipe, &mesh, crew, first, &|device| ranks::follow(shared, device).map(|_| ()))
    }

    /// What the first rank does: everything that is seen of a run.
    fn first_rank(
        mut self,
        device: Device,
        mut metrics: MetricsWriter,
        tokenizer: &Tokenizer,
        shared: &ranks::Shared<'_>,
    ) -> Result<Outcome> {
        let ranks::Shared { stores, stop, vocab, .. } = *shared;
        let alone = device.mesh.grid().ranks() == 1;
        let trainer = ranks::trainer(self.recipe, &self.folder, &device, vocab)?;
        let known = read_events(self.log())?;
        if !known.iter().any(|value| matches!(Event::from_value(value), Some(Event::Model(_)))) {
            let all = trainer.model.weights.iter().map(|weight| (weight.shape[0] * weight.shape[1]) as u64);
            metrics.write(&Event::Model(model_event(&trainer.model.spec, all.sum())))?;
        }
        let seconds = shared.seconds.to_vec();
        let (recipe, folder) = (self.recipe, self.folder.clone());
        let again = |device: &Device| ranks::anew(recipe, &folder, device, vocab);
        let parts = Parts {
            recipe,
            folder: &folder,
            trainer,
            stores: stores.clone(),
            metrics,
            seconds,
            disk_sharers: shared.disk_sharers,
            stop,
            anew: Some(&again),
        };
        let mut run = Run::open(parts)?;
        if stores.held_out() != self.recipe.data.held_out_share {
            self.live
                .say("no document's hash falls into the held-out share; the one with the lowest is held out");
        }
        let begun = run.progress().clone();
        if begun.step > 0 {
            self.live.say(&format!("resumed after step {}", begun.step));
        }
        if self.recipe.run.tensorboard {
            let folder = self.folder.join("tensorboard");
            self.tensorboard = Some(EventFile::resume(&folder, unix_s() as u64, begun.step)?);
        }
        let mut watch = self.watch(tokenizer, stores, alone, shared.seconds);
        if begun.step == 0 && alone && describe::before(recipe) == Some(0) {
            run.before(&mut |trainer, metrics| watch.measure(trainer.into(), BEFORE, 0, metrics))?;
        }
        let outcome = run.train(&mut watch)?;
        let progress = run.progress().clone();
        self.live.finish();
        if outcome == Outcome::Interrupted {
            self.live.say(&format!("saved at step {}; run the same command again to go on", progress.step));
            return Ok(outcome);
        }
        let unsaved = run.nothing_saved().map(str::to_owned);
        let (trainer, metrics) = run.finish();
        self.finish(trainer, metrics, tokenizer, shared, &progress)?;
        match unsaved {
            Some(why) => bail!("the model is exported, and no checkpoint of the run could be saved: {why}"),
            None => Ok(outcome),
        }
    }

    /// The model and the report of a run whose stages are done.
    fn finish(
        mut self,
        trainer: Trainer,
        mut metrics: MetricsWriter,
        tokenizer: &Tokenizer,
        shared: &ranks::Shared<'_>,
        progress: &fathom_train::Progress,
    ) -> Result<()> {
        let stores = shared.stores;
        let alone = trainer.device.mesh.grid().ranks() == 1;
        // Without what training keeps beside the weights: of all ranks together one of them may have no room for it.
        let (mut device, mut model, mut params) = trainer.into_model();
        if alone {
            self.export(&device, &model, &params)?;
        } else {
            drop((device, model, params));
            self.export_of_ranks(progress.step)?;
            device = device::open(&self.recipe.machine)?;
            let step = progress.step;
            let Some(whole) = self.measure_saved(&device, tokenizer, shared, step, &mut metrics)? else {
                return self.end(metrics, progress);
            };
            device::Loaded { model, params } = whole;
        }
        let of = OnDevice { device: &device, model: &model, params: &params };
        let subject = Subject { of, tokenizer, stores };
        let sample = if_there_is_room(&self.live, || sample(&subject, progress.step))?;
        if let Some(sample) = sample.flatten() {
            metrics.write(&Event::Sample(sample))?;
        }
        self.end(metrics, progress)
    }

    /// Measures a run over ranks, none of which has room for a whole model while it trains: what was saved before the extension,
    /// and the exported model, which is given; `None` where there is no room for it.
    fn measure_saved(
        &mut self,
        device: &Device,
        tokenizer: &Tokenizer,
        shared: &ranks::Shared<'_>,
        step: u64,
        metrics: &mut MetricsWriter,
    ) -> Result<Option<device::Loaded>> {
        let (recipe, folder) = (self.recipe, self.folder.clone());
        let mut watch = self.watch(tokenizer, shared.stores, true, shared.seconds);
        if recipe.eval.enabled {
            let before = if_there_is_room(watch.live, || saved_before(recipe, &folder, device))?;
            if let Some((step, whole)) = before.flatten() {
                watch.measure((device, &whole).into(), BEFORE, step, metrics)?;
            }
        }
        let whole = if_there_is_room(watch.live, || device::load(device, &folder.join("model"), None))?;
        if let Some(whole) = &whole {
            watch.measure((device, whole).into(), describe::after(recipe), step, metrics)?;
        }
        Ok(whole)
    }

    /// What looks at the run; it measures where a whole model is at hand.
    fn watch<'b>(
        &'b mut self,
        tokenizer: &'b Tokenizer,
        stores: &'b Stores,
        whole: bool,
        seconds: &[f64],
    ) -> Watch<'b> {
        let measures = whole && self.recipe.eval.enabled;
        Watch {
            recipe: self.recipe,
            tokenizer,
            stores,
            measures,
            measure_s: time::measure_s(self.recipe),
            measured_by: time::measured_by(self.recipe, self.begun),
            took_s: None,
            ahead: Ahead::new(self.recipe, &self.flops, seconds, measures),
            live: &mut self.live,
            tensorboard: &mut self.tensorboard,
        }
    }

    /// The last event and the report.
    fn end(&self, mut metrics: MetricsWriter, progress: &fathom_train::Progress) -> Result<()> {
        metrics.write(&Event::Done(events::Done {
            step: progress.step,
            time_s: self.begun.elapsed().as_secs_f64(),
            tokens_total: progress.tokens,
            peak_rss_bytes: rss::peak_bytes().unwrap_or(0),
            model_path: "model".into(),
        }))?;
        metrics.sync()?;
        self.report()
    }
}

/// The model before its extension and the step that it is of: as it was read, or as it was saved when the stages before the
/// last were done.
fn saved_before(recipe: &Recipe, run: &Path, device: &Device) -> Result<Option<(u64, device::Loaded)>> {
    let (stages, from) = (describe::before(recipe), recipe.model.from.as_deref());
    if let (Some(0), Some(from)) = (stages, from) {
        let dtype = device::precision(recipe.model.precision);
        return Ok(Some((0, device::load(device, &device::model_folder(from)?, Some(dtype))?)));
    }
    let saved = stages.and_then(|stages| Checkpoints::new(&run.join("checkpoints"), 1).after(stages));
    saved.map(|(step, folder)| Ok((step, commands::convert::load_checkpoint(device, &folder)?))).transpose()
}

/// How a run or a plan begins its log.
pub fn run_event(loaded: &Loaded<Recipe>, command: &str) -> events::Run {
    events::Run {
        name: loaded.value.run.name.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        start_unix_s: unix_s() as u64,
        command: command.into(),
        recipe: loaded.rows().to_vec(),
        machine: MachineFacts::read(),
        short: String::new(),
    }
}

/// What a run and a plan say of a model of `params` parameters.
pub fn model_event(s: &Spec, params: u64) -> events::Model {
    let row = |name: &str, value: String| events::NameValue { name: name.into(), value };
    let config = vec![
        row("layers", s.layers.len().to_string()),
        row("hidden", s.hidden.to_string()),
        row("heads", s.heads.to_string()),
        row("key-value heads", s.kv_heads.to_string()),
        row("head size", s.head_dim.to_string()),
        row("ffn", s.ffn.to_string()),
        row("vocabulary", s.vocab.to_string()),
        row("tied embedding", s.tied.to_string()),
    ];
    events::Model { family: s.family.to_string(), params, config }
}

/// Seconds since 1970.
fn unix_s() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}
