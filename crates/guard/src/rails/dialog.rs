//! Dialog: messages of users as canonical forms, by examples, and fixed answers to some of them. A form without an
//! answer is left to the model; it exists so that similar messages are not taken for another form.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use fathom_base::{Evaluate, Numbers, Service};
use serde::Deserialize;

use crate::config::Setting;
use crate::judge::{Choices, Judge, JudgeError, JudgePrompt, Piece, Question, Turn};
use crate::needs::Needs;
use crate::rail::{Action, Cost, Failure, Horizon, Manifest, Opinion, Rail, RailInput, Until};
use crate::rails::judging::{asked, judge_options, opinion};
use crate::registry::{OptionError, RailKind};
use crate::verdict::{Direction, Finding, Reason};

/// Examples of a form that a language model reads.
const EXAMPLES: usize = 5;
/// Most forms of a rail: their numbers have three digits, so that none begins another.
const MOST_FORMS: usize = 999;

judge_options!(Options, 2048, 128, {
    /// Canonical forms.
    forms: Vec<CanonicalForm>,
});

/// A canonical form.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CanonicalForm {
    /// Name, such as `ask about politics`.
    name: String,
    /// Messages of this form.
    #[serde(deserialize_with = "crate::registry::list")]
    examples: Vec<String>,
    /// Fixed answer; none lets the model answer.
    #[serde(default)]
    answer: Option<String>,
}

/// How forms are recognised.
enum Recogniser {
    /// By the nearest example; vectors of all examples with their forms, computed once.
    Vectors(Arc<dyn Service>, Mutex<Option<Arc<Examples>>>),
    /// By a language model that chooses a number.
    Choice(Judge),
}

/// Unit vectors of examples with the positions of their forms.
type Examples = Vec<(usize, Vec<f32>)>;

/// The kind `dialog`.
pub struct Dialog {
    recogniser: Recogniser,
    forms: Vec<CanonicalForm>,
    threshold: f64,
    most_tokens: usize,
}

impl RailKind for Dialog {
    type Options = Options;

    const MANIFEST: &'static Manifest = &Manifest {
        name: "dialog",
        summary: "fixed answers to canonical forms of messages, recognised by examples",
        directions: &[Direction::Input],
        actions: &[Action::Block, Action::Flag],
        cost: Cost::Model,
    };

    fn build(options: Options, _: &Setting, needs: &Needs) -> Result<Box<dyn Rail>, OptionError> {
        let forms = &options.forms;
        let names: BTreeSet<&str> = forms.iter().map(|form| &*form.name).collect();
        if names.len() < forms.len() || names.contains("") {
            return Err(OptionError::new("forms", "have distinct names that are not empty"));
        }
        if forms.len() > MOST_FORMS {
            return Err(OptionError::new(
                "forms",
                format!("are {} forms; {MOST_FORMS} are the most", forms.len()),
            ));
        }
        if let Some(form) = forms.iter().find(|form| form.examples.is_empty()) {
            return Err(OptionError::new("forms", format!("`{}` has no examples", form.name)));
        }
        if forms.iter().all(|form| form.answer.is_none()) {
            return Err(OptionError::new("forms", "have no answer, so the rail would do nothing"));
        }
        let service = crate::rails::judging::service(needs, "model", &options.model)?;
        let recogniser = if service.card().generates {
            Recogniser::Choice(options.judging(needs).judge()?)
        } else {
            Recogniser::Vectors(service, Mutex::default())
        };
        let (threshold, most_tokens) = (options.threshold, options.max_tokens);
        Ok(Box::new(Dialog { recogniser, forms: options.forms, threshold, most_tokens }))
    }
}

/// Number of a form in a prompt.
fn number(at: usize) -> String {
    format!("{at:03}")
}

/// Unit vectors of texts.
fn vectors(
    service: &dyn Service,
    texts: Vec<&str>,
    most: usize,
    question: Question<'_>,
) -> Result<Vec<Vec<f32>>, JudgeError> {
    let most = most.min(service.card().context_tokens);
    let read = |text: &str| {
        let ids = service.read(&(text.to_string(), None), Numbers::Vector, None)?;
        if ids.ids.len() > most {
            return Err(JudgeError::TooLong { tokens: ids.ids.len(), most });
        }
        Ok(ids)
    };
    let texts = texts.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let found = Evaluate::look_while(service, texts, Numbers::Vector, question.wanted)?;
    found.ok_or(JudgeError::Late)
}

