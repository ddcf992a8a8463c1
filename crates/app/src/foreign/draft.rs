//! A recipe under construction from another tool's settings.

use fathom_base::recipe::Layers;
use toml_edit::{Array, DocumentMut, Item, TableLike, Value as Toml, value};

use super::kind::Kind;
use super::tool::Tool;
use crate::error::{Result, refuse};
use crate::library::{self, LIBRARY};

/// A key of the recipe, its value, and the key of the file that set it.
struct Setting {
    path: String,
    to: Toml,
    from: String,
}

/// Settings read so far.
pub(super) struct Draft {
    set: Vec<Setting>,
    unsaid: Vec<(String, String)>,
    /// Key that is being read.
    pub at: String,
    /// Tool that the file belongs to.
    pub tool: Tool,
    /// Kind of training.
    pub kind: Kind,
    /// Method of the adapter, if one is trained.
    pub adapter: Option<&'static str>,
    /// The file sets the adapter's dropout to 0.
    pub dropless: bool,
    /// Projections of the adapter, collected from several keys.
    pub targets: Vec<String>,
    /// Bits of the quantized base.
    pub bits: Option<u64>,
    /// Rows of a micro-batch, and micro-batches of a step.
    pub rows: Option<u64>,
    pub accumulated: Option<u64>,
    /// Rows are packed, and cut at the end of a sample.
    pub packed: bool,
    pub wrapped: bool,
    /// Tokens of a text.
    pub tokens: Option<u64>,
    pub epochs: Option<u64>,
    pub steps: Option<u64>,
    pub steps_of_epoch: Option<u64>,
    /// Warm-up as a share of the steps.
    pub warmup_share: Option<f64>,
    pub paths: Vec<String>,
    /// Settings of rollouts.
    pub rollout: Rollout,
}

/// Settings of rollouts.
#[derive(Default)]
pub(super) struct Rollout {
    /// Answers per prompt.
    pub answers: Option<u64>,
    /// Prompts per rollout, if the file counts them.
    pub prompts: Option<u64>,
    /// Answers per rollout.
    pub batch: Option<u64>,
    /// Micro-batches that share a rollout.
    pub steps: Option<u64>,
    /// Rollouts of the run.
    pub count: Option<u64>,
    /// Tokens of a prompt and of an answer.
    pub prompt_tokens: Option<u64>,
    pub answer_tokens: Option<u64>,
    /// Passes over a rollout.
    pub epochs: Option<u64>,
    /// Loss, and whether its ratios cover whole answers.
    pub loss: Option<String>,
    pub whole: bool,
    /// Scaling of rewards to advantages.
    pub scale: Option<&'static str>,
    pub each: bool,
}

/// Converts a share of steps as axolotl does: rounded down, except that 1 becomes 2, since the learning rate of a
/// single step would be 0 there.
pub(super) fn axolotl_steps(share: f64, steps: u64) -> i64 {
    match (share * steps as f64) as i64 {
        1 => 2,
        steps => steps,
    }
}

impl Draft {
    /// Returns an empty draft for a kind of training.
    pub fn new(tool: Tool, kind: Kind, adapter: Option<&'static str>) -> Draft {
        Draft {
            set: Vec::new(),
            unsaid: Vec::new(),
            at: String::new(),
            tool,
            kind,
            adapter,
            dropless: false,
            targets: Vec::new(),
            bits: None,
            rows: None,
            accumulated: None,
            packed: false,
            wrapped: false,
            tokens: None,
            epochs: None,
            steps: None,
            steps_of_epoch: None,
            warmup_share: None,
            paths: Vec::new(),
            rollout: Rollout::default(),
        }
    }

    /// Sets a key of the recipe.
    pub fn set(&mut self, path: &str, to: impl Into<Toml>) {
        self.set.retain(|other| other.path != path);
        self.set.push(Setting { path: path.to_string(), to: to.into(), from: self.at.clone() });
    }

    /// Sets a key that the file left out to the other tool's default.
    pub fn default(&mut self, path: &str, to: impl Into<Toml>) {
        if !self.has(path) {
            self.set(path, to);
        }
    }

