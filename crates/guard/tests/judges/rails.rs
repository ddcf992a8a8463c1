//! Each rail that asks a model: what it asks, what it finds, and where.

use std::sync::Arc;

use fathom_guard::{Context, Direction, Failure, Reason};
use serde_json::json;

use super::{config, judge, judge_in};
use crate::scripted::ScriptedModel;

/// A judge that condemns prompts with a word.
fn condemns(word: &'static str, yes: &'static str, no: &'static str) -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::new(move |prompt| {
        let p = if prompt.contains(word) { 0.99 } else { 0.01 };
        vec![(yes.into(), p), (no.into(), 1.0 - p)]
    }))
}

#[test]
fn every_window_of_a_long_text_is_judged_and_its_place_reported() {
    let text = format!("{} POISON {}", "fine words ".repeat(300), "more words ".repeat(50));
    let at = text.find("POISON").unwrap();
    for (toml, model) in [
        (
            "use = 'content_safety'\non = ['input']\nmodel = 'm'\nformat = 'llama_guard'\nwindow_tokens = 256\noverlap_tokens = 64",
            condemns("POISON", "unsafe\nS1", "safe"),
        ),
        (
            "use = 'self_check'\non = ['input']\nmodel = 'm'\nwindow_tokens = 256\noverlap_tokens = 64",
            condemns("POISON", "yes", "no"),
        ),
        (
            "use = 'classifier'\non = ['input']\nmodel = 'm'\nblocked_labels = ['bad']\nwindow_tokens = 256\noverlap_tokens = 64",
            Arc::new(ScriptedModel::labelled(&["good", "bad"], |text, _| {
                let bad = if text.contains("POISON") { 0.99 } else { 0.01 };
                vec![1.0 - bad, bad]
            })),
        ),
    ] {
        let found = judge(&model, toml, &text);
        assert!(found.condemned.is_some(), "{toml}");
        assert_eq!(found.findings.len(), 1, "{toml}: {found:?}");
        let span = &found.findings[0].span;
        assert!(span.contains(&at) && span.len() < 600, "{toml}: {span:?}");
        assert!(judge(&model, toml, &text.replace("POISON", "poetry")).condemned.is_none());
        let short = format!("{toml}\nmax_tokens = 1000");
        let found = judge(&model, &short, &text);
        assert_eq!((found.condemned, &*found.findings[0].kind), (Some(Reason::TooLong), "too_long"));
    }
}

#[test]
fn a_guard_names_its_categories_and_only_those_that_are_asked_for() {
    let model = Arc::new(ScriptedModel::new(|prompt| {
        if prompt.ends_with("unsafe\n") {
            return vec![("S10,S1".into(), 1.0)];
        }
        vec![("unsafe".into(), 0.8), ("safe".into(), 0.2)]
    }));
    let toml = "use = 'content_safety'\non = ['input']\nmodel = 'm'\nformat = 'llama_guard'\ncategories = ['S1', 'S10']";
    let found = judge(&model, toml, "text");
    assert_eq!((&*found.findings[0].kind, found.findings[0].span.clone()), ("S10,S1", 0..4));
    let prompt = model.last_prompt();
    assert!(
        prompt.contains("S1: Violent Crimes.\nS10: Hate.\n<END UNSAFE") && !prompt.contains("S2:"),
        "{prompt}"
    );
}

