//! Any encoder with labels: texts are condemned by the probabilities of some of them.

use crate::config::Setting;
use crate::judge::{Classifier as Model, JudgeError, Question};
use crate::needs::Needs;
use crate::rail::{Action, Cost, Failure, Horizon, Manifest, Opinion, Rail, RailInput, Until};
use crate::rails::judging::{ScoredSpan, asked, judge_options, opinion, opinion_of};
use crate::registry::{OptionError, RailKind};
use crate::verdict::{Direction, Reason};

judge_options!(Options, 512, 64, {
    /// Labels that condemn a text.
    #[serde(deserialize_with = "crate::registry::list")]
    blocked_labels: Vec<String>,
});

/// The kind `classifier`.
pub struct Classifier {
    model: Model,
    labels: Vec<(String, usize)>,
    threshold: f64,
}

impl RailKind for Classifier {
    type Options = Options;

    const MANIFEST: &'static Manifest = &Manifest {
        name: "classifier",
        summary: "labels of any classifier, in windows over all of a text",
        directions: &Direction::ALL,
        actions: &[Action::Block, Action::Flag],
        cost: Cost::Model,
    };

    fn build(options: Options, _: &Setting, needs: &Needs) -> Result<Box<dyn Rail>, OptionError> {
        if options.blocked_labels.is_empty() {
            return Err(OptionError::new(
                "blocked_labels",
                "is empty, so nothing would ever be blocked; name at least one label",
            ));
        }
        let model = options.judging(needs).classifier()?;
        let places = model.labels(&options.blocked_labels);
        let places = places.map_err(|why| OptionError::new("blocked_labels", why.to_string()))?;
        let labels = options.blocked_labels.iter().cloned().zip(places).collect();
        Ok(Box::new(Classifier { model, labels, threshold: options.threshold }))
    }
}

/// The windows of a text with the probability of each label in turn.
pub(crate) fn scored(
    model: &Model,
    labels: &[(String, usize)],
    text: &str,
    question: Question<'_>,
) -> Result<Vec<ScoredSpan>, JudgeError> {
    let windows = model.classes(text, question)?;
    let span = |window: &crate::judge::WindowClasses| {
        let span = window.span.clone();
        let numbers = window.numbers.clone();
        labels.iter().map(move |(name, at)| ScoredSpan {
            span: span.clone(),
            score: numbers.get(*at).map_or(1.0, |number| f64::from(*number)),
            kinds: vec![name.to_lowercase()],
        })
    };
    Ok(windows.iter().flat_map(span).collect())
}

impl Rail for Classifier {
    fn judge(&self, judged: &RailInput<'_>, until: &Until) -> Result<Opinion, Failure> {
        let found = asked(judged, until, |question| {
            let spans = scored(&self.model, &self.labels, judged.text, question)?;
            Ok(opinion_of(spans, self.threshold, Reason::Label))
        });
        opinion(judged, found)
    }

    fn horizon(&self) -> Horizon {
        Horizon::Bytes(0)
    }

    fn ready(&self, until: &Until) -> Result<(), Failure> {
        crate::rails::judging::ready(self, Direction::Input, until)
    }
}
