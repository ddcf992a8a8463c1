//! Needles with models that can and cannot retrieve.

use fathom_base::clock::Clock;
use fathom_base::{Flow, Generate, GenerateRequest, Generation, Prompt, Result, Stop};
use fathom_eval::*;

use crate::{manual_clock, tokenizer};

/// Continues a prompt with the result of `answer`, in pieces of two bytes.
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
fn what_there_was_no_time_for_is_not_reported() {
    let tokenizer = tokenizer();
    let no_time = NeedleSpec { deadline: Some(Clock::start().within(0.0)), ..spec() };
    let found = find_needles(&mut Answering(look_up), &tokenizer, &no_time).unwrap();
    assert_eq!(
        (found.lengths.len(), found.untried_tokens.clone(), found.accuracy(600)),
        (0, vec![200, 600], None)
    );
    let nothing = NeedleSpec { depths: vec![], ..spec() };
    assert!(find_needles(&mut Answering(look_up), &tokenizer, &nothing).is_err());
}

/// (tokens, trials) of each length, and the clock's final time in seconds, if each prompt token takes `token_ms` and
/// the deadline is at `seconds`.
#[track_caller]
fn trials_in(seconds: f64, token_ms: f64, lengths: &[usize]) -> (Vec<(usize, usize)>, f64) {
    let (clock, spend) = manual_clock();
    let mut slow = Answering(|prompt: &str| {
        spend(tokenizer().encode(prompt).unwrap().len() as f64 * token_ms / 1e3);
        look_up(prompt)
    });
    let lengths_tokens = lengths.to_vec();
    let spec = NeedleSpec { lengths_tokens, deadline: Some(clock.within(seconds)), ..spec() };
    let found = find_needles(&mut slow, &tokenizer(), &spec).unwrap();
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
