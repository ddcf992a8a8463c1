//! A recipe that is being written from another tool's settings.

use fathom_base::recipe::Layers;
use toml_edit::{Array, DocumentMut, Item, Value as Toml, value};

use crate::error::{Result, refuse};
use crate::library::{self, LIBRARY};

/// What was read so far.
#[derive(Default)]
pub(super) struct Draft {
    set: Vec<(String, Toml)>,
    unsaid: Vec<(String, String)>,
    /// What is done: `dpo`, `kto`, .. ; none for learning answers.
    pub method: Option<&'static str>,
    /// An adapter is trained, and its method.
    pub adapter: Option<&'static str>,
    /// Bits that the base is held in.
    pub bits: Option<u64>,
    /// Rows of a micro batch, and micro batches of a step.
    pub rows: Option<u64>,
    pub accumulated: Option<u64>,
    /// Rows are packed.
    pub packed: bool,
    pub epochs: Option<u64>,
    pub steps: Option<u64>,
    pub warmup_share: Option<f64>,
    pub paths: Vec<String>,
    /// The other tools' losses of preferences under methods of their own.
    pub loss: Option<String>,
}

impl Draft {
    /// Sets a key of the recipe.
    pub fn set(&mut self, path: &str, to: impl Into<Toml>) {
        self.set.retain(|(other, _)| other != path);
        self.set.push((path.to_string(), to.into()));
    }

    /// A key that could not be said.
    pub fn unsaid(&mut self, key: &str, why: &str) {
        self.unsaid.push((key.to_string(), why.to_string()));
    }

    /// The shipped recipe that is nearest.
    pub fn base(&self) -> &'static str {
        match (self.method, self.adapter, self.bits) {
            (Some(method), ..) => method,
            (None, Some("dora"), None) => "dora",
            (None, Some(_), Some(4)) => "qlora",
            (None, Some(_), _) => "lora",
            (None, None, _) => "sft",
        }
    }

    /// The recipe, and what could not be said.
    pub fn finish(mut self, tool: &str) -> Result<(String, Vec<(String, String)>)> {
        let base = self.base();
        if let Some(adapter) = self.adapter {
            self.set("adapter.method", adapter);
        }
        match self.bits {
            Some(4) => self.set("model.quantization", "nf4"),
            Some(8) => self.set("model.quantization", "int8"),
            Some(bits) => {
                self.unsaid("quantization", &format!("a base of {bits} bits is not trained on; 4 and 8 are"))
            }
            None => {}
        }
        let micro = self.rows.unwrap_or(1) * self.accumulated.unwrap_or(1);
        if self.rows.is_some() || self.accumulated.is_some() {
            self.set("stage.0.micro_batches", micro.max(1) as i64);
        }
        if self.method.is_none() {
            // A row of its own length a sample, or rows side by side in one that is full.
            self.set("stage.0.packing", if self.packed { "best_fit" } else { "single" });
        }
        match (self.steps, self.epochs) {
            (Some(steps), _) => self.set("stage.0.steps", steps as i64),
            (None, Some(epochs)) => self.set("stage.0.epochs", epochs as i64),
            (None, None) => {}
        }
        match (self.warmup_share, self.steps) {
            (Some(share), Some(steps)) => self.set("schedule.warmup_steps", (share * steps as f64).ceil() as i64),
            (Some(share), None) => self.unsaid(
                "warmup_ratio",
                &format!("steps are not known before the rows are packed; schedule.warmup_steps is {share} of those that `--dry-run` prints"),
            ),
            (None, _) => {}
        }
        if !self.paths.is_empty() {
            self.set("data.paths", self.paths.iter().map(String::as_str).collect::<Array>());
        }
        if let Some(loss) = self.loss.take() {
            self.set("objective.loss", loss);
        }
        let text = LIBRARY.text(base)?.unwrap_or_default();
        let Ok(mut document) = text.parse::<DocumentMut>() else { refuse!("the recipe {base} is no TOML") };
        document.insert("about", value(format!("Translated from {tool}'s settings, over the recipe {base}")));
        for (path, to) in &self.set {
            put(document.as_item_mut(), path, to.clone());
        }
        if self.steps.is_some()
            && let Some(stage) = document["stage"].get_mut(0).and_then(Item::as_table_like_mut)
        {
            stage.remove("epochs");
        }
        let recipe = document.to_string();
        // A key that does not exist would be a mistake of the table.
        library::resolve(Layers::with_library(LIBRARY).text("the translation", &recipe))?;
        Ok((recipe, self.unsaid))
    }
}

fn put(item: &mut Item, path: &str, to: Toml) {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let inner = match first.parse::<usize>() {
        Ok(index) => &mut item[index],
        Err(_) => &mut item[first],
    };
    if rest.is_empty() {
        *inner = Item::Value(to);
        return;
    }
    if inner.is_none() {
        *inner = toml_edit::table();
    }
    put(inner, rest, to);
}
