//! Time from files to the first token, compared with only reading the same files: with the files evicted from the
//! page cache, and with them cached.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use fathom_app::models;
use fathom_base::{Flow, GenerateRequest};
use fathom_engine::{Engine, Limits};
use fathom_model::{
    FolderOptions, GenerationConfig, Init, LlamaSizes, Model, SaveOptions, Spec, initialise, save_hf,
};
use rustix::fs::{Advice, fadvise};

use super::bed::Bed;
use super::decode::silent_tokenizer;
use super::row::Row;
use super::watch::{Watch, median};
use crate::args::bench::Load;
use crate::console;
use crate::listen::Plain;

/// Read size of `cat`.
const CAT_BYTES: usize = 128 << 10;
/// Prompt tokens; the clock stops at the answer's first token.
const PROMPT: usize = 16;

/// Runs the benchmark.
pub fn run(args: &Load) -> Result<()> {
    let made;
    let folder = match &args.model {
        Some(path) => models::model_folder(path)?,
        None => {
            made = TemporaryModel::new(args)?;
            made.0.clone()
        }
    };
    let files = files(&folder)?;
    let bytes: u64 = files.iter().map(|file| file.metadata().map_or(0, |data| data.len())).sum();
    let watch = Watch::begin();
    let (mut cold, mut warm) = (Times::default(), Times::default());
    for _ in 0..args.timing.repeat.max(1) {
        forget(&files)?;
        let cat_s = cat(&folder)?;
        forget(&files)?;
        cold.add(cat_s, first_token(args, &folder)?);
        warm.add(cat(&folder)?, first_token(args, &folder)?);
    }
    let cat_s = Times::median(&cold.cats);
    Row::new("load")
        .with("dtype", args.dtype.name())
        .with("bytes", bytes)
        .figure("first_token_s", Times::median(&cold.firsts))
        .figure("weights_s", Times::median(&cold.loads))
        .figure("cat_s", cat_s)
        .figure("ratio", Times::median(&cold.ratios))
        .figure("cat_bytes_per_s", bytes as f64 / cat_s)
        .figure("warm_first_token_s", Times::median(&warm.firsts))
        .figure("warm_weights_s", Times::median(&warm.loads))
        .figure("warm_cat_s", Times::median(&warm.cats))
        .figure("warm_ratio", Times::median(&warm.ratios))
        .print(watch.loaded());
    Ok(())
}

/// Seconds of each repeat.
#[derive(Default)]
struct Times {
    loads: Vec<f64>,
    firsts: Vec<f64>,
    cats: Vec<f64>,
    ratios: Vec<f64>,
}

impl Times {
    fn add(&mut self, cat_s: f64, [load_s, first_s]: [f64; 2]) {
        self.loads.push(load_s);
        self.firsts.push(first_s);
        self.cats.push(cat_s);
        self.ratios.push(first_s / cat_s);
    }

    fn median(list: &[f64]) -> f64 {
        let mut sorted = list.to_vec();
        sorted.sort_by(f64::total_cmp);
        median(&sorted)
    }
}

/// The model's files, opened.
fn files(folder: &Path) -> Result<Vec<File>> {
    let open = |path: &PathBuf| File::open(path).with_context(|| format!("cannot open {}", path.display()));
    paths(folder)?.iter().map(open).collect()
}

fn paths(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut paths: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    paths.sort();
    Ok(paths)
}

/// Asks the kernel to drop the files from its cache.
fn forget(files: &[File]) -> Result<()> {
    for file in files {
        // Only clean pages can be dropped.
        file.sync_all().context("cannot flush the model's files")?;
        fadvise(file, 0, None, Advice::DontNeed)
            .context("cannot drop the model's files from the page cache")?;
    }
    Ok(())
}

/// Seconds to read all files.
fn cat(folder: &Path) -> Result<f64> {
    let started = Instant::now();
    let mut buffer = vec![0u8; CAT_BYTES];
    for mut file in files(folder)? {
        while file.read(&mut buffer).context("cannot read the model's files")? > 0 {}
    }
    Ok(started.elapsed().as_secs_f64())
}

/// Seconds from a fresh start to all weights in place, and to the first token of an answer.
fn first_token(args: &Load, folder: &Path) -> Result<[f64; 2]> {
    let started = Instant::now();
    let bed = Bed::new(args.timing.threads, args.dtype)?;
    let loaded = models::load(&bed.device, folder, Some(bed.dtype), &Plain::default())?;
    let load_s = started.elapsed().as_secs_f64();
    let tokenizer = if folder.join("tokenizer.json").is_file() {
        models::tokenizer(folder)?
    } else {
        silent_tokenizer()?
    };
    let limits = Limits { context_tokens: PROMPT + 1, ..Limits::default() };
    let engine = Engine::new(loaded.view(), &tokenizer, limits);
    let ids: Vec<u32> = (0..PROMPT).map(|at| (at * 7 % loaded.model.spec.vocab) as u32).collect();
    engine.generate(&GenerateRequest::greedy(ids, 1), &mut |_| Flow::Continue)?;
    Ok([load_s, started.elapsed().as_secs_f64()])
}

/// A model of 2.2 GB in a temporary folder, removed at the end.
struct TemporaryModel(PathBuf);

impl TemporaryModel {
    fn new(args: &Load) -> Result<TemporaryModel> {
        let folder = std::env::temp_dir().join(format!("fathom-bench-load-{}", std::process::id()));
        if folder.exists() {
            bail!("{} exists; remove it", folder.display());
        }
        let made = TemporaryModel(folder);
        console::line(&format!(
            "writing a model of 2.2 GB to {} (--model DIR takes one of yours)",
            made.0.display()
        ));
        let bed = Bed::new(args.timing.threads, args.dtype)?;
        let spec = Spec::llama(LlamaSizes {
            hidden: 2048,
            layers: 16,
            heads: 32,
            kv_heads: 8,
            head_dim: 64,
            ffn: 8192,
            vocab: 32_000,
            rope_theta: 10_000.0,
            max_positions: 2048,
            tied: false,
        });
        let (model, mut params) = Model::declare(&bed.device, &spec, bed.dtype);
        initialise(&bed.device, &model, &mut params, Init::new(1));
        let options = FolderOptions {
            weights: SaveOptions::new(bed.dtype),
            generation: &GenerationConfig::default(),
            copy: &[],
        };
        save_hf(&bed.device, &model, &params, &made.0, options)?;
        Ok(made)
    }
}

impl Drop for TemporaryModel {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
