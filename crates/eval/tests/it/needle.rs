//! Needles with models that can and cannot retrieve.

use std::cell::RefCell;

use fathom_base::clock::Clock;
use fathom_base::{GenerateRequest, Generation, LanguageModel, Numbers, Prompt, Result, Stop};
use fathom_eval::*;

use crate::{manual_clock, tokenizer};

/// Continues a prompt with the result of `answer`.
struct AnswerFn<F: FnMut(&str) -> String>(RefCell<F>);

impl<F: FnMut(&str) -> String> LanguageModel for AnswerFn<F> {
    fn max_tokens(&self) -> usize {
        1 << 20
    }

    fn generate_all(&self, requests: Vec<GenerateRequest>) -> Result<Vec<Vec<Generation>>> {
        let one = |request: GenerateRequest| {
            let Prompt::Text(prompt) = &request.prompt else { panic!("text was expected") };
            let (text, ids, stop) = ((self.0.borrow_mut())(prompt), vec![], Stop::Length);
            vec![Generation { text, ids, stop, prompt_tokens: prompt.len(), prefill_s: 0.0, decode_s: 0.0 }]
        };
        Ok(requests.into_iter().map(one).collect())
    }

    fn look(&self, _: &[Vec<u32>], _: Numbers) -> Result<Vec<Vec<f32>>> {
        Err(fathom_base::Error::product("looks at nothing"))
    }
}

fn answering<F: FnMut(&str) -> String>(answer: F) -> AnswerFn<F> {
    AnswerFn(RefCell::new(answer))
}

/// The text that followed the earlier occurrence of the last line's words.
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
        deadline: None,
    }
}

#[test]
fn a_model_that_looks_up_is_right_and_one_that_guesses_is_not() {
    let tokenizer = tokenizer();
    let found = find_needles(&answering(look_up), &tokenizer, &spec()).unwrap();
    assert_eq!((found.accuracy(600), found.untried_tokens.len()), (Some(1.0), 0));
    let event = found.to_event(&Moment { when: "before_extension".into(), step: 5, trained_tokens: 256 });
    assert_eq!((event.lengths_tokens, event.trials), (vec![200, 600], 4));
    assert_eq!(event.accuracy, vec![vec![1.0, 1.0]; 3]);

    let blind = find_needles(&answering(|_| " nothing at all".into()), &tokenizer, &spec()).unwrap();
    assert_eq!(blind.accuracy(600), Some(0.0));
    let short_sighted = |prompt: &str| look_up(&prompt[prompt.len().saturating_sub(400)..]);
    let near = |prompt: &str| std::panic::catch_unwind(|| short_sighted(prompt)).unwrap_or_default();
    let near = find_needles(&answering(near), &tokenizer, &spec()).unwrap();
    let long = &near.lengths[1];
    assert_eq!((long.right[0], long.right[2]), (0, 4), "{near:?}");
}

#[test]
fn prompts_are_the_same_at_every_moment_and_have_their_length() {
    let tokenizer = tokenizer();
    let prompts_of = |spec: &NeedleSpec| {
        let mut prompts = Vec::new();
        let model = answering(|prompt: &str| {
            prompts.push(prompt.to_owned());
            String::new()
        });
        find_needles(&model, &tokenizer, spec).unwrap();
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
fn what_there_was_no_time_for_is_not_reported() {
    let tokenizer = tokenizer();
    let no_time = NeedleSpec { deadline: Some(Clock::start().within(0.0)), ..spec() };
    let found = find_needles(&answering(look_up), &tokenizer, &no_time).unwrap();
    assert_eq!(
        (found.lengths.len(), found.untried_tokens.clone(), found.accuracy(600)),
        (0, vec![200, 600], None)
    );
    let nothing = NeedleSpec { depths: vec![], ..spec() };
    assert!(find_needles(&answering(look_up), &tokenizer, &nothing).is_err());
}

/// (tokens, trials) of each length, and the clock's final time in seconds, if each prompt token takes `token_ms` and
/// the deadline is at `seconds`.
#[track_caller]
fn trials_in(seconds: f64, token_ms: f64, lengths: &[usize]) -> (Vec<(usize, usize)>, f64) {
    let (clock, spend) = manual_clock();
    let slow = answering(|prompt: &str| {
        spend(tokenizer().encode(prompt).unwrap().len() as f64 * token_ms / 1e3);
        look_up(prompt)
    });
    let lengths_tokens = lengths.to_vec();
    let spec = NeedleSpec { lengths_tokens, deadline: Some(clock.within(seconds)), ..spec() };
    let found = find_needles(&slow, &tokenizer(), &spec).unwrap();
    (found.lengths.iter().map(|length| (length.tokens, length.trials)).collect(), clock.now_s())
}

/// Three depths of 3,200 tokens take 4.8 s, and all lengths together 9.3 s.
#[test]
fn the_longest_length_comes_before_second_trials_of_shorter_ones() {
    let lengths = [200, 400, 800, 1600, 3200];
    let (found, ended_s) = trials_in(7.0, 0.5, &lengths);
    assert_eq!(found.last(), Some(&(3200, 1)), "{found:?}");
    assert!(ended_s <= 7.0, "{ended_s}");
    // If there is no time for the longest, the next shorter one is tried.
    let (found, ended_s) = trials_in(4.0, 0.5, &lengths);
    assert_eq!(found.last(), Some(&(1600, 1)), "{found:?}");
    assert!((3.0..=4.0).contains(&ended_s), "{ended_s}");
    // With enough time, all trials of all lengths.
    let (found, _) = trials_in(60.0, 0.5, &lengths);
    assert_eq!(found, lengths.map(|tokens| (tokens, 4)));
}