#[test]
fn other_guards_are_asked_in_their_own_forms() {
    let context =
        Context { messages: vec![json!({"role": "user", "content": "question"})], ..Context::default() };
    let toml = |format: &str| {
        format!("use = 'content_safety'\non = ['input', 'output']\nmodel = 'm'\nformat = '{format}'")
    };
    let bad = |condemned: &'static str, allowed: &'static str| {
        Arc::new(ScriptedModel::always(&[(condemned, 0.7), (allowed, 0.3)]))
    };
    for (format, condemned, allowed, input, output) in [
        ("llama_guard4", "unsafe", "safe", "User: text", "Agent: text"),
        ("nemoguard", "unsafe\", ", "safe\"}", "user: text", "response: agent: text"),
        ("nemotron", "unsafe\n", "safe\n", "User Safety: ", "Response Safety: "),
        ("shieldgemma", "Yes", "No", "Human Question: text", "Chatbot Response: text"),
        ("granite", "Yes", "No", "<turn>user\ntext", "<turn>assistant\ntext"),
        ("granite_score", " yes </score>", " no </score>", "<score>", "\"risk_name\":\"harm\""),
    ] {
        let model = bad(condemned, allowed);
        for (direction, part) in [(Direction::Input, input), (Direction::Output, output)] {
            let found = judge_in(&model, &toml(format), "text", direction, &context).unwrap();
            assert_eq!(found.condemned, Some(Reason::Unsafe), "{format}");
            assert!((found.score.unwrap() - 0.7).abs() < 1e-3, "{format}: {:?}", found.score);
            assert!(model.last_prompt().contains(part), "{format}: {}", model.last_prompt());
        }
        let fine = bad(allowed, condemned);
        let found = judge_in(&fine, &toml(format), "text", Direction::Input, &context).unwrap();
        assert_eq!(found.condemned, None, "{format}");
    }
}

#[test]
fn each_policy_of_shieldgemma_is_a_question_of_its_own() {
    let model = condemns("No Harassment", "Yes", "No");
    let toml = "use = 'content_safety'\non = ['input']\nmodel = 'm'\nformat = 'shieldgemma'";
    let found = judge(&model, toml, "text");
    assert_eq!(&*found.findings[0].kind, "harassment");
    assert_eq!(model.prompts.lock().unwrap().len(), 4);
}

#[test]
fn a_self_check_reads_its_own_prompt_and_either_word() {
    let model = condemns("forbidden", "yes", "no");
    let toml = "use = 'self_check'\non = ['input', 'output']\nmodel = 'm'\nprompt = 'Q {{ question }} A {{ text }}?'";
    let context = Context { messages: vec![json!({"role": "user", "content": "why"})], ..Context::default() };
    let found = judge_in(&model, toml, "forbidden", Direction::Output, &context).unwrap();
    assert_eq!(found.condemned, Some(Reason::SelfCheck));
    assert!(model.last_prompt().contains("Q why A forbidden?"));
    let turned = format!("{toml}\ncondemned_by = 'no'");
    assert!(judge_in(&model, &turned, "forbidden", Direction::Output, &context).unwrap().condemned.is_none());
    let error =
        config(&model, "use = 'self_check'\non = ['input']\nmodel = 'm'\nprompt = 'no place'").err().unwrap();
    assert!(error.contains("one place `{{ text }}`"), "{error}");
    let plain = Arc::new(ScriptedModel::always(&[("no", 1.0)]).plain());
    assert!(judge(&plain, "use = 'self_check'\non = ['input']\nmodel = 'm'", "text").condemned.is_none());
}

#[test]
fn topics_are_distinguished_although_both_words_begin_alike() {
    let model = condemns("politics", "off-topic", "on-topic");
    let toml = "use = 'topic'\non = ['input']\nmodel = 'm'\npolicy = 'Talk about birds alone.'";
    assert_eq!(judge(&model, toml, "politics?").condemned, Some(Reason::OffTopic));
    let fine = judge(&model, toml, "gulls?");
    assert!(fine.condemned.is_none() && fine.score.unwrap() < 0.02, "{fine:?}");
    assert!(model.last_prompt().contains("Talk about birds alone.\n\nIf any of the above"));
}

#[test]
fn every_sentence_needs_the_support_of_some_evidence() {
    let model = Arc::new(ScriptedModel::labelled(&["entailment", "neutral"], |evidence, sentence| {
        let sentence = sentence.unwrap_or_default().trim_end_matches('.');
        let p = if evidence.contains(sentence) { 0.95 } else { 0.05 };
        vec![p, 1.0 - p]
    }));
    let toml = "use = 'facts'\non = ['output']\nmodel = 'm'\nmethod = 'entailment'";
    let context = Context {
        evidence: vec!["Gulls are birds and live at sea.".into(), "They eat fish.".into()],
        ..Context::default()
    };
    let text = "Gulls are birds. They eat stones. They eat fish.";
    let found = judge_in(&model, toml, text, Direction::Output, &context).unwrap();
    assert_eq!(found.condemned, Some(Reason::Unsupported));
    assert_eq!(
        found.findings.iter().map(|it| &text[it.span.clone()]).collect::<Vec<_>>(),
        ["They eat stones."]
    );
    let none = Context::default();
    assert!(judge_in(&model, toml, text, Direction::Output, &none).unwrap().condemned.is_some());
    let allowed = format!("{toml}\nwithout_evidence = 'allow'");
    assert!(judge_in(&model, &allowed, text, Direction::Output, &none).unwrap().condemned.is_none());
}

