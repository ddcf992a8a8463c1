//! Whatever a model would like to say, its answer has the structure that was asked for.

use fathom_base::{GenerateRequest, Sampling, Stop, Structure};
use fathom_engine::{Engine, Limits};
use fathom_tensor::DType;

use crate::batch::Bed;

/// Answers of a random model, drawn: their texts, and why they ended.
fn answers(bed: &Bed, structure: Structure, draft_tokens: usize) -> Vec<(String, Stop)> {
    let limits = Limits { context_tokens: 4096, chunk_tokens: 64, draft_tokens, ..Limits::default() };
    let engine = Engine::new(&bed.device, &bed.model, &bed.params, &bed.tokenizer, limits);
    let sampling = Sampling { temperature: 1.0, seed: 11, max_tokens: 80, ..Sampling::default() };
    let prompt: Vec<u32> = (0..20).map(|at| at % 7 + 60).collect();
    let request =
        GenerateRequest { answers: 4, structure: Some(structure), ..GenerateRequest::new(prompt, sampling) };
    let both = engine.generate_all(vec![request.clone(), GenerateRequest { answers: 2, ..request }]).unwrap();
    assert_eq!(
        both[0][..2].iter().map(|it| &it.ids).collect::<Vec<_>>(),
        both[1].iter().map(|it| &it.ids).collect::<Vec<_>>()
    );
    both[0].iter().map(|answer| (answer.text.clone(), answer.stop.clone())).collect()
}

#[test]
fn answers_meet_their_structure() {
    let bed = Bed::new("llama2", DType::F32);
    let schema = r#"{"type": "object", "additionalProperties": false, "required": ["count", "kind"], "properties": {
        "count": {"type": "integer", "minimum": 0, "maximum": 999}, "kind": {"enum": ["x", "yy"]}}}"#;
    for drafts in [0, 4] {
        for (text, stop) in answers(&bed, Structure::JsonSchema(schema.into()), drafts) {
            assert_eq!(stop, Stop::Structure, "{text}");
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert!(value["count"].as_u64().is_some_and(|count| count <= 999), "{text}");
            assert!(["x", "yy"].contains(&value["kind"].as_str().unwrap()), "{text}");
        }
        for (text, stop) in answers(&bed, Structure::Regex("[0-9]{3}-[a-f]{2,5}z".into()), drafts) {
            let (digits, letters) = text.split_once('-').unwrap();
            let letters = letters.strip_suffix('z').unwrap();
            assert!(digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
            assert!(
                (2..=5).contains(&letters.len()) && letters.bytes().all(|byte| (b'a'..=b'f').contains(&byte))
            );
            assert_eq!(stop, Stop::Structure);
        }
        for (text, stop) in answers(&bed, Structure::Choice(vec!["yes".into(), "no\"".into()]), drafts) {
            assert!(["yes", "no\""].contains(&text.as_str()) && stop == Stop::Structure, "{text}");
        }
        let lark = "start: a a\na: \"(\" a \")\" | \"x\"";
        for (text, stop) in answers(&bed, Structure::Grammar(lark.into()), drafts) {
            assert!(stop == Stop::Length || text.matches('x').count() == 2, "{text}");
            assert!(text.bytes().all(|byte| b"(x)".contains(&byte)), "{text}");
        }
    }
}

#[test]
fn what_is_no_structure_is_refused() {
    let bed = Bed::new("llama2", DType::F32);
    let engine = bed.engine(64);
    let refuse = |structure| {
        let request =
            GenerateRequest { structure: Some(structure), ..GenerateRequest::greedy(vec![1, 2], 4) };
        engine.generate_all(vec![request]).unwrap_err().to_string()
    };
    assert!(refuse(Structure::JsonSchema("{".into())).contains("not JSON"));
    assert!(
        refuse(Structure::JsonSchema(r#"{"type": "number", "minimum": 5, "maximum": 1}"#.into()))
            .contains("structure")
    );
    assert!(refuse(Structure::Regex("(".into())).contains("structure"));
    assert!(refuse(Structure::Grammar("start: missing".into())).contains("structure"));
    assert!(refuse(Structure::Choice(Vec::new())).contains("no text"));
    assert!(refuse(Structure::Regex("a".repeat(2 << 20))).contains("bytes"));
}
