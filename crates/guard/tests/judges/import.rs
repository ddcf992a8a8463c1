//! Folders of NeMo Guardrails as guard.toml.

use std::path::Path;
use std::sync::Arc;

use fathom_guard::Config;
use fathom_guard::import::{DefinitionKind, Form, Program, StepKind, from_nemo};

use crate::scripted::{ScriptedModel, needs};

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

const CONFIG: &str = r#"models:
  - type: main
    engine: openai
    model: gpt-x
  - type: guard
    engine: vllm_openai
    parameters:
      model_name: meta-llama/Llama-Guard-3-8B
instructions:
  - type: general
    content: be kind
rails:
  input:
    speculative_generation: true
    flows:
      - self check input
      - content safety check input $model=guard
      - jailbreak detection heuristics
      - regex check input
      - patronus api check output
      - my own flow
      - self chek input
  output:
    flows:
      - self check output
      - self check facts
    streaming:
      enabled: True
      chunk_size: 100
  config:
    regex_detection:
      input:
        patterns:
          - "secret\\d+"
        case_insensitive: true
    jailbreak_detection:
      server_endpoint: http://localhost:1337/heuristics
      length_per_perplexity_threshold: 70.5
prompts:
  - task: self_check_input
    content: |
      Message: "{{ user_input }}"
      Block (yes or no)?
  - task: self_check_output
    content: "{{ history | colang }} {{ bot_response }}"
    max_tokens: 3
"#;

const FLOWS: &str = r#"define user express greeting
  "hello"
  "hi there"

define bot refuse to respond
  "No, thank you."

define flow my own flow
  $ok = execute check_it(text=$user_message)
  if not $ok
    bot refuse to respond
    stop

define flow
  user express greeting
  bot express greeting
"#;

#[test]
fn a_folder_is_translated_and_what_it_cannot_say_is_listed_with_its_line() {
    let folder = folder(&[
        ("config.yml", CONFIG),
        ("rails/own.co", FLOWS),
        ("rails/ignored.co", "define flow x\n  user y\n"),
        ("actions.py", "import os"),
        ("kb/facts.md", "# Facts"),
        (".railsignore", "# not these\nignored.*\n"),
    ]);
    let found = from_nemo(folder.path()).unwrap();
    let listed: Vec<String> = found.unsaid.iter().map(ToString::to_string).collect();
    for expected in [
        "actions.py:1: actions.py: is code, which is not executed",
        "kb/facts.md:1:",
        "config.yml:9: instructions:",
        "config.yml:20: rails.input.flows: patronus api check output: asks the service of another company",
        "config.yml:21: rails.input.flows: my own flow: is a flow of its own (line 8 of its file)",
        "config.yml:22: rails.input.flows: self chek input: is no flow that is known; did you mean",
        "config.yml:37: jailbreak_detection.server_endpoint:",
        "config.yml:29: rails.output.streaming.chunk_size:",
        "config.yml:44: prompts.self_check_output: has the variable `history | colang`",
        "rails/own.co:1: user express greeting: has no flow with a fixed answer",
    ] {
        assert!(listed.iter().any(|line| line.starts_with(expected)), "{expected}\n{}", listed.join("\n"));
    }
    assert!(!listed.iter().any(|line| line.contains("ignored")), "{listed:?}");
    assert_eq!(found.rails, 6, "{}", found.toml);
    let model = Arc::new(ScriptedModel::always(&[("no", 1.0)]));
    let config = Config::parse(&found.toml, Path::new("guard.toml"), &needs(&model)).unwrap();
    assert!(config.settings.speculative);
    assert_eq!(config.settings.refusal, "No, thank you.");
    let names: Vec<&str> = config.rails.iter().map(|rail| &*rail.setting.name).collect();
    assert_eq!(
        names,
        [
            "self check input",
            "content safety check input guard",
            "jailbreak detection heuristics",
            "regex check input",
            "self check output",
            "self check facts"
        ]
    );
    assert!(found.toml.contains("length_per_perplexity = 70.5") && found.toml.contains("{{ text }}"));
}