#[test]
fn facts_by_a_prompt_read_the_evidence_and_results_of_tools() {
    let model = condemns("moon", "no", "yes");
    let toml = "use = 'facts'\non = ['output']\nmodel = 'm'";
    let context = Context {
        messages: vec![json!({"role": "tool", "content": "the sea is blue"})],
        ..Context::default()
    };
    assert!(judge_in(&model, toml, "blue", Direction::Output, &context).unwrap().condemned.is_none());
    assert!(model.last_prompt().contains("the sea is blue"));
    let found = judge_in(&model, toml, "the moon is blue", Direction::Output, &context).unwrap();
    assert_eq!(found.condemned, Some(Reason::Unsupported));
}

#[test]
fn answers_that_disagree_are_found_and_missing_samples_are_a_failure() {
    let model = Arc::new(ScriptedModel::new(|prompt| match prompt {
        prompt if prompt.contains("agree with the passage") => {
            let agree = if prompt.contains("Statement:\n\"\"\"\nParis") { 0.9 } else { 0.2 };
            vec![("yes".into(), agree), ("no".into(), 1.0 - agree)]
        }
        _ => vec![("Paris".into(), 1.0)],
    }));
    let toml = "use = 'hallucination'\non = ['output']\nmodel = 'm'\nsamples = 3";
    let context =
        Context { messages: vec![json!({"role": "user", "content": "capital?"})], ..Context::default() };
    assert!(judge_in(&model, toml, "Paris", Direction::Output, &context).unwrap().condemned.is_none());
    let found = judge_in(&model, toml, "Rome", Direction::Output, &context).unwrap();
    assert_eq!(found.condemned, Some(Reason::Inconsistent));
    assert!((found.score.unwrap() - 0.8).abs() < 1e-4);
    let unknown = judge_in(&model, toml, "Rome", Direction::Output, &Context::default());
    assert!(matches!(unknown, Err(Failure::Malformed(_))), "{unknown:?}");
}

#[test]
fn a_classifier_without_labels_to_block_is_refused() {
    let model = Arc::new(ScriptedModel::labelled(&["good", "bad"], |_, _| vec![0.5, 0.5]));
    for (labels, why) in
        [("[]", "is empty, so nothing would ever be blocked"), ("['worse']", "it has good, bad")]
    {
        let toml = format!("use = 'classifier'\non = ['input']\nmodel = 'm'\nblocked_labels = {labels}");
        let error = config(&model, &toml).err().unwrap();
        assert!(error.contains(why), "{error}");
    }
    let text = Arc::new(ScriptedModel::always(&[]));
    let error = config(&text, "use = 'classifier'\non = ['input']\nmodel = 'm'\nblocked_labels = ['x']")
        .err()
        .unwrap();
    assert!(error.contains("is no classifier"), "{error}");
}

#[test]
fn a_classifier_reads_all_of_a_text_in_windows_of_its_size() {
    let model =
        Arc::new(ScriptedModel::labelled(&["benign", "malicious"], |_, _| vec![1.0, 0.0]).context(512));
    let toml = "use = 'jailbreak'\non = ['input']\nmodel = 'm'\nthreshold = 0.9";
    assert!(judge(&model, toml, &"a".repeat(2000)).condemned.is_none());
    let classified = model.classified.lock().unwrap();
    assert!(classified.iter().all(|tokens| *tokens <= 512), "{classified:?}");
    assert_eq!(classified.len(), (2000usize - 510).div_ceil(510 - 64) + 1);
}

