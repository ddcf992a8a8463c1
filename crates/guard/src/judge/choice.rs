//! A choice among fixed texts: generated under a grammar, and read as probabilities of the model's own distribution.

use std::time::SystemTime;

use fathom_base::{
    GenerateRequest, Prompt, RequestOutput, Sampling, Service, Structure, TokenLogprob, Usage,
};

use super::question::{JudgeError, JudgeResult, Question};

/// Alternatives read per token.
const ALTERNATIVES: usize = 64;

/// Texts to choose from.
#[derive(Clone, Debug)]
pub(crate) struct Choices(Vec<String>);

impl Choices {
    /// Creates choices; none may be the beginning of another.
    pub fn new(texts: &[&str]) -> Choices {
        Choices(texts.iter().map(|text| text.to_string()).collect())
    }

    /// Most tokens of a choice.
    pub fn most_tokens(&self) -> usize {
        self.0.iter().map(String::len).max().unwrap_or(1)
    }

    /// The probability of each choice after each prompt. They sum to 1.
    ///
    /// A choice that is not among the reported alternatives counts with the least of them, which is the most that it can
    /// have: a model that does not answer in this form gives no low score.
    ///
    /// # Errors
    /// The model fails, or the time limit passes.
    pub fn probabilities(
        &self,
        service: &dyn Service,
        prompts: Vec<Vec<u32>>,
        question: Question<'_>,
    ) -> JudgeResult<Vec<Vec<f64>>> {
        let request = |ids| GenerateRequest {
            structure: Some(Structure::Choice(self.0.clone())),
            logprobs: Some(ALTERNATIVES),
            scope: question.scope.to_string(),
            ..GenerateRequest::greedy(Prompt::Ids(ids), self.most_tokens())
        };
        let outputs = answers(service, prompts.into_iter().map(request).collect(), question)?;
        let bytes = |id| service.token_bytes(id);
        outputs.iter().map(|output| self.read(&output.answers[0].logprobs, &bytes)).collect()
    }

    /// Reads the probabilities at the first token that tells the choices apart.
    fn read(&self, tokens: &[TokenLogprob], bytes: &dyn Fn(u32) -> Vec<u8>) -> JudgeResult<Vec<f64>> {
        let lower: Vec<String> = self.0.iter().map(|text| text.trim().to_lowercase()).collect();
        let mut written: Vec<u8> = Vec::new();
        for token in tokens {
            let own = token.logprob.map(|logprob| (token.id, logprob));
            let others = token.top.iter().copied().filter(|(id, _)| *id != token.id);
            let alternatives: Vec<(u32, f32)> = own.into_iter().chain(others).collect();
            let mut masses = vec![0.0; lower.len()];
            let least = token.top.iter().map(|(_, logprob)| f64::from(*logprob).exp()).reduce(f64::min);
            for (id, logprob) in &alternatives {
                let probability = f64::from(*logprob).exp();
                let text = [&written[..], &bytes(*id)[..]].concat();
                if let Some(choice) = only_match(&lower, &String::from_utf8_lossy(&text)) {
                    masses[choice] += probability;
                }
            }
            if masses.iter().any(|mass| *mass > 0.0) {
                let missing = masses.iter_mut().filter(|mass| **mass == 0.0);
                missing.for_each(|mass| *mass = least.unwrap_or(0.0));
                let total: f64 = masses.iter().sum();
                return Ok(masses.into_iter().map(|mass| mass / total).collect());
            }
            written.extend(bytes(token.id));
        }
        Err(JudgeError::Unfit("the judge's answer has no log-probabilities".into()))
    }
}

/// The only choice that a text begins, or that begins the text as whole words; `None` if there are several or none.
fn only_match(choices: &[String], text: &str) -> Option<usize> {
    let text = text.trim_start().to_lowercase();
    let ends_word = |rest: &str| !rest.starts_with(char::is_alphanumeric);
    let fits = |choice: &String| {
        choice.starts_with(&text) || text.strip_prefix(choice.as_str()).is_some_and(ends_word)
    };
    let mut found = choices.iter().enumerate().filter(|(_, choice)| !text.is_empty() && fits(choice));
    match (found.next(), found.next()) {
        (Some((at, _)), None) => Some(at),
        _ => None,
    }
}

