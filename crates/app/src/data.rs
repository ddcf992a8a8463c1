//! What a recipe's lessons are as tokens: every row, before anything is trained.

use fathom_text::lessons::Lessons;
use fathom_text::pack::{Doc, Packing, pack};

use crate::error::Result;
use crate::events::Silent;
use crate::job::Job;
use crate::text::lessons::{shown, template};
use crate::text::{fetched, tokenizer};

pub use fathom_base::metrics::events::Lesson;

/// Longest rows that are named.
const LONGEST: usize = 5;

/// A row as tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Its place among all, from 0; rows that cannot be taught count.
    pub index: usize,
    /// Token ids.
    pub ids: Vec<u32>,
    /// 1 of each token that is learned, 0 of the others.
    pub supervised: Vec<u8>,
    /// Their text, special tokens spelled out.
    pub text: String,
    /// The same in parts, for people.
    pub lesson: Lesson,
}

/// All rows together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checked {
    /// Rows that can be taught.
    pub rows: usize,
    /// Their tokens.
    pub tokens: u64,
    /// Those that are learned.
    pub supervised: u64,
    /// Tokens that truncation takes, and from how many rows.
    pub cut: (u64, usize),
    /// Index and tokens of the longest, the longest first.
    pub longest: Vec<(usize, usize)>,
    /// What is wrong with each row that cannot be taught.
    pub refused: Vec<String>,
    /// Tokens of a sample, and the share of samples' tokens that is filled by best fit.
    pub fill: Option<(usize, f64)>,
}

/// Makes tokens of every row, in the order of the files, and hands them to `each`, which ends it by `false`.
///
/// # Errors
/// Files or a tokenizer that cannot be read; a chat template that is none.
pub fn check(job: &Job, each: &mut dyn FnMut(Row) -> bool) -> Result<Checked> {
    let recipe = job.recipe();
    let given = tokenizer::given(job)?;
    let template = template(job, &given)?;
    let longest = recipe.stage.iter().map(|stage| stage.seq_tokens).max().unwrap_or(0);
    let teaching = recipe.teaching();
    let (mut checked, mut docs) = (Checked::default(), Vec::new());
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
            let learned = |(at, weight): (usize, &f32)| u8::from(at > 0 && *weight > 0.0);
            let supervised = lesson.weights.iter().enumerate().map(learned).collect();
            let (text, parts) = (given.decode(&lesson.ids), shown(&lesson, &given));
            if !each(Row { index, ids: lesson.ids, supervised, text, lesson: parts }) {
                return Ok(checked);
            }
        }
    }
    if longest > 0 && !docs.is_empty() {
        let samples = pack(&docs, longest as u32, Packing::BestFit).len();
        checked.fill = Some((longest, checked.tokens as f64 / (samples * longest) as f64));
    }
    Ok(checked)
}
