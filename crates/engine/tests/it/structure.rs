//! Answers have the requested structure, whatever a model prefers.

use fathom_base::{GenerateRequest, Sampling, Stop, Structure};
use fathom_engine::{Engine, Limits, Structures, probe};
use fathom_model::ModelView;
use fathom_tensor::DType;
use fathom_text::Tokenizer;

use crate::batch::Bed;

/// Sampled answers of a random model: their texts, and why they ended.
fn answers(bed: &Bed, structure: Structure, draft_tokens: usize) -> Vec<(String, Stop)> {
    let limits = Limits { context_tokens: 4096, chunk_tokens: 64, draft_tokens, ..Limits::default() };
    let engine = Engine::new(
        ModelView { device: &bed.device, model: &bed.model, params: &bed.params },
        &bed.tokenizer,
        limits,
    );
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

fn tokenizer() -> Tokenizer {
    Tokenizer::train_bpe(std::iter::once("a b c 1 2 3".to_string()), 270, &["<end>"]).unwrap()
}

fn schema(text: &str) -> Structure {
    Structure::JsonSchema(text.into())
}

#[test]
fn what_takes_for_ever_to_compile_and_what_no_answer_meets_is_refused() {
    let (tokenizer, structures) = (tokenizer(), Structures::default());
    let refuse = |structure: Structure, part: &str| {
        let refused = structures.compile(&tokenizer, tokenizer.vocab_size(), &structure);
        let said = refused.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(said.contains(part), "{structure:?}: {said}");
    };
    let too_long = "takes too long to compile";
    refuse(schema(r#"{"type": "number", "multipleOf": 1000003}"#), too_long);
    refuse(schema(r#"{"type": "integer", "multipleOf": 999983, "minimum": 3}"#), too_long);
    refuse(Structure::Regex(".*".repeat(300)), too_long);
    refuse(schema(r##"{"$ref": "#"}"##), "no answer meets it");
    refuse(Structure::Grammar("start: a\na: a \"b\" | a".into()), "no answer meets it");
    // Steps of a refused structure do not count towards the next.
    assert!(
        structures
            .compile(&tokenizer, tokenizer.vocab_size(), &schema(r#"{"type": "number", "multipleOf": 7}"#))
            .is_ok()
    );
}

#[test]
fn a_chain_of_rules_as_long_as_a_grammar_may_be_has_stack_enough() {
    let (tokenizer, structures) = (tokenizer(), Structures::default());
    let name = |at: usize| {
        [at / 676, at / 26 % 26, at % 26].map(|at| char::from(b'a' + at as u8)).iter().collect::<String>()
    };
    let last = 8000;
    let chain: String = (0..last).map(|at| format!("{}:{}\n", name(at), name(at + 1))).collect();
    let grammar = Structure::Grammar(format!("start:aaa\n{chain}{}:\"1\"\n", name(last)));
    assert!(structures.compile(&tokenizer, tokenizer.vocab_size(), &grammar).is_ok());
}

/// True if an answer may be this text, whatever the model prefers.
fn admits(structure: Structure, text: &str) -> bool {
    let (tokenizer, structures) = (tokenizer(), Structures::default());
    let mut structured = structures.compile(&tokenizer, tokenizer.vocab_size(), &structure).unwrap();
    let ids = text.bytes().map(|byte| tokenizer.encode(&(byte as char).to_string()).unwrap()[0]);
    ids.into_iter().all(|id| {
        let mask = structured.mask().unwrap().to_vec();
        mask[id as usize / 32] >> (id % 32) & 1 == 1 && structured.take(id).is_ok()
    })
}

/// A model that writes endless white space never answers.
#[test]
fn white_space_between_tokens_of_json_is_bounded_or_as_a_schema_says() {
    let of = |more: &str| {
        schema(&format!(r#"{{"type": "object", "properties": {{"a": {{"type": "integer"}}}}{more}}}"#))
    };
    for usual in [of(""), Structure::JsonObject] {
        for text in ["{\"a\":1}", "{ \"a\": 1 }", "{\n    \"a\": 1\n}", "{\r\n\t\"a\" : 1"] {
            assert!(admits(usual.clone(), text), "{text:?}");
        }
        for text in ["{  ", "{\n\n", "{\t", "{\"a\":  ", &format!("{{\n{}", " ".repeat(17))] {
            assert!(!admits(usual.clone(), text), "{text:?}");
        }
    }
    for (pattern, inside, outside) in [
        (r#""whitespace_pattern": "[ ]?""#, "{ \"a\": 1}", "{\n"),
        (r#""whitespace_pattern": "[ \\n]*""#, "{\n\n  \n\"a\" : 1}", "{\t"),
        (r#""whitespace_flexible": false"#, "{\"a\":1}", "{ "),
        (r#""whitespace_flexible": true"#, "{\n\n\n\t  \"a\":1}", "{a"),
    ] {
        let structure = of(&format!(r#", "x-guidance": {{{pattern}}}"#));
        assert!(admits(structure.clone(), inside), "{pattern} {inside:?}");
        assert!(!admits(structure, outside), "{pattern} {outside:?}");
    }
}

/// Uses a script in place of the compiling program.
fn probing(script: &str) -> (tempfile::TempDir, Structures) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    std::fs::write(&program, format!("#!/bin/sh\necho $$ > {}/pid\n{script}\n", folder.path().display()))
        .unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let structures = Structures::probing(Some(program));
    (folder, structures)
}

#[test]
fn a_process_that_compiles_says_whether_it_can_and_ends_when_its_client_leaves() {
    let tokenizer = tokenizer();
    let said = |script: &str| {
        let (_folder, structures) = probing(script);
        let compiled = structures.compile(&tokenizer, tokenizer.vocab_size(), &schema("{}"));
        compiled.err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(said("cat > /dev/null"), "");
    assert!(said("cat > /dev/null; echo it is none; exit 1").ends_with(": it is none"));
    assert!(said("exit 3").contains("more than 10 s"));
    assert!(said("exit 4").contains("more than 1024 MiB"));
    assert!(said("kill -9 $$").contains("too deep"));
    let (folder, structures) = probing("exec sleep 1000");
    let pid = || std::fs::read_to_string(folder.path().join("pid")).unwrap_or_default();
    let wanted = || !pid().ends_with('\n');
    let left = structures.compile_while(&tokenizer, tokenizer.vocab_size(), &schema("{}"), &wanted);
    assert!(left.err().unwrap().to_string().contains("no longer wanted"));
    assert!(!std::path::Path::new(&format!("/proc/{}", pid().trim())).exists());
}

#[test]
fn a_structure_is_compiled_once_for_requests_that_ask_for_the_same() {
    let tokenizer = tokenizer();
    let (folder, structures) = probing("cat > /dev/null; echo >> \"$0.calls\"");
    for structure in ["{}", "{}", r#"{"type": "null"}"#, "{}"] {
        structures.compile(&tokenizer, tokenizer.vocab_size(), &schema(structure)).unwrap();
    }
    assert_eq!(std::fs::read_to_string(folder.path().join("program.calls")).unwrap(), "\n\n");
}

#[test]
fn a_process_answers_for_the_tokens_that_grammars_name() {
    let answer = |structure: Structure| {
        let asked =
            probe::Asked { structure, size: 300, special: vec![(299, b"<end>".to_vec())], stops: vec![299] };
        probe::answer(&serde_json::to_vec(&asked).unwrap())
    };
    assert_eq!(answer(Structure::Grammar("start: \"a\" <end>".into())), Ok(()));
    assert_eq!(answer(schema(r#"{"type": "object"}"#)), Ok(()));
    assert!(answer(Structure::Grammar("start: <other>".into())).unwrap_err().contains("<other>"));
    assert!(answer(schema(r#"{"type": "number", "multipleOf": 1000003}"#)).unwrap_err().contains("too long"));
    assert!(probe::answer(b"{").is_err());
}