    /// Returns whether a key was set.
    pub fn has(&self, path: &str) -> bool {
        self.set.iter().any(|setting| setting.path == path)
    }

    /// Returns whether a key was set to 0.
    pub fn is_zero(&self, path: &str) -> bool {
        self.set.iter().any(|setting| setting.path == path && setting.to.as_float() == Some(0.0))
    }

    /// Returns an integer that was set.
    pub fn integer(&self, path: &str) -> Option<i64> {
        self.set.iter().find(|setting| setting.path == path)?.to.as_integer()
    }

    /// Returns a text that was set.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.set.iter().find(|setting| setting.path == path)?.to.as_str()
    }

    /// Records a key that could not be translated.
    pub fn unsaid(&mut self, key: &str, why: &str) {
        self.unsaid.push((key.to_string(), why.to_string()));
    }

    /// Returns the name of the nearest shipped recipe.
    pub fn base(&self) -> &'static str {
        match (self.kind, self.adapter, self.bits) {
            (Kind::Dpo | Kind::Cpo, ..) => "dpo",
            (Kind::Kto, ..) => "kto",
            (Kind::Orpo, ..) => "orpo",
            (Kind::Simpo, ..) => "simpo",
            (Kind::Reward | Kind::Steps, ..) => "reward",
            (Kind::Distill, ..) => "distill",
            (Kind::Grpo, ..) => "grpo",
            (Kind::Rloo, ..) => "rloo",
            (Kind::Ppo, ..) => "ppo",
            (Kind::Text | Kind::Answers, Some("dora"), None) => "dora",
            (Kind::Text | Kind::Answers, Some(_), Some(4)) => "qlora",
            (Kind::Text | Kind::Answers, Some(_), _) => "lora",
            (Kind::Text | Kind::Answers, None, _) => "sft",
        }
    }

    /// Returns the recipe, and the keys that could not be translated.
    pub fn finish(mut self) -> Result<(String, Vec<(String, String)>)> {
        self.at.clear();
        if let Some(adapter) = self.adapter {
            self.set("adapter.method", adapter);
            if !self.targets.is_empty() {
                let all = std::mem::take(&mut self.targets);
                self.default("adapter.targets", all.into_iter().collect::<Array>());
            }
        }
        match self.bits {
            Some(4) => self.set("model.quantization", "nf4"),
            Some(8) => self.set("model.quantization", "int8"),
            Some(bits) => {
                self.unsaid("quantization", &format!("a base of {bits} bits is not trained on; 4 and 8 are"))
            }
            None => {}
        }
        self.length();
        if !self.paths.is_empty() {
            self.set("data.paths", self.paths.iter().map(String::as_str).collect::<Array>());
        }
        let base = self.base();
        let Some(mut document) = flat(base)? else { refuse!("the recipe {base} is no TOML") };
        document.insert(
            "about",
            value(format!("Translated from {}'s settings, over the recipe {base}", self.tool)),
        );
        while let Some((at, why)) = self.refused(&document) {
            if at >= self.set.len() {
                self.unsaid("the recipe as a whole", &why);
                break;
            }
            let Setting { path, from, .. } = self.set.remove(at);
            let key = if from.is_empty() { path } else { from };
            self.unsaid(&key, &why);
        }
        let recipe = self.written(&document, self.set.len());
        // An unknown key here would be a mistake in the rules.
        library::resolve(Layers::with_library(LIBRARY).text("the translation", &recipe))?;
        Ok((recipe, self.unsaid))
    }

    /// Returns the number of steps of the run, if the file counts them.
    pub fn all_steps(&self) -> Option<u64> {
        self.steps.or(self.steps_of_epoch.map(|steps| steps * self.epochs.unwrap_or(1)))
    }

    /// Sets the length of the run, in steps or in epochs, and its warm-up.
    fn length(&mut self) {
        let steps = self.all_steps();
        match (steps, self.epochs) {
            (Some(steps), _) => self.set("stage.0.steps", steps as i64),
            (None, Some(epochs)) => self.set("stage.0.epochs", epochs as i64),
            (None, None) => {}
        }
        // A number of steps has precedence over a share; in axolotl's files even the number 0.
        let given = self.integer("schedule.warmup_steps");
        let counts = given.is_some_and(|steps| steps > 0 || self.tool == Tool::Axolotl);
        if let Some(share) = self.warmup_share.filter(|_| !counts) {
            self.at = "warmup_ratio".into();
            match (self.tool, steps) {
                (Tool::Axolotl, Some(steps)) => {
                    self.set("schedule.warmup_steps", axolotl_steps(share, steps));
                }
                _ => self.set("schedule.warmup_share", share),
            }
            self.at.clear();
        }
    }

    /// Returns the recipe with the first `settings` settings applied.
    fn written(&self, document: &DocumentMut, settings: usize) -> String {
        let mut document = document.clone();
        for setting in &self.set[..settings] {
            put(document.as_item_mut(), &setting.path, setting.to.clone());
        }
        let steps = self.set[..settings].iter().any(|setting| setting.path == "stage.0.steps");
        if let Some(stage) = document["stage"].get_mut(0).and_then(Item::as_table_like_mut)
            && steps
        {
            stage.remove("epochs");
        }
        document.to_string()
    }

    /// Finds a setting that the recipe refuses, with the reason: the one that the message names, or else the first one
    /// whose addition causes it. The index is one past the last if the recipe is refused without any setting.
    fn refused(&self, document: &DocumentMut) -> Option<(usize, String)> {
        let why = self.refusal(document, self.set.len())?;
        let named =
            |setting: &Setting| ['`', '.'].iter().any(|end| why.contains(&format!("`{}{end}", setting.path)));
        if let Some(at) = self.set.iter().position(named) {
            return Some((at, why));
        }
        let at = (1..=self.set.len()).find(|count| self.refusal(document, *count).as_ref() == Some(&why));
        Some((at.map_or(self.set.len(), |count| count - 1), why))
    }

    /// Returns the error of the recipe with the first `settings` settings, if any, with placeholders for model, rows,
    /// rewards and teacher.
    fn refusal(&self, document: &DocumentMut, settings: usize) -> Option<String> {
        let mut given = Vec::new();
        let has = |path: &str| self.set[..settings].iter().any(|setting| setting.path == path);
        for (is, path, to) in [
            (true, "model.from", "MODEL"),
            (true, "data.paths", "ROWS.jsonl"),
            (self.kind.writes(), "rl.reward", "REWARDS.toml"),
            (self.kind == Kind::Distill, "objective.teacher", "TEACHER"),
        ] {
            if is && !has(path) {
                given.push(format!("{path}={to}"));
            }
        }
        let recipe = self.written(document, settings);
        let layers = Layers::with_library(LIBRARY).text("the translation", &recipe).sets(&given);
        let why = match library::resolve(layers) {
            Err(error) => error.to_string(),
            Ok(loaded) => fathom_train::check(&loaded)
                .and_then(|()| fathom_train::check_training(&loaded))
                .err()?
                .to_string(),
        };
        // Drops the place in the file, which does not exist yet.
        Some(why.find('`').map_or(why.clone(), |at| why[at..].to_string()))
    }
}

/// Returns a shipped recipe with the recipes that it extends written out; `None` if it is not TOML.
fn flat(name: &str) -> Result<Option<DocumentMut>> {
    let text = LIBRARY.text(name)?.unwrap_or_default();
    // Comments of the recipe describe values that the other tool's file may change.
    let text: String =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    let Ok(mut document) = text.parse::<DocumentMut>() else { return Ok(None) };
    let Some(below) = document.remove("extends").and_then(|name| name.as_str().map(str::to_string)) else {
        return Ok(Some(document));
    };
    let Some(mut whole) = flat(&below)? else { return Ok(None) };
    for (key, item) in document.iter() {
        match (item.as_table_like(), whole.get_mut(key).and_then(Item::as_table_like_mut)) {
            (Some(over), Some(table)) => lay(over, table),
            _ => {
                whole.insert(key, item.clone());
            }
        }
    }
    Ok(Some(whole))
}

fn lay(over: &dyn TableLike, table: &mut dyn TableLike) {
    for (key, item) in over.iter() {
        let mut item = item.clone();
        if let Some(value) = item.as_value_mut() {
            value.decor_mut().clear();
        }
        table.insert(key, item);
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
