//! A recipe that is being written from another tool's settings.

use fathom_base::recipe::Layers;
use toml_edit::{Array, DocumentMut, Item, TableLike, Value as Toml, value};

use super::kind::Kind;
use super::tool::Tool;
use crate::error::{Result, refuse};
use crate::library::{self, LIBRARY};

/// A key of the recipe, its value, and the file's key that said so.
struct Setting {
    path: String,
    to: Toml,
    from: String,
}

/// What was read so far.
pub(super) struct Draft {
    set: Vec<Setting>,
    unsaid: Vec<(String, String)>,
    /// The key that is being read.
    pub at: String,
    /// Whose file it is.
    pub tool: Tool,
    /// What it trains.
    pub kind: Kind,
    /// An adapter is trained, and its method.
    pub adapter: Option<&'static str>,
    /// The file says that the adapter drops nothing.
    pub dropless: bool,
    /// Projections of the adapter, in several keys.
    pub targets: Vec<String>,
    /// Bits that the base is held in.
    pub bits: Option<u64>,
    /// Rows of a micro batch, and micro batches of a step.
    pub rows: Option<u64>,
    pub accumulated: Option<u64>,
    /// Rows are packed, and cut where a sample ends.
    pub packed: bool,
    pub wrapped: bool,
    /// Tokens of a text.
    pub tokens: Option<u64>,
    pub epochs: Option<u64>,
    pub steps: Option<u64>,
    pub steps_of_epoch: Option<u64>,
    /// Share of the steps that are warm-up.
    pub warmup_share: Option<f64>,
    pub paths: Vec<String>,
    /// What is said of rollouts.
    pub rollout: Rollout,
}

/// Rollouts of a file.
#[derive(Default)]
pub(super) struct Rollout {
    /// Answers to a prompt.
    pub answers: Option<u64>,
    /// Prompts of a rollout, where a file counts them.
    pub prompts: Option<u64>,
    /// Answers of a rollout.
    pub batch: Option<u64>,
    /// Micro batches that share a rollout.
    pub steps: Option<u64>,
    /// Rollouts of the run.
    pub count: Option<u64>,
    /// Tokens of a prompt and of an answer.
    pub prompt_tokens: Option<u64>,
    pub answer_tokens: Option<u64>,
    /// Passes over a rollout.
    pub epochs: Option<u64>,
    /// The loss, and whether its ratios are of whole answers.
    pub loss: Option<String>,
    pub whole: bool,
    /// How advantages follow from rewards.
    pub scale: Option<&'static str>,
    pub each: bool,
}

/// A share of steps as axolotl counts it: rounded down, and two for one, whose rate would be 0 there.
pub(super) fn axolotl_steps(share: f64, steps: u64) -> i64 {
    match (share * steps as f64) as i64 {
        1 => 2,
        steps => steps,
    }
}

impl Draft {
    /// Nothing but what is trained.
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

    /// Sets a key that the file did not say, to what the other tool does then.
    pub fn default(&mut self, path: &str, to: impl Into<Toml>) {
        if !self.has(path) {
            self.set(path, to);
        }
    }

    /// Whether a key was set.
    pub fn has(&self, path: &str) -> bool {
        self.set.iter().any(|setting| setting.path == path)
    }

    /// Whether it was set to 0.
    pub fn is_zero(&self, path: &str) -> bool {
        self.set.iter().any(|setting| setting.path == path && setting.to.as_float() == Some(0.0))
    }

    /// A whole number that was set.
    pub fn integer(&self, path: &str) -> Option<i64> {
        self.set.iter().find(|setting| setting.path == path)?.to.as_integer()
    }

    /// A text that was set.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.set.iter().find(|setting| setting.path == path)?.to.as_str()
    }

    /// A key that could not be said.
    pub fn unsaid(&mut self, key: &str, why: &str) {
        self.unsaid.push((key.to_string(), why.to_string()));
    }

    /// The shipped recipe that is nearest.
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

    /// The recipe, and what could not be said.
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
        // A key that does not exist would be a mistake of the table.
        library::resolve(Layers::with_library(LIBRARY).text("the translation", &recipe))?;
        Ok((recipe, self.unsaid))
    }

    /// Steps of the run, where the file counts them.
    pub fn all_steps(&self) -> Option<u64> {
        self.steps.or(self.steps_of_epoch.map(|steps| steps * self.epochs.unwrap_or(1)))
    }

    /// How long the run is, which is counted in steps or in passes.
    fn length(&mut self) {
        let steps = self.all_steps();
        match (steps, self.epochs) {
            (Some(steps), _) => self.set("stage.0.steps", steps as i64),
            (None, Some(epochs)) => self.set("stage.0.epochs", epochs as i64),
            (None, None) => {}
        }
        // Steps go before a share of them; of axolotl none do as well.
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

    /// The recipe with the first so many settings.
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

    /// A setting that the recipe refuses, and why: the one that the refusal names, or the first with which there is one. Behind the last if
    /// there is a refusal without any.
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

    /// What is wrong with the recipe of the first so many settings, were model, rows, rewards and teacher given.
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
        // Without the place in a file that is not there yet.
        Some(why.find('`').map_or(why.clone(), |at| why[at..].to_string()))
    }
}

/// A shipped recipe with what it extends written out; none if it is no TOML.
fn flat(name: &str) -> Result<Option<DocumentMut>> {
    let text = LIBRARY.text(name)?.unwrap_or_default();
    // Its comments are of values that another tool may have said otherwise.
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
