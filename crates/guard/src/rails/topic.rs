//! Topic control: a policy as the judge's instruction, and the conversation after it.

use crate::config::Setting;
use crate::judge::{Choices, Judge, JudgePrompt, Piece, Turn};
use crate::needs::Needs;
use crate::rail::{Action, Cost, Failure, Horizon, Manifest, Opinion, Rail, RailInput, Until};
use crate::rails::judging::{ScoredSpan, asked, history, judge_options, opinion, opinion_of};
use crate::registry::{OptionError, RailKind};
use crate::verdict::{Direction, Reason};

/// Instruction after the policy, as published with the topic control models.
const RESTRICTION: &str = "If any of the above conditions are violated, please respond with \"off-topic\". \
                           Otherwise, respond with \"on-topic\". You must respond with \"on-topic\" or \"off-topic\".";

judge_options!(Options, 2048, 128, {
    /// The policy: which topics are allowed.
    policy: String,
});

/// The kind `topic`.
pub struct Topic {
    judge: Judge,
    instruction: String,
    threshold: f64,
}

impl RailKind for Topic {
    type Options = Options;

    const MANIFEST: &'static Manifest = &Manifest {
        name: "topic",
        summary: "allowed topics in words, judged by a language model",
        directions: &[Direction::Input],
        actions: &[Action::Block, Action::Flag],
        cost: Cost::Model,
    };

    fn build(options: Options, _: &Setting, needs: &Needs) -> Result<Box<dyn Rail>, OptionError> {
        let policy = options.policy.trim();
        if policy.is_empty() {
            return Err(OptionError::new("policy", "is empty; describe the allowed topics in words"));
        }
        let instruction = if policy.ends_with(RESTRICTION) {
            policy.to_string()
        } else {
            format!("{policy}\n\n{RESTRICTION}")
        };
        Ok(Box::new(Topic {
            judge: options.judging(needs).judge()?,
            instruction,
            threshold: options.threshold,
        }))
    }
}

impl Rail for Topic {
    fn judge(&self, judged: &RailInput<'_>, until: &Until) -> Result<Opinion, Failure> {
        let choices = Choices::new(&["on-topic", "off-topic"]);
        let found = asked(judged, until, |question| {
            let mut turns = vec![Turn::new("system", vec![Piece::Own(self.instruction.clone())])];
            turns.extend(
                history(judged).into_iter().map(|(role, text)| Turn::new(role, vec![Piece::Text(text)])),
            );
            turns.push(Turn::new("user", vec![Piece::JudgedText]));
            let prompt = JudgePrompt::conversation(&*self.judge.service, &turns, Default::default(), "")?;
            let windows = self.judge.ask(judged.text, &prompt, &choices, question)?;
            // The policy holds for all of a long message, so one window outside it condemns the message.
            let scored = windows.into_iter().map(|window| ScoredSpan {
                span: window.span,
                score: window.probabilities[1],
                kinds: vec!["off_topic".into()],
            });
            Ok(opinion_of(scored.collect(), self.threshold, Reason::OffTopic))
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