#[test]
fn colang_2_damaged_yaml_and_empty_folders_are_refused_with_their_lines() {
    for (files, why) in [
        (
            vec![("config.yml", "models: []\ncolang_version: \"2.x\"\n")],
            "config.yml:2: Colang 2 is not translated",
        ),
        (vec![("config.yml", "a: 1\nb: [1,\n")], "config.yml:3: is no YAML"),
        (vec![("readme.md", "x")], "has no config.yml"),
    ] {
        let folder = folder(&files);
        let error = from_nemo(folder.path()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn colang_that_is_used_is_read_and_the_rest_refused_by_line() {
    let text = r#"
"""
A comment over
several lines.
"""
define flow politics
  user ask about politics   # a comment
  $i = 0
  while $i < len($flows)
    do $flows[$i]
    $i = $i + 1
  when user express feeling good
    bot express positive emotion
  else when user express feeling bad
    bot express empathy
      "I'm sorry # not a comment"
  if $a == True and not $b
    create event Some(message="a 'b{$c}' d")
  else if $d["e"]["f"]
    $full = ...
  else
    execute do_it(
      query=$q)
  goto somewhere
    nested
  stop

define parallel extension flow x
  priority 0.9
  event UserMessage(text="...")
  bot $answer
  user ...
  import os

flow new style
  match x
define action thing
"#;
    let program = Program::read(text);
    let refused: Vec<usize> = program.refused.iter().map(|(line, _)| *line).collect();
    let line = |text_part: &str| text.lines().position(|line| line.contains(text_part)).unwrap() + 1;
    let expected = ["goto", "nested", "import os", "flow new", "match x", "define action"].map(line);
    assert_eq!(refused, expected, "{:?}", program.refused);
    let DefinitionKind::Flow { steps, .. } = &program.definitions[0].kind else { panic!() };
    assert_eq!(steps.len(), 6);
    let StepKind::When(branches) = &steps[3].kind else { panic!("{:?}", steps[3]) };
    assert_eq!(branches.len(), 2);
    let StepKind::Bot(_, texts) = &branches[1].1[0].kind else { panic!() };
    assert_eq!(texts, &["I'm sorry # not a comment"]);
    let StepKind::If(branches) = &steps[4].kind else { panic!() };
    assert_eq!(branches.len(), 3);
    assert!(matches!(&branches[1].1[0].kind, StepKind::Extract(name) if name == "full"));
    let DefinitionKind::Flow { steps, parallel, .. } = &program.definitions[1].kind else { panic!() };
    assert!(*parallel && matches!(&steps[2].kind, StepKind::Bot(Form::Variable(_), _)));
}

#[test]
fn damaged_files_of_flows_are_read_to_their_ends() {
    let seed = FLOWS.as_bytes();
    let mut state = 7u64;
    for _ in 0..2000 {
        let mut text = seed.to_vec();
        for _ in 0..4 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (state >> 33) as usize % text.len();
            text[at] = b" \n\"'#$()[]:=\tx"[(state >> 20) as usize % 14];
        }
        let text = String::from_utf8_lossy(&text);
        let program = Program::read(&text);
        let last = text.lines().count();
        assert!(program.refused.iter().all(|(line, _)| (1..=last).contains(line)));
    }
}

#[test]
fn flows_with_fixed_answers_are_a_rail_of_forms() {
    let flows = r#"define user ask about politics
  "Who should I vote for?"
define user ask general question
  "How high is the tower?"
define user express greeting
  "Hello!"
define bot refuse politics
  "I do not talk about politics."
  "No politics."
define flow politics
  user ask about politics
  bot refuse politics
  stop
define flow greeting
  user express greeting
  bot express greeting
    "Hello there."
  bot "How can I help?"
define flow
  user ask general question
  bot respond to question
define flow long
  user express greeting
  $x = execute look_up
  bot $x
define flow two turns
  user express greeting
  when user ask general question
    bot refuse politics
"#;
    let folder =
        folder(&[("config.yml", "models:\n  - type: main\n    engine: x\n    model: m\n"), ("a.co", flows)]);
    let found = from_nemo(folder.path()).unwrap();
    let listed: Vec<String> = found.unsaid.iter().map(ToString::to_string).collect();
    for expected in [
        "a.co:7: bot refuse politics: has 2 texts",
        "a.co:24: flow long: executes an action",
        "a.co:28: flow two turns: waits for a further message",
    ] {
        assert!(listed.iter().any(|line| line.starts_with(expected)), "{expected}\n{}", listed.join("\n"));
    }
    let model = Arc::new(ScriptedModel::new(|prompt| {
        let message = prompt.split("The message:").nth(1).unwrap_or_default();
        let number = if message.contains("Hi") { "003" } else { "002" };
        vec![(number.into(), 1.0)]
    }));
    let config = Config::parse(&found.toml, Path::new("guard.toml"), &needs(&model)).unwrap();
    assert_eq!(config.rails.len(), 1);
    let said =
        |text: &str| super::judge(&model, found.toml.strip_prefix("[[rail]]\n").unwrap(), text).message;
    assert_eq!(said("Hi").as_deref(), Some("Hello there.\nHow can I help?"));
    assert_eq!(said("How deep is the sea?"), None);
}

#[test]
fn options_of_detectors_become_options_of_rails() {
    let config = r#"rails:
  input:
    flows:
      - mask sensitive data on input
      - injection detection
      - context bloat detection on input
      - hf classifier check input $classifier=toxic
      - language detection
      - topic safety check input $model=topics
  config:
    sensitive_data_detection:
      input:
        entities: [EMAIL_ADDRESS, CREDIT_CARD, MEDICAL_LICENSE]
        score_threshold: 0.4
    injection_detection:
      injections: [sqli, template, shell]
      action: omit
    context_bloat_detection:
      max_chars: 900
      action: warn
    hf_classifier:
      toxic:
        model: some/model
        blocked_labels: [toxic]
        threshold: 0.7
    language_detector:
      allowed_languages: [en, de]
      fail_open: false
models:
  - type: topics
    engine: nim
    model: topic-model
prompts:
  - task: topic_safety_check_input $model=topics
    content: Only birds.
"#;
    let folder = folder(&[("config.yaml", config)]);
    let found = from_nemo(folder.path()).unwrap();
    for line in [
        "kinds = [\"email\", \"card\"]",
        "action = \"mask\"",
        "families = [\"sqli\", \"template\"]",
        "action = \"omit\"",
        "max_chars = 900",
        "action = \"flag\"",
        "blocked_labels = [\"toxic\"]",
        "threshold = 0.7",
        "allowed_languages = [\"en\", \"de\"]",
        "fail_open = false",
        "policy = \"Only birds.\"",
    ] {
        assert!(found.toml.lines().any(|own| own == line), "{line}\n{}", found.toml);
    }
    for (line, name) in [(13, "MEDICAL_LICENSE"), (14, "score_threshold"), (16, "shell")] {
        assert!(
            found.unsaid.iter().any(|it| (it.line, &*it.name) == (line, name)),
            "{name}: {:?}",
            found.unsaid
        );
    }
    // Every option is one that the rail has.
    for table in found.toml.split("[[rail]]\n").skip(1) {
        let labelled = table.contains("\"classifier\"");
        let model = if labelled {
            ScriptedModel::labelled(&["toxic"], |_, _| vec![0.0])
        } else {
            ScriptedModel::always(&[])
        };
        let error = super::config(&Arc::new(model), table).err().unwrap_or_default();
        assert!(!error.contains("unknown") && !error.contains("expected"), "{error}");
    }
}
