//! Several ranks of one run, as threads of this process or as processes: each with its share of the cores, of the memory and
//! of the model.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, anyhow, bail};
use fathom_base::metrics::{MetricsWriter, events};
use fathom_curate::{store_prefix, tokenizer_dir};
use fathom_model::{Init, Model, Spec, initialise};
use fathom_tensor::Device;
use fathom_tensor::mesh::{Link, Mesh, Seat, ThreadsOptions, threads};
use fathom_text::Tokenizer;
use fathom_text::store::Store;
use fathom_train::parallel::Ranks;
use fathom_train::recipe::Recipe;
use fathom_train::{
    Hooks, Outcome, Parts, Run, Settled, Stores, Trainer, needs_corpus, open_state_disk, rank_folder, stage,
    train_experts,
};

use crate::crew::{self, Crew, World};
use crate::device::Place;
use crate::{device, gpu, pipeline};

/// Runs `first` on this thread as the first rank; the others are processes with their own call of [`follow_first`], or `other`
/// on a thread each. A rank that fails ends the run of all.
///
/// # Errors
/// The first rank's, which names the rank that failed first.
pub fn run<T>(
    recipe: &Recipe,
    ranks: &Ranks,
    crew: &Crew,
    first: impl FnOnce(Device) -> Result<T>,
    other: &(dyn Fn(Device) -> Result<()> + Sync),
) -> Result<T> {
    let take = |seat: Seat| -> Box<dyn Link> { Box::new(seat.take()) };
    let own = crew.place(recipe, ranks.grid.ranks());
    match crew {
        Crew::Processes { world: World::Mpi(mpi), .. } => {
            return one(recipe, ranks, (mpi.link(), own), first);
        }
        Crew::Processes { world: World::Nccl(world, library), place } => {
            let opened = gpu::open(&recipe.machine, *place)?;
            let gpu::Opened { machine, budget } =
                opened.context("NCCL connects devices, and there is none")?;
            let mesh = Mesh::new(ranks.grid, world.link(&machine, library)?);
            return guarded(mesh.clone(), || first(Device::on_mesh(machine, budget, mesh)));
        }
        Crew::Threads => {}
    }
    let options = ThreadsOptions { deadline: crew::deadline(recipe), chaos: recipe.machine.chaos };
    let mut seats = threads(ranks.grid.ranks(), options);
    let rest = seats.split_off(1);
    let Some(seat) = seats.pop() else { bail!("a mesh without ranks") };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..)
            .zip(rest)
            .map(|(local, seat)| {
                let place = Place { local, ..own };
                scope.spawn(move || one(recipe, ranks, (take(seat), place), other))
            })
            .collect();
        let result = one(recipe, ranks, (take(seat), own), first);
        let ended =
            others.into_iter().map(|rank| rank.join().unwrap_or_else(|_| Err(anyhow!("a rank panicked"))));
        let failed = ended.filter_map(Result::err).next();
        match (result, failed) {
            (Ok(_), Some(error)) => Err(error),
            (result, _) => result,
        }
    })
}

/// What a process that is not the first does: waits for the first to prepare the run, and takes part in its steps.
///
/// # Errors
/// The rank's own; it has ended the job then.
pub fn follow_first(recipe: &Recipe, stop: &AtomicBool, crew: &Crew) -> Result<Outcome> {
    crew.follow(|| {
        let (folder, data) = (&recipe.run.out, recipe.run.out.join("data"));
        let seen = || format!("{}: every machine has to see the run's folder", folder.display());
        let vocab = Tokenizer::from_dir(tokenizer_dir(&data)).with_context(seen)?.vocab_size();
        let store = if needs_corpus(recipe) {
            Some(Arc::new(Store::open(store_prefix(&data)).with_context(seen)?))
        } else {
            None
        };
        let stores = &Stores::open(recipe, store, vocab)?;
        // The first rank alone decides what takes how long.
        let seconds = &vec![60.0; recipe.stage.len()];
        let ranks = stage::ranks(recipe, 0)?;
        let disk_sharers = crew.place(recipe, ranks.grid.ranks()).disk;
        let shared = &Shared { recipe, folder, stores, vocab, seconds, disk_sharers, stop };
        run(recipe, &ranks, crew, |device| follow(shared, device), &|_| Ok(()))
    })
}

/// Tells the others when a rank's thread unwinds.
struct Unwinding(Mesh);

impl Drop for Unwinding {
    fn drop(&mut self) {
        if let (true, Some(link)) = (std::thread::panicking(), self.0.link()) {
            link.abort("it panicked; its message is above");
        }
    }
}

fn one<T>(
    recipe: &Recipe,
    ranks: &Ranks,
    (link, place): (Box<dyn Link>, Place),
    body: impl FnOnce(Device) -> Result<T>,
) -> Result<T> {
    let mesh = Mesh::new(ranks.grid, link);
    guarded(mesh.clone(), || body(device::cpu_rank(&recipe.machine, mesh, place)?))
}