#[test]
fn perplexity_condemns_by_length_and_by_affixes() {
    // A byte's loss is 0.1 for letters and 9 for digits.
    let model =
        || {
            Arc::new(ScriptedModel::always(&[]).losing(|ids| {
                ids[1..].iter().map(|id| if (48..58).contains(id) { 9.0 } else { 0.1 }).collect()
            }))
        };
    let toml = "use = 'jailbreak'\non = ['input']\nmodel = 'm'\nmethod = 'perplexity'";
    let words = |count: usize| vec!["word"; count].join(" ");
    let found = judge(&model(), toml, &words(5));
    assert_eq!((found.condemned, found.findings.len()), (None, 0));
    let found = judge(&model(), toml, &words(100));
    assert_eq!(&*found.findings[0].kind, "length_per_perplexity");
    let suffix = format!("{} {}", words(3), vec!["12345678901234567890"; 20].join(" "));
    let found = judge(&model(), toml, &suffix);
    assert!(found.findings[0].kind.ends_with("prefix_suffix_perplexity"), "{found:?}");
    assert!(found.score.unwrap() >= 0.5);
    assert!(judge(&model(), toml, "").condemned.is_none());
}

#[test]
fn a_form_with_a_fixed_answer_is_answered_and_others_pass() {
    let forms = "forms = [{ name = 'ask about politics', examples = ['who should I vote for'], answer = 'No politics here.' }, \
                 { name = 'ask about hours', examples = ['open when'] }]";
    let toml = format!("use = 'dialog'\non = ['input']\nmodel = 'm'\n{forms}");
    // By a language model.
    let asks = |model: &Arc<ScriptedModel>, text: &str| judge(model, &toml, text);
    let chooses = Arc::new(ScriptedModel::new(|prompt| {
        let message = prompt.split("The message:").nth(1).unwrap_or_default();
        let number = if message.contains("election") { "001" } else { "000" };
        vec![(number.into(), 0.9), ("002".into(), 0.1)]
    }));
    let found = asks(&chooses, "who wins the election?");
    assert_eq!(
        (found.message.as_deref(), &*found.findings[0].kind),
        (Some("No politics here."), "ask_about_politics")
    );
    assert!(asks(&chooses, "hello").condemned.is_none());
    // By vectors, which point along the first letter.
    let embeds = Arc::new(ScriptedModel::labelled(&["x"], |text, _| {
        let first = text.bytes().next().unwrap_or(0);
        (0..256).map(|at| if at == i32::from(first) { 1.0 } else { 0.0 }).collect()
    }));
    assert!(asks(&embeds, "w").condemned.is_some());
    assert!(asks(&embeds, "o").condemned.is_none());
    assert!(asks(&embeds, "z").condemned.is_none());
    let error = config(
        &embeds,
        "use = 'dialog'\non = ['input']\nmodel = 'm'\nforms = [{ name = 'a', examples = ['b'] }]",
    );
    assert!(error.err().unwrap().contains("would do nothing"));
}

#[test]
fn a_rail_is_ready_once_its_model_has_answered() {
    let until = || fathom_guard::Until::within(&fathom_base::clock::Clock::default(), 2.0);
    let generates = Arc::new(ScriptedModel::always(&[("yes", 0.5), ("no", 0.5)]));
    let labels = Arc::new(ScriptedModel::labelled(&["malicious"], |_, _| vec![0.0]));
    let gone = Arc::new(ScriptedModel::always(&[]).failing());
    for (model, toml) in [
        (&generates, "use = 'self_check'\non = ['input']\nmodel = 'm'"),
        (&generates, "use = 'facts'\non = ['output']\nmodel = 'm'"),
        (&generates, "use = 'hallucination'\non = ['output']\nmodel = 'm'"),
        (&generates, "use = 'topic'\non = ['input']\nmodel = 'm'\npolicy = 'birds'"),
        (&generates, "use = 'content_safety'\non = ['input']\nmodel = 'm'\nformat = 'granite'"),
        (&generates, "use = 'jailbreak'\non = ['input']\nmodel = 'm'\nmethod = 'perplexity'"),
        (&labels, "use = 'jailbreak'\non = ['input']\nmodel = 'm'"),
        (&labels, "use = 'classifier'\non = ['input']\nmodel = 'm'\nblocked_labels = ['malicious']"),
    ] {
        assert_eq!(config(model, toml).unwrap().rails[0].rail.ready(&until()), Ok(()), "{toml}");
        if !toml.contains("blocked_labels") && !Arc::ptr_eq(model, &labels) {
            assert!(config(&gone, toml).unwrap().rails[0].rail.ready(&until()).is_err(), "{toml}");
        }
    }
}