/// The outputs of requests that are generated together.
///
/// # Errors
/// The first request that is refused or fails; [`JudgeError::Late`] once the answer is no longer wanted.
pub(crate) fn answers(
    service: &dyn Service,
    requests: Vec<GenerateRequest>,
    question: Question<'_>,
) -> JudgeResult<Vec<RequestOutput>> {
    let began = SystemTime::now();
    let outputs = service.outputs_while(requests, question.wanted)?.ok_or(JudgeError::Late)?;
    let mut usage = Usage::default();
    for output in &outputs {
        usage.prompt_tokens += output.prompt.len();
        usage.cached_tokens += output.usage.as_ref().map_or(0, |usage| usage.cached_tokens);
        usage.answer_tokens += output.answers.iter().map(|answer| answer.ids.len()).sum::<usize>();
    }
    (question.called)(&service.card().name, began, usage);
    Ok(outputs)
}

/// The text that a judge writes after a prompt under a regular expression.
///
/// # Errors
/// The model fails, or the time limit passes.
pub(crate) fn written(
    service: &dyn Service,
    prompt: Vec<u32>,
    regex: String,
    most_tokens: usize,
    question: Question<'_>,
) -> JudgeResult<String> {
    let request = GenerateRequest {
        structure: Some(Structure::Regex(regex)),
        scope: question.scope.to_string(),
        ..GenerateRequest::new(
            Prompt::Ids(prompt),
            Sampling { max_tokens: most_tokens, ..Sampling::default() },
        )
    };
    let outputs = answers(service, vec![request], question)?;
    Ok(outputs.into_iter().flat_map(|output| output.answers).map(|answer| answer.text).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_only_begins_like_a_choice_is_not_that_choice() {
        let of = |texts: &[&str], text: &str| {
            let texts: Vec<String> = texts.iter().map(|text| text.to_string()).collect();
            only_match(&texts, text)
        };
        let safe = ["safe", "unsafe"];
        for (text, expected) in [
            ("safe", Some(0)),
            (" Safe", Some(0)),
            ("sa", Some(0)),
            ("u", Some(1)),
            ("unsafe\nS1", Some(1)),
            ("Not safe.", None),
            ("safely", None),
            ("", None),
            ("\n\n", None),
        ] {
            assert_eq!(of(&safe, text), expected, "{text}");
        }
        assert_eq!(of(&["yes", "no"], "Not"), None);
        assert_eq!(of(&["yes", "no"], "No,"), Some(1));
        assert_eq!(of(&["on-topic", "off-topic"], "o"), None);
    }

    #[test]
    fn a_shared_beginning_is_passed_and_a_missing_choice_counts_at_its_most() {
        let token = |id: u32, p: f32, top: &[(u32, f32)]| TokenLogprob {
            id,
            logprob: Some(p.ln()),
            rank: None,
            top: top.iter().map(|(id, p)| (*id, p.ln())).collect(),
            kept: Vec::new(),
        };
        let bytes =
            |id: u32| [b'o', b'n', b'f', b'x'][id as usize..].first().map(|b| vec![*b]).unwrap_or_default();
        let choices = Choices::new(&["on-topic", "off-topic"]);
        let found = choices
            .read(&[token(0, 0.9, &[(0, 0.9)]), token(1, 0.6, &[(1, 0.6), (2, 0.2), (3, 0.1)])], &bytes)
            .unwrap();
        assert!((found[0] - 0.75).abs() < 1e-6 && (found[1] - 0.25).abs() < 1e-6, "{found:?}");
        let found =
            choices.read(&[token(0, 0.9, &[]), token(1, 0.6, &[(1, 0.6), (3, 0.2)])], &bytes).unwrap();
        assert!((found[1] - 0.25).abs() < 1e-6, "{found:?}");
    }
}
