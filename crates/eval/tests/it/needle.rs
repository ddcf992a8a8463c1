//! Needles with models that can look up and models that cannot.

use std::time::Duration;

use fathom_base::{Flow, Generate, GenerateRequest, Generation, Prompt, Result, Stop};
use fathom_eval::*;

use crate::tokenizer;

/// Continues a prompt by what `answer` makes of it, in pieces of two bytes.
struct Answering<F: FnMut(&str) -> String>(F);

impl<F: FnMut(&str) -> String> Generate for Answering<F> {
    fn generate(
        &mut self,
        request: &GenerateRequest,
        on_text: &mut dyn FnMut(&str) -> Flow,
    ) -> Result<Generation> {
        let Prompt::Text(prompt) = &request.prompt else { panic!("text was expected") };
        let text = (self.0)(prompt);
        let mut stop = Stop::Length;
        for piece in text.as_bytes().chunks(2) {
            if on_text(std::str::from_utf8(piece).unwrap()) == Flow::Stop {
                stop = Stop::Receiver;
                break;
            }
        }
        let (ids, prompt_tokens) = (vec![], prompt.len());
        Ok(Generation { text, ids, stop, prompt_tokens, prefill_s: 0.0, decode_s: 0.0 })
    }
}

/// What followed the last line's words where they stood before.
fn look_up(prompt: &str) -> String {
    let asked = prompt.rfind("The words").unwrap() + "The ".len();
    let words = &prompt[asked..];
    let at = prompt.find(words).unwrap() + words.len();
    prompt[at..].lines().next().unwrap().trim_end_matches('.').to_owned()
}

fn spec() -> NeedleSpec {
    NeedleSpec {
        lengths_tokens: vec![600, 200],
        depths: vec![0.0, 0.5, 1.0],
        trials: 4,
        seed: 3,
        filler: vec!["Over the hills and far away.".into()],
        budget: None,
    }
}

#[test]
fn a_model_that_looks_up_is_right_and_one_that_guesses_is_not() {
    let tokenizer = tokenizer();
    let found = find_needles(&mut Answering(look_up), &tokenizer, &spec()).unwrap();
    assert_eq!((found.accuracy(600), found.untried_tokens.len()), (Some(1.0), 0));
    let event = found.to_event(&Moment { when: "before_extension".into(), step: 5, trained_tokens: 256 });
    assert_eq!((event.lengths_tokens, event.trials), (vec![200, 600], 4));
    assert_eq!(event.accuracy, vec![vec![1.0, 1.0]; 3]);

    let blind = find_needles(&mut Answering(|_| " nothing at all".into()), &tokenizer, &spec()).unwrap();
    assert_eq!(blind.accuracy(600), Some(0.0));
    let short_sighted = |prompt: &str| look_up(&prompt[prompt.len().saturating_sub(400)..]);
    let near = |prompt: &str| std::panic::catch_unwind(|| short_sighted(prompt)).unwrap_or_default();
    let near = find_needles(&mut Answering(near), &tokenizer, &spec()).unwrap();
    let long = &near.lengths[1];
    assert_eq!((long.right[0], long.right[2]), (0, 4), "{near:?}");
}

#[test]
fn prompts_are_the_same_at_every_moment_and_have_their_length() {
    let tokenizer = tokenizer();
    let prompts_of = |spec: &NeedleSpec| {
        let mut prompts = Vec::new();
        let mut model = Answering(|prompt: &str| {
            prompts.push(prompt.to_owned());
            String::new()
        });
        find_needles(&mut model, &tokenizer, spec).unwrap();
        prompts
    };
    let prompts = prompts_of(&spec());
    assert_eq!(prompts, prompts_of(&spec()));
    assert_eq!(prompts.len(), 2 * 3 * 4);
    let longer = NeedleSpec { lengths_tokens: vec![900, 600, 200], ..spec() };
    assert_eq!(prompts, prompts_of(&longer)[..24]);
    for (prompt, length) in prompts.iter().zip([200; 12].into_iter().chain([600; 12])) {
        let tokens = tokenizer.encode(prompt).unwrap().len();
        assert!(tokens <= length && tokens + 60 > length, "{tokens} of {length}");
    }
}

#[test]
fn what_the_budget_left_out_is_not_reported() {
    let tokenizer = tokenizer();
    let no_time = NeedleSpec { budget: Some(Duration::ZERO), ..spec() };
    let found = find_needles(&mut Answering(look_up), &tokenizer, &no_time).unwrap();
    assert_eq!(
        (found.lengths.len(), found.untried_tokens.clone(), found.accuracy(600)),
        (0, vec![200, 600], None)
    );
    // Answers of 60 ms leave time for two trials of the first length at most.
    let slow = |prompt: &str| {
        std::thread::sleep(Duration::from_millis(60));
        look_up(prompt)
    };
    let little = NeedleSpec { budget: Some(Duration::from_millis(440)), ..spec() };
    let found = find_needles(&mut Answering(slow), &tokenizer, &little).unwrap();
    assert!(found.lengths.iter().all(|length| length.trials < 3), "{found:?}");
    assert_eq!(found.untried_tokens.last(), Some(&600));
    let nothing = NeedleSpec { depths: vec![], ..spec() };
    assert!(find_needles(&mut Answering(look_up), &tokenizer, &nothing).is_err());
}