/// Runs a rank's work; the others hear of its failure.
fn guarded<T>(mesh: Mesh, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let _unwinding = Unwinding(mesh.clone());
    let result = work();
    if let (Err(error), Some(link)) = (&result, mesh.link()) {
        link.abort(&format!("{error:#}"));
    }
    result
}

/// A rank's part of the model that the recipe starts from, for a tokenizer of `vocab` tokens.
pub fn trainer(recipe: &Recipe, folder: &Path, device: &Device, vocab: usize) -> Result<Trainer> {
    let dtype = device::precision(recipe.model.precision);
    let spill = recipe.machine.spill.as_deref().unwrap_or(folder);
    let ranks = stage::ranks(recipe, 0)?;
    let (on_disk, moments) = (stage::on_disk(recipe), stage::moments(recipe));
    let disk =
        |spec: &Spec, dtype| Ok(open_state_disk(device, spec, dtype, on_disk, (&ranks, moments), spill)?);
    let (model, params) = match &recipe.model.from {
        Some(folder) => {
            let folder = device::model_folder(folder)?;
            let mut loaded = device::load_on(device, &folder, Some(dtype), &disk, &ranks)?;
            train_experts(recipe, &mut loaded.model.spec)?;
            (loaded.model, loaded.params)
        }
        None => {
            let mut spec = pipeline::spec(recipe)?;
            spec.vocab = vocab.next_multiple_of(64);
            let portion = device::portion(device, &spec, &ranks)?;
            let (model, mut params) = Model::declare_part(device, &spec, dtype, disk(&spec, dtype)?, portion);
            let init = Init { deviation: recipe.model.init_std, seed: recipe.run.seed };
            initialise(device, &model, &mut params, init);
            (model, params)
        }
    };
    let have = model.spec.vocab;
    if have < vocab {
        bail!(
            "the tokenizer has {vocab} tokens and the model's embedding {have} rows; give data.tokenizer the model's own"
        );
    }
    let mut trainer = Trainer::sharded(device, model, params, ranks.sharding, moments);
    trainer.narrow(stage::narrow(recipe, 0)?.as_ref())?;
    Ok(trainer)
}

/// As [`trainer`], for a rank that failed and is begun anew.
pub fn anew(recipe: &Recipe, folder: &Path, device: &Device, vocab: usize) -> fathom_train::Result<Trainer> {
    trainer(recipe, folder, device, vocab).map_err(|error| fathom_train::Error::Hook(error.into()))
}

/// What every rank of a run is given.
pub struct Shared<'a> {
    /// The recipe.
    pub recipe: &'a Recipe,
    /// The run's folder.
    pub folder: &'a Path,
    /// Its data.
    pub stores: &'a Stores,
    /// Tokens of the tokenizer.
    pub vocab: usize,
    /// Seconds of each stage.
    pub seconds: &'a [f64],
    /// Ranks whose files are on the same disk.
    pub disk_sharers: usize,
    /// Set to save and stop; the first rank looks.
    pub stop: &'a AtomicBool,
}

/// The part of a run that the ranks after the first do: the steps, and their share of what is saved. Each writes a log into a
/// folder of its own.
pub fn follow(shared: &Shared<'_>, device: Device) -> Result<Outcome> {
    let Shared { recipe, folder, stores, vocab, seconds, disk_sharers, stop } = *shared;
    let own = rank_folder(folder, device.mesh.rank());
    std::fs::create_dir_all(&own)?;
    let metrics = MetricsWriter::open(own.join("metrics.jsonl"))?;
    let trainer = trainer(recipe, folder, &device, vocab)?;
    let (stores, seconds) = (stores.clone(), seconds.to_vec());
    let again = |device: &Device| anew(recipe, folder, device, vocab);
    let anew = Some(&again as fathom_train::Anew<'_>);
    let parts = Parts { recipe, folder, trainer, stores, metrics, seconds, disk_sharers, stop, anew };
    let mut run = Run::open(parts)?;
    let outcome = run.train(&mut Silent)?;
    if outcome == Outcome::Finished {
        run.finish().1.sync()?;
    }
    Ok(outcome)
}

/// Nobody watches.
struct Silent;

impl Hooks for Silent {
    fn stage(&mut self, _: &events::Stage, _: &Settled) {}
    fn warn(&mut self, _: &str) {}
    fn step(&mut self, _: &events::Step, _: u64, _: Option<u64>) -> fathom_train::Result<()> {
        Ok(())
    }
    fn stage_done(
        &mut self,
        _: &Trainer,
        _: usize,
        _: u64,
        _: &mut MetricsWriter,
    ) -> fathom_train::Result<()> {
        Ok(())
    }
}