impl Dialog {
    /// Probability or similarity of each form.
    fn scores(&self, text: &str, question: Question<'_>) -> Result<Vec<f64>, JudgeError> {
        match &self.recogniser {
            Recogniser::Vectors(service, kept) => {
                let examples = self.examples(&**service, kept, question)?;
                let own = vectors(&**service, vec![text], self.most_tokens, question)?;
                let own = own.first().ok_or(JudgeError::Late)?;
                let mut best = vec![0.0; self.forms.len()];
                for (form, vector) in examples.iter() {
                    let cosine: f64 = own.iter().zip(vector).map(|(a, b)| f64::from(a * b)).sum();
                    best[*form] = f64::max(best[*form], cosine);
                }
                Ok(best)
            }
            Recogniser::Choice(judge) => {
                let numbers: Vec<String> = (0..=self.forms.len()).map(number).collect();
                let choices = Choices::new(&numbers.iter().map(|number| &**number).collect::<Vec<_>>());
                let windows = judge.ask(text, &self.prompt(judge)?, &choices, question)?;
                let best = |form: usize| windows.iter().map(|it| it.probabilities[form]).fold(0.0, f64::max);
                Ok((1..=self.forms.len()).map(best).collect())
            }
        }
    }

    /// The vectors of all examples.
    fn examples(
        &self,
        service: &dyn Service,
        kept: &Mutex<Option<Arc<Examples>>>,
        question: Question<'_>,
    ) -> Result<Arc<Examples>, JudgeError> {
        if let Some(examples) = &*kept.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(examples.clone());
        }
        let all: Vec<(usize, &str)> = self
            .forms
            .iter()
            .enumerate()
            .flat_map(|(at, form)| form.examples.iter().map(move |text| (at, &**text)))
            .collect();
        let found = vectors(service, all.iter().map(|(_, text)| *text).collect(), usize::MAX, question)?;
        let examples = Arc::new(all.into_iter().map(|(at, _)| at).zip(found).collect::<Examples>());
        *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(examples.clone());
        Ok(examples)
    }

    fn prompt(&self, judge: &Judge) -> Result<JudgePrompt, JudgeError> {
        let mut text = String::from("Messages are of these forms:\n");
        for (at, form) in self.forms.iter().enumerate() {
            let examples: Vec<String> =
                form.examples.iter().take(EXAMPLES).map(|example| format!("\"{example}\"")).collect();
            text += &format!("{} {}: {}\n", number(at + 1), form.name, examples.join(", "));
        }
        text += &format!("{} none of these\n\nThe message:\n\"\"\"\n", number(0));
        let pieces = vec![
            Piece::Own(text),
            Piece::JudgedText,
            Piece::Own("\n\"\"\"\n\nAnswer with the number of its form alone.".into()),
        ];
        JudgePrompt::conversation(&*judge.service, &[Turn::new("user", pieces)], Default::default(), "")
    }
}

impl Rail for Dialog {
    fn judge(&self, judged: &RailInput<'_>, until: &Until) -> Result<Opinion, Failure> {
        let found = asked(judged, until, |question| {
            let scores = self.scores(judged.text, question)?;
            let best = (0..scores.len()).max_by(|a, b| scores[*a].total_cmp(&scores[*b])).unwrap_or(0);
            let form = &self.forms[best];
            let answer = form.answer.clone().filter(|_| scores[best] >= self.threshold);
            let score = if form.answer.is_some() { scores[best].clamp(0.0, 1.0) } else { 0.0 };
            let finding =
                answer.is_some().then(|| Finding::new(0..judged.text.len(), form.name.replace(' ', "_")));
            let opinion = Opinion::of(Reason::OffTopic, finding.into_iter().collect()).scored(score);
            Ok(Opinion { message: answer, ..opinion })
        });
        opinion(judged, found)
    }

    fn horizon(&self) -> Horizon {
        Horizon::Whole
    }

    fn ready(&self, until: &Until) -> Result<(), Failure> {
        crate::rails::judging::ready(self, Direction::Input, until)
    }
}
