//! Training rows as tokens, checked before anything is trained.

use fathom_text::Tokenizer;
use fathom_text::lessons::{Lesson as TextLesson, Lessons, Truncation};
use fathom_text::loader::{LengthCounts, Spec};
use fathom_text::pack::{Doc, Packing, pack};
use fathom_train::loader_spec;
use fathom_train::recipe::{Recipe, Stage};

use crate::error::{Result, refuse};
use crate::events::Silent;
use crate::job::Job;
use crate::text::lessons::{short, shown, template};
use crate::text::{fetched, tokenizer};

pub use fathom_base::metrics::events::Lesson;
pub use fathom_text::chat::Shows;

/// Number of longest rows that are listed.
const LONGEST: usize = 5;

/// A row as tokens. Readable forms are made on demand, since decoding takes longer than tokenizing.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Index of the row, from 0; refused rows count.
    pub index: usize,
    taught: &'a TextLesson,
    tokenizer: &'a Tokenizer,
}

impl Row<'_> {
    /// Token ids.
    pub fn ids(&self) -> &[u32] {
        &self.taught.ids
    }

    /// Returns 1 for each token that is a target, 0 for the others.
    pub fn supervised(&self) -> Vec<u8> {
        let learned = |(at, weight): (usize, &f32)| u8::from(at > 0 && *weight > 0.0);
        self.taught.weights.iter().enumerate().map(learned).collect()
    }

    /// Returns the row's text, with special tokens spelled out.
    pub fn text(&self) -> String {
        self.tokenizer.decode(&self.taught.ids)
    }

    /// Returns the row's parts for display.
    pub fn lesson(&self) -> Lesson {
        shown(self.taught, self.tokenizer)
    }
}

/// Summary of all rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DataSummary {
    /// Number of valid rows.
    pub rows: usize,
    /// Number of tokens of the valid rows.
    pub tokens: u64,
    /// Number of tokens that are targets.
    pub supervised: u64,
    /// Number of tokens lost to truncation, and of rows affected.
    pub cut: (u64, usize),
    /// Index and length of the longest rows, longest first.
    pub longest: Vec<(usize, usize)>,
    /// Reasons why rows were refused, one per refused row.
    pub refused: Vec<String>,
    /// Messages about stages whose samples are too short for some rows.
    pub short: Vec<String>,
    /// Tokens per sample, and the share of sample tokens that best-fit packing fills.
    pub fill: Option<(usize, f64)>,
    /// How the chat template marks the model's words in a conversation; `None` without a template.
    pub shows: Option<Shows>,
}

/// Effect of each stage's truncation on rows longer than its samples.
struct Stages(Vec<(String, Spec, LengthCounts)>);

impl Stages {
    fn new(recipe: &Recipe) -> Stages {
        let stage = |(index, stage): (usize, &Stage)| {
            (stage.name.clone(), loader_spec(recipe, index, 0.0), LengthCounts::default())
        };
        Stages(recipe.stage.iter().enumerate().map(stage).collect())
    }

    /// Counts a row's documents, which must share a sample if there are several. Returns the reason if a run would
    /// refuse the row.
    fn add(&mut self, documents: &[TextLesson]) -> Option<String> {
        let tokens: usize = documents.iter().map(|document| document.ids.len()).sum();
        for (name, spec, found) in &mut self.0 {
            let room = spec.room();
            let Some(kept) = spec.kept.filter(|_| tokens > room && spec.packing != Packing::Concatenate)
            else {
                continue;
            };
            if let ([lesson], false) = (documents, kept == Truncation::Error) {
                let kept = kept.kept(tokens, room);
                found.count(lesson.weights[kept].iter().skip(1).any(|weight| *weight > 0.0));
            } else {
                return Some(format!(
                    "has {tokens} tokens that belong together, and a sample of stage {name} {room}; raise stage.*.seq_tokens"
                ));
            }
        }
        None
    }

    fn said(&self) -> Vec<String> {
        self.0.iter().filter_map(|(name, spec, found)| short(name, spec, *found)).collect()
    }
}

/// Tokenizes every row in the order of the files and passes it to `each`, which ends the pass by returning `false`.
///
/// # Errors
/// Files or a tokenizer that cannot be read; an invalid chat template.
pub fn check(job: &Job, each: &mut dyn FnMut(Row<'_>) -> bool) -> Result<DataSummary> {
    let recipe = job.recipe();
    let given = tokenizer::given(job)?;
    let template = template(job, &given)?;
    let longest = recipe.stage.iter().map(|stage| stage.seq_tokens).max().unwrap_or(0);
    let teaching = recipe.teaching();
    let shows = template.as_ref().map(|template| template.shows().clone());
    let (mut checked, mut docs) = (DataSummary { shows, ..DataSummary::default() }, Vec::new());
    let mut stages = Stages::new(recipe);
    let paths = fetched::rows(&recipe.data.paths, &job.data().join("fetched"), &Silent)?;
    let lessons = Lessons::new(paths, (&given, template.as_ref()), &teaching);
    for (index, lesson) in lessons.enumerate() {
        let documents = match lesson {
            Ok(documents) => documents,
            Err(error @ fathom_text::Error::Row { .. }) => {
                checked.refused.push(error.to_string());
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if let Some(reason) = stages.add(&documents) {
            checked.refused.push(format!("row {index} {reason}"));
            continue;
        }
        checked.rows += 1;
        let together: usize = documents.iter().map(|document| document.ids.len()).sum();
        docs.push(Doc { doc: index as u64, tokens: together as u64 });
        for lesson in documents {
            checked.tokens += lesson.ids.len() as u64;
            checked.supervised += lesson.supervised() as u64;
            checked.cut.0 += lesson.cut as u64;
            checked.cut.1 += usize::from(lesson.cut > 0);
            checked.longest.push((index, lesson.ids.len() + lesson.cut));
            checked.longest.sort_by_key(|(index, tokens)| (std::cmp::Reverse(*tokens), *index));
            checked.longest.truncate(LONGEST);
            if !each(Row { index, taught: &lesson, tokenizer: &given }) {
                return Ok(checked);
            }
        }
    }
    if checked.rows == 0 && checked.refused.is_empty() {
        let names: Vec<String> = recipe.data.paths.iter().map(|path| path.display().to_string()).collect();
        refuse!("{}: there is no row to learn from; a lesson is a JSON object on a line", names.join(", "));
    }
    checked.short = stages.said();
    if longest > 0 && !docs.is_empty() {
        let samples = pack(&docs, longest as u32, Packing::BestFit).len();
        checked.fill = Some((longest, checked.tokens as f64 / (samples * longest) as f64));
    }
    Ok(checked)
}
