//! Hallucination: the question is answered several times more, and a judge says whether the answers agree (the method
//! of SelfCheckGPT by prompts, arXiv:2303.08896).

use fathom_base::{Conversation, GenerateRequest, Prompt, Sampling};

use crate::config::Setting;
use crate::judge::{Choices, Judge, JudgeError, JudgePrompt, PromptText, Question, Turn, answers};
use crate::needs::Needs;
use crate::rail::{Action, Cost, Failure, Horizon, Manifest, Opinion, Rail, RailInput, Until};
use crate::rails::judging::{ScoredSpan, asked, judge_options, opinion, opinion_of, service};
use crate::registry::{OptionError, RailKind};
use crate::verdict::{Direction, Reason};

/// Places of a prompt.
const PLACES: &[&str] = &["text", "sample"];

const PROMPT: &str = "Passage:\n\"\"\"\n{{ sample }}\n\"\"\"\n\nStatement:\n\"\"\"\n{{ text }}\n\"\"\"\n\n\
                      Does the statement agree with the passage? Answer yes or no.";

judge_options!(Options, 2048, 128, {
    /// Answers that are compared with the given one.
    #[serde(default = "two")]
    samples: usize,
    /// Temperature at which they are sampled.
    #[serde(default = "one")]
    temperature: f64,
    /// Most tokens of each.
    #[serde(default = "sample_tokens")]
    sample_tokens: usize,
    /// The whole prompt, with the places `{{ text }}` and `{{ sample }}`; it asks whether they agree.
    #[serde(default)]
    prompt: Option<String>,
    /// Model that judges the agreement; by default the one that answers.
    #[serde(default)]
    judge: Option<String>,
});

fn two() -> usize {
    2
}

fn one() -> f64 {
    1.0
}

fn sample_tokens() -> usize {
    512
}

/// The kind `hallucination`.
pub struct Hallucination {
    answering: Judge,
    judge: Judge,
    prompt: PromptText,
    samples: usize,
    sampling: Sampling,
    threshold: f64,
}

impl RailKind for Hallucination {
    type Options = Options;

    const MANIFEST: &'static Manifest = &Manifest {
        name: "hallucination",
        summary: "agreement of an answer with further answers to its question",
        directions: &[Direction::Output],
        actions: &[Action::Block, Action::Flag],
        cost: Cost::Model,
    };

    fn build(options: Options, _: &Setting, needs: &Needs) -> Result<Box<dyn Rail>, OptionError> {
        if !(1..=16).contains(&options.samples) {
            return Err(OptionError::new("samples", "is from 1 to 16"));
        }
        if !(options.temperature > 0.0 && options.temperature <= 2.0) {
            return Err(OptionError::new(
                "temperature",
                "is above 0, so that answers can differ, and at most 2",
            ));
        }
        let answering = options.judging(needs).judge()?;
        let judge = match &options.judge {
            None => answering.clone(),
            Some(name) => Judge { service: service(needs, "judge", name)?, ..answering.clone() },
        };
        let prompt = PromptText::parse(options.prompt.as_deref().unwrap_or(PROMPT), PLACES);
        Ok(Box::new(Hallucination {
            answering,
            judge,
            prompt: prompt.map_err(|why| OptionError::new("prompt", why))?,
            samples: options.samples,
            sampling: Sampling {
                temperature: options.temperature,
                max_tokens: options.sample_tokens,
                ..Sampling::default()
            },
            threshold: options.threshold,
        }))
    }
}

impl Hallucination {
    /// Further answers to the question; as many as configured, or an error.
    fn sampled(&self, judged: &RailInput<'_>, question: Question<'_>) -> Result<Vec<String>, JudgeError> {
        let service = &*self.answering.service;
        let context = judged.context;
        let prompt = if service.card().converses {
            Prompt::Conversation(Conversation {
                messages: context.messages.clone(),
                tools: context.tools.clone(),
                add_generation_prompt: true,
                ..Conversation::default()
            })
        } else {
            let texts = context.messages.iter().map(|message| crate::rails::judging::message_text(message).1);
            Prompt::Text(texts.collect::<Vec<_>>().join("\n\n"))
        };
        let request = GenerateRequest {
            answers: self.samples,
            scope: question.scope.to_string(),
            ..GenerateRequest::new(prompt, self.sampling.clone())
        };
        let outputs = answers(service, vec![request], question)?;
        let texts: Vec<String> =
            outputs.into_iter().flat_map(|output| output.answers).map(|answer| answer.text).collect();
        if texts.len() < self.samples {
            return Err(JudgeError::Unfit(format!(
                "{} of {} answers were sampled",
                texts.len(),
                self.samples
            )));
        }
        Ok(texts)
    }

    fn opinion(&self, judged: &RailInput<'_>, question: Question<'_>) -> Result<Opinion, JudgeError> {
        if judged.context.messages.is_empty() {
            return Err(JudgeError::Unfit(
                "the question of the answer is not known; send its messages".into(),
            ));
        }
        let choices = Choices::new(&["yes", "no"]);
        let mut disagreement: Vec<ScoredSpan> = Vec::new();
        for sample in self.sampled(judged, question)? {
            let turns = [Turn::new("user", self.prompt.pieces(&|_| sample.clone()))];
            let prompt = JudgePrompt::conversation(&*self.judge.service, &turns, Default::default(), "")?;
            for (at, window) in
                self.judge.ask(judged.text, &prompt, &choices, question)?.into_iter().enumerate()
            {
                let score = window.probabilities[1] / self.samples as f64;
                match disagreement.get_mut(at) {
                    Some(span) => span.score += score,
                    None => {
                        let kinds = vec!["inconsistent".into()];
                        disagreement.push(ScoredSpan { span: window.span, score, kinds });
                    }
                }
            }
        }
        Ok(opinion_of(disagreement, self.threshold, Reason::Inconsistent))
    }
}

impl Rail for Hallucination {
    fn judge(&self, judged: &RailInput<'_>, until: &Until) -> Result<Opinion, Failure> {
        opinion(judged, asked(judged, until, |question| self.opinion(judged, question)))
    }

    fn horizon(&self) -> Horizon {
        Horizon::Whole
    }

    fn ready(&self, until: &Until) -> Result<(), Failure> {
        crate::rails::judging::ready(self, Direction::Output, until)
    }
}
