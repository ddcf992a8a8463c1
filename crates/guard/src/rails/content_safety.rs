//! Content safety by published guard models. The verdict is a probability; categories are generated under a grammar of
//! the configured ones, so that an answer always has a meaning.

use crate::config::Setting;
use crate::judge::{Judge, JudgeError, Question, WindowScore, written};
use crate::needs::Needs;
use crate::rail::{Action, Cost, Failure, Horizon, Manifest, Opinion, Rail, RailInput, Until};
use crate::rails::judging::{ScoredSpan, asked, history, judge_options, opinion, opinion_of};
use crate::rails::safety::{Category, Codes, Exchange, Format, SafetyQuestion};
use crate::registry::{OptionError, RailKind};
use crate::verdict::{Direction, Reason};

judge_options!(Options, 1024, 128, {
    /// Form of the model's questions and answers.
    format: Format,
    /// Codes of the categories that are judged; all of the model's if empty.
    #[serde(default)]
    #[serde(deserialize_with = "crate::registry::list")]
    categories: Vec<String>,
});

/// The kind `content_safety`.
pub struct ContentSafety {
    judge: Judge,
    format: Format,
    categories: Vec<Category>,
    threshold: f64,
}

impl RailKind for ContentSafety {
    type Options = Options;

    const MANIFEST: &'static Manifest = &Manifest {
        name: "content_safety",
        summary: "categories of unsafe content, judged by a guard model",
        directions: &Direction::ALL,
        actions: &[Action::Block, Action::Flag],
        cost: Cost::Model,
    };

    fn build(options: Options, _: &Setting, needs: &Needs) -> Result<Box<dyn Rail>, OptionError> {
        let all = options.format.categories();
        let find = |code: &String| {
            all.iter().find(|(own, _)| own.eq_ignore_ascii_case(code)).copied().ok_or_else(|| {
                let codes: Vec<&str> = all.iter().map(|(code, _)| *code).collect();
                OptionError::new(
                    "categories",
                    format!("there is no category `{code}`; there are {}", codes.join(", ")),
                )
            })
        };
        let categories = if options.categories.is_empty() {
            options.format.usual().to_vec()
        } else {
            options.categories.iter().map(find).collect::<Result<_, _>>()?
        };
        Ok(Box::new(ContentSafety {
            judge: options.judging(needs).judge()?,
            format: options.format,
            categories,
            threshold: options.threshold,
        }))
    }
}

impl ContentSafety {
    fn opinion(&self, judged: &RailInput<'_>, question: Question<'_>) -> Result<Opinion, JudgeError> {
        let answer = matches!(judged.direction, Direction::Output | Direction::ToolCall);
        let exchange = Exchange { history: history(judged), answer };
        let questions = self.format.questions(&*self.judge.service, &self.categories, &exchange)?;
        let mut spans = Vec::new();
        for asked in &questions {
            for window in self.judge.ask(judged.text, &asked.prompt, &asked.choices, question)? {
                let score = window.probabilities[asked.condemns];
                let kinds =
                    if score >= self.threshold { self.kinds(asked, &window, question)? } else { Vec::new() };
                spans.push(ScoredSpan { span: window.span, score, kinds });
            }
        }
        Ok(opinion_of(spans, self.threshold, Reason::Unsafe))
    }

    /// Categories of a condemned window.
    fn kinds(
        &self,
        asked: &SafetyQuestion,
        window: &WindowScore,
        question: Question<'_>,
    ) -> Result<Vec<String>, JudgeError> {
        let Some(codes) = &asked.codes else {
            return Ok(vec![asked.category.unwrap_or("unsafe").to_string()]);
        };
        let service = &*self.judge.service;
        let verdict = format!("unsafe{}", codes.lead);
        let prompt =
            [&window.prompt[..], &service.encode(&verdict, fathom_base::SpecialTokens::Rendered)?].concat();
        let room = service.card().context_tokens.saturating_sub(prompt.len());
        let text = written(service, prompt, codes.regex(), room.min(codes.most_tokens()), question)?;
        let found = codes.read(&text);
        Ok(if found.is_empty() { vec!["unsafe".into()] } else { found })
    }
}

impl Codes {
    /// A regular expression of one or more categories.
    pub fn regex(&self) -> String {
        let names: Vec<String> = self.names.iter().map(|(name, _)| regex_syntax::escape(name)).collect();
        let (any, separator) = (names.join("|"), regex_syntax::escape(self.separator));
        format!("({any})({separator}({any})){{0,{}}}", self.names.len().saturating_sub(1).min(4))
    }

    /// Most tokens of a list.
    pub fn most_tokens(&self) -> usize {
        let longest = self.names.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        (longest + self.separator.len()) * self.names.len().min(5)
    }

    /// The codes of a list. A name that was cut short is none.
    pub fn read(&self, text: &str) -> Vec<String> {
        let code =
            |part: &str| self.names.iter().find(|(name, _)| name == part).map(|(_, code)| code.to_string());
        text.split(self.separator).filter_map(|part| code(part.trim())).collect()
    }
}

impl Rail for ContentSafety {
    fn judge(&self, judged: &RailInput<'_>, until: &Until) -> Result<Opinion, Failure> {
        opinion(judged, asked(judged, until, |question| self.opinion(judged, question)))
    }

    fn horizon(&self) -> Horizon {
        Horizon::Bytes(0)
    }

    fn ready(&self, until: &Until) -> Result<(), Failure> {
        crate::rails::judging::ready(self, Direction::Input, until)
    }
}
