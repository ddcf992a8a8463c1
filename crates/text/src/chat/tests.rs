//! Tests of conversations to tokens.

use serde_json::{Value, json};

use super::conversation::Keys;
use super::*;

/// A byte-level tokenizer with ChatML's special tokens.
fn tokenizer() -> Tokenizer {
    let text = "user assistant system hello there what is it a b c".repeat(20);
    Tokenizer::train_bpe(std::iter::once(text), 300, &["<|im_start|>", "<|im_end|>"]).unwrap()
}

const CHATML: &str = "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}\
    {%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}";

const MARKED: &str = "{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
        {{- message.content + '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\n' }}
    {%- else %}
        {{- message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}";

fn conversation(row: Value) -> Conversation {
    Conversation::read(row.as_object().unwrap(), &Keys::default()).unwrap().unwrap()
}

/// Target texts and their weights.
fn learned(template: &str, row: Value, turns: Turns) -> Result<Vec<String>, String> {
    let tokenizer = tokenizer();
    let template = Template::new(template, &tokenizer).unwrap();
    let spoken = template.lesson(&conversation(row), turns, &tokenizer)?;
    assert_eq!(spoken.ids.len(), spoken.weights.len());
    let by_tokens: Vec<u32> = spoken
        .ids
        .iter()
        .zip(&spoken.weights)
        .filter(|(_, weight)| **weight > 0.0)
        .map(|(id, _)| *id)
        .collect();
    let parts: Vec<String> =
        spoken.learned.iter().map(|part| spoken.text[part.clone()].to_string()).collect();
    assert_eq!(tokenizer.decode_text(&by_tokens), parts.concat().replace("<|im_end|>", ""));
    Ok(parts)
}

fn two_turns() -> Value {
    json!({"messages": [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hello"}, {"role": "assistant", "content": "there ☕"},
        {"role": "user", "content": "what is it"}, {"role": "assistant", "content": "a b c"},
    ]})
}

#[test]
fn what_the_model_says_is_learned_with_the_end_of_its_turn() {
    for (template, tail) in [(CHATML, "\n"), (MARKED, "")] {
        let both = [format!("there ☕<|im_end|>{tail}"), format!("a b c<|im_end|>{tail}")];
        assert_eq!(learned(template, two_turns(), Turns::Assistant).unwrap(), both);
        assert_eq!(learned(template, two_turns(), Turns::Last).unwrap(), both[1..]);
        let mut weighted = two_turns();
        weighted["messages"][2]["weight"] = json!(0);
        assert_eq!(learned(template, weighted, Turns::Assistant).unwrap(), both[1..]);
        let prompt = json!({"prompt": two_turns()["messages"].as_array().unwrap()[..4], "completion": [
            {"role": "assistant", "content": "a b c"}]});
        assert_eq!(learned(template, prompt, Turns::Assistant).unwrap(), both[1..]);
    }
}

#[test]
fn an_answer_and_its_end_may_be_marked_one_by_one() {
    let apart = MARKED.replace(
        "{{- message.content + '<|im_end|>' }}\n        {%- endgeneration %}",
        "{{- message.content }}{%- endgeneration %}{%- generation %}{{- '<|im_end|>' }}{%- endgeneration %}",
    );
    assert_ne!(apart, MARKED);
    let mut row = two_turns();
    row["messages"][2]["weight"] = json!(0);
    assert_eq!(learned(&apart, row, Turns::Assistant).unwrap(), ["a b c<|im_end|>"]);
    assert_eq!(learned(&apart, two_turns(), Turns::Last).unwrap(), ["a b c<|im_end|>"]);
}

#[test]
fn a_template_that_rewrites_earlier_turns_is_refused() {
    // Reasoning in all turns but the last is dropped.
    let drops = "{%- for message in messages %}{{- message.role + ':' }}{%- if message.role == 'assistant' and not loop.last %}\
        {{- message.content.split('|')[-1] }}{%- else %}{{- message.content }}{%- endif %}{{- ';' }}{%- endfor %}\
        {%- if add_generation_prompt %}{{- 'assistant:' }}{%- endif %}";
    let mut row = two_turns();
    row["messages"][2]["content"] = json!("hm|yes");
    let error = learned(drops, row, Turns::Assistant).unwrap_err();
    assert!(error.contains("message 2") && error.contains("data.chat_template"), "{error}");
}

/// The same template, known by its hash: its text is unchanged, whatever its line ends, and marks are inserted.
#[test]
fn a_known_template_that_rewrites_earlier_turns_has_marks_of_ours() {
    // Reasoning in earlier turns is dropped; the end of a turn is shared by all roles.
    let drops = "{%- for message in messages %}\n{%- if message.role == 'assistant' and not loop.last %}\n\
        {{- message.role + ':' + message.content.split('|')[-1] }}\n{%- else %}\n\
        {{- message.role + ':' + message.content }}\n{%- endif %}\n\
        {{- '<|im_end|>' }}{{ eos_token }}\n{%- endfor %}\n\
        {%- if add_generation_prompt %}{{- 'assistant:' }}{%- endif %}\n";
    let places = [
        "{{- message.role + ':⟦«⟧' + message.content.split('|')[-1] }}",
        "{{- message.role + ':'⟦ + ('«' if message.role == 'assistant' else '')⟧ + message.content }}",
        "{{- '<|im_end|>'⟦ + ('»' if message.role == 'assistant' else '')⟧ }}",
    ];
    let known = [known::KnownTemplate {
        name: "drops".into(),
        hash: known::hash(drops),
        places: places.map(String::from).to_vec(),
    }];
    let tokenizer = tokenizer();
    let mut row = two_turns();
    row["messages"][2]["content"] = json!("hm|yes");
    let talk = conversation(row.clone());
    let plain = Template::new(drops, &tokenizer).unwrap();
    assert_eq!(*plain.shows(), Shows::Difference);
    for source in [drops.to_string(), drops.replace('\n', "\r\n"), format!("{drops}  \n\n")] {
        let ours = Template::with(&source, &tokenizer, &known).unwrap();
        assert_eq!(*ours.shows(), Shows::Known("drops".into()));
        assert_ne!(ours.hash(), plain.hash(), "a store of other masks is another");
        for (count, prompt) in [(5, false), (4, true), (2, true)] {
            let (own, with) =
                (plain.render(&talk, count, prompt).unwrap(), ours.render(&talk, count, prompt).unwrap());
            assert_eq!(own.text.trim_end(), with.text.trim_end());
            assert!(own.marked.is_empty());
        }
        let spoken = |row: &Value, turns| {
            let spoken = ours.lesson(&conversation(row.clone()), turns, &tokenizer).unwrap();
            spoken.learned.iter().map(|part| spoken.text[part.clone()].to_string()).collect::<Vec<_>>()
        };
        assert_eq!(spoken(&row, Turns::Assistant), ["yes<|im_end|>", "a b c<|im_end|>"]);
        assert_eq!(spoken(&row, Turns::Last), ["a b c<|im_end|>"]);
        let mut weighted = row.clone();
        weighted["messages"][4]["weight"] = json!(0);
        assert_eq!(spoken(&weighted, Turns::Assistant), ["yes<|im_end|>"]);
    }
    // With one more space inside it is another template; one with its own marks keeps them.
    let other = Template::with(&drops.replace(" + message", "  + message"), &tokenizer, &known).unwrap();
    assert_eq!(*other.shows(), Shows::Difference);
    assert_eq!(*Template::new(MARKED, &tokenizer).unwrap().shows(), Shows::Marks);
}

/// Insertions in known templates write marks, conditionally or always, and nothing else.
#[test]
fn marks_of_known_templates_are_marks_alone() {
    let all = known::all();
    assert!(all.len() > 20);
    for entry in &all {
        let same = |other: &&known::KnownTemplate| other.hash == entry.hash || other.name == entry.name;
        assert_eq!(all.iter().filter(same).count(), 1, "{}", entry.name);
        assert!(entry.hash.len() == 64 && entry.hash.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let mut marks = [0, 0];
        for place in &entry.places {
            assert_eq!(place.matches('⟦').count(), place.matches('⟧').count(), "{place}");
            let parts = known::parts(place);
            assert!(
                parts.iter().filter(|(_, new)| !new).all(|(text, _)| !text.contains(['«', '»'])),
                "{place}"
            );
            for (inserted, _) in parts.iter().filter(|(_, new)| *new) {
                marks[0] += inserted.matches('«').count();
                marks[1] += inserted.matches('»').count();
                let mut bare = inserted.replace(['«', '»'], "M");
                if let Some((before, after)) = bare.split_once("('M' if ") {
                    let after = after.split_once(" else '')").unwrap_or_else(|| panic!("{inserted}")).1;
                    bare = format!("{before}'M'{after}");
                }
                let shapes = [
                    "M",
                    "{{ 'M' }}",
                    "{{- 'M' }}",
                    "{{- 'M' -}}",
                    " + 'M'",
                    "+ 'M' ",
                    "'M' + ",
                    " ~ 'M'",
                    "'M' ~ ",
                    "' + 'M' + '",
                ];
                assert!(shapes.contains(&bare.as_str()), "{inserted}");
            }
        }
        assert!(marks[0] > 0 && marks[1] > 0, "{}", entry.name);
    }
}

#[test]
fn rows_of_all_formats_are_read() {
    let roles = |row: Value| -> Vec<String> {
        let all = conversation(row).messages;
        all.iter().map(|it| format!("{}={}", it.said["role"].as_str().unwrap(), it.said["content"])).collect()
    };
    let share = json!({"system": "s", "conversations": [{"from": "human", "value": "h"}, {"from": "gpt", "value": "g"}]});
    assert_eq!(roles(share), ["system=\"s\"", "user=\"h\"", "assistant=\"g\""]);
    let nemo = json!({"system": "", "mask": "User", "conversations": [{"from": "User", "value": "h"}, {"from": "Assistant", "value": "g"}]});
    assert_eq!(roles(nemo), ["user=\"h\"", "assistant=\"g\""]);
    let alpaca =
        json!({"instruction": "i", "input": "n", "output": "o", "history": [["x", "y"]], "system": "s"});
    assert_eq!(
        roles(alpaca),
        ["system=\"s\"", "user=\"x\"", "assistant=\"y\"", "user=\"i\\nn\"", "assistant=\"o\""]
    );
    let call = json!({"conversations": [{"from": "human", "value": "h"}, {"from": "function_call", "value": "{\"name\": \"f\"}"},
        {"from": "observation", "value": "7"}, {"from": "gpt", "value": "g"}], "tools": "[{\"name\": \"f\"}]"});
    let call = conversation(call);
    assert_eq!(call.messages[1].said["tool_calls"][0]["function"]["name"], "f");
    assert_eq!((call.messages[2].said["role"].as_str(), call.tools.len()), (Some("tool"), 1));
    let strings = json!({"prompt": "p", "completion": "c"});
    assert_eq!(Conversation::read(strings.as_object().unwrap(), &Keys::default()).unwrap(), None);
    let keys = Keys {
        messages: Some("m".into()),
        role: Some("r".into()),
        content: Some("c".into()),
        ..Keys::default()
    };
    let own = json!({"m": [{"r": "user", "c": "1"}, {"r": "assistant", "c": "2"}]});
    assert_eq!(Conversation::read(own.as_object().unwrap(), &keys).unwrap().unwrap().messages.len(), 2);
}

#[test]
fn what_is_no_conversation_says_why() {
    let refuse = |row: Value| Conversation::read(row.as_object().unwrap(), &Keys::default()).unwrap_err();
    assert!(refuse(json!({"messages": []})).contains("without messages"));
    assert!(
        refuse(json!({"messages": [{"role": "user", "content": "x"}]})).contains("no turn of the assistant")
    );
    assert!(refuse(json!({"messages": "x"})).contains("no list"));
    assert!(refuse(json!({"messages": [{"rol": "user"}]})).contains("`rol`"));
    assert!(refuse(json!({"messages": [{"role": "user"}]})).contains("`messages[0]`"));
    assert!(
        refuse(json!({"messages": [{"role": "assistant", "content": "x", "weight": -1}]})).contains("-1")
    );
    assert!(
        refuse(json!({"messages": [{"role": "assistant", "content": "x"}], "tools": 3})).contains("tools")
    );
}

#[test]
fn hostile_templates_end_in_an_error() {
    let tokenizer = tokenizer();
    for source in [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}x{% endfor %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ raise_exception('no') }}",
        "{{ messages[0].missing.more }}",
        "{% generation %}",
        "{{ 'x' * 100000000000 }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ [1] | tojson(indent=1000000000) }}",
        // A list in which a text stands 2^60 times.
        "{% set n = namespace(x=['a']) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x ~ '' }}",
        "{% set n = namespace(x=['a']) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ (n.x | string)[:1] }}",
        "{% set n = namespace(x=['a']) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | join }}",
        "{% set n = namespace(x=['a']) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ ''.join(n.x) }}",
        "{% set n = namespace(x=['a']) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ '{}'.format(n.x) }}",
    ] {
        let refused = match Template::new(source, &tokenizer) {
            Err(_) => true,
            Ok(template) => template.render(&conversation(two_turns()), 5, false).is_err(),
        };
        assert!(refused, "{source}");
    }
}

#[test]
fn json_and_dates_are_as_python_writes_them() {
    let tokenizer = tokenizer();
    let render = |source: &str, value: Value| {
        let template = Template::new(source, &tokenizer).unwrap();
        let message = json!({"role": "user", "content": value});
        template.render_with(&[&message], &[], false, &serde_json::Map::new()).unwrap().text
    };
    let value = json!({"b": [1, 2.5, 1e20, true, null, "é\"\n"], "a": {}, "c": 10.0});
    assert_eq!(
        render("{{ messages[0].content | tojson }}", value.clone()),
        "{\"b\": [1, 2.5, 1e+20, true, null, \"é\\\"\\n\"], \"a\": {}, \"c\": 10.0}"
    );
    assert_eq!(
        render("{{ messages[0].content | tojson(indent=2) }}", json!({"b": [1], "a": []})),
        "{\n  \"b\": [\n    1\n  ],\n  \"a\": []\n}"
    );
    assert_eq!(render("{{ messages[0].content[::-1] }}", json!("abc")), "cba");
    assert_eq!(render("{{ messages[0].content.strip().startswith('a') }}", json!(" abc")), "True");
    // Null values are absent for a template, as in Transformers; nested ones are kept.
    assert_eq!(
        render("{{ messages[0].content }}{{ messages[0] | tojson }}", json!(null)),
        "{\"role\": \"user\"}"
    );
    assert_eq!(
        render("{{ messages[0] | tojson }}", json!([null])),
        "{\"role\": \"user\", \"content\": [null]}"
    );
    assert_eq!(python::strftime("%d %b %Y, %A %I:%M %p %%", 1_764_000_000), "24 Nov 2025, Monday 04:00 PM %");
    assert_eq!(python::strftime("%Y-%m-%d", 951_782_400), "2000-02-29");
}

/// Results of Jinja 3.1.6 under Python 3.11.
#[test]
fn numbers_and_kinds_are_as_in_jinja() {
    let tokenizer = tokenizer();
    let render = |source: &str| {
        let message = json!({"role": "user", "content": [1e-7, 1e16, 1e22, 0.1, 2.0, 123456789012345680.0, -1.5e-10, 3]});
        let template = Template::new(source, &tokenizer).unwrap();
        template.render_with(&[&message], &[], false, &serde_json::Map::new()).map(|rendered| rendered.text)
    };
    let shown = render("{% for x in messages[0].content %}{{ x }} {% endfor %}").unwrap();
    assert_eq!(shown, "1e-07 1e+16 1e+22 0.1 2.0 1.2345678901234568e+17 -1.5e-10 3 ");
    for (source, text) in [
        ("{{ x is iterable }} {{ x is sequence }}", "True True"),
        ("{{ none is iterable }} {{ none is sequence }}", "False False"),
        ("{{ 'a' is iterable }} {{ 'a' is sequence }}", "True True"),
        ("{{ {} is sequence }} {{ [] is sequence }} {{ 1 is sequence }}", "True True False"),
        ("{{ '<&>' }}{{ true }}{{ none }}{{ x }}", "<&>TrueNone"),
    ] {
        assert_eq!(render(source).unwrap(), text, "{source}");
    }
    // In every context that prints a number.
    for (source, text) in [
        ("{{ '' ~ messages[0].content[0] ~ '|' ~ messages[0].content[3] }}", "1e-07|0.1"),
        (
            "{{ messages[0].content | join(' ') }}",
            "1e-07 1e+16 1e+22 0.1 2.0 1.2345678901234568e+17 -1.5e-10 3",
        ),
        ("{{ messages[0].content }}", "[1e-07, 1e+16, 1e+22, 0.1, 2.0, 1.2345678901234568e+17, -1.5e-10, 3]"),
        ("{{ {'a': messages[0].content[0]} }}", "{'a': 1e-07}"),
        ("{{ messages[0].content[0] | string }}", "1e-07"),
        (
            "{{ 1e-7 ~ '|' ~ 1e16 ~ '|' ~ 2.0 * 1e16 ~ '|' ~ 3 ~ true ~ none ~ x }}",
            "1e-07|1e+16|2e+16|3TrueNone",
        ),
        (
            "{{ [1e-7, 1e16, none, 'a', [1.0]] | join(' ') }}{{ 'ab' | join('-') }}",
            "1e-07 1e+16 None a [1.0]a-b",
        ),
        ("{{ [{'a': {'b': 1e-7}}, {'a': {'b': 2}}] | join(', ', attribute='a.b') }}", "1e-07, 2"),
        (
            "{{ 1e-7 | string }}{{ ['a', 1e16] | string }}{{ {'k': none} ~ ['é'] }}",
            "1e-07['a', 1e+16]{'k': None}['é']",
        ),
        ("{{ ', '.join(['a', 'b']) }}{{ '{} {:.1f}'.format([1e-7], 2.0) }}", "a, b[1e-07] 2.0"),
        ("{{ messages[0].content[1] | tojson }}", "1e+16"),
        ("{{ messages[0].content[:2] | tojson }}", "[1e-07, 1e+16]"),
        (
            "{% set x = messages[0].content[0] %}{{ x is number }} {{ x is float }} {{ x is string }} {{ x is mapping }} {{ x is iterable }}",
            "True True False False False",
        ),
        (
            "{{ 3 is number }} {{ 3 is float }} {{ 0.5 is float }} {{ true is number }}",
            "True False True True",
        ),
        ("{{ 'y' if messages[0].content[0] else 'n' }}", "y"),
    ] {
        assert_eq!(render(source).unwrap(), text, "{source}");
    }
    for source in [
        "{{ [1] | tojson(indent=1000000000) }}",
        "{% set n = namespace(x=[]) %}{% for i in range(2000) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x | tojson }}",
    ] {
        assert!(render(source).unwrap_err().contains("tojson"), "{source}");
    }
}

/// Results of Jinja 3.1.6.
#[test]
fn loops_run_over_texts_and_not_over_none() {
    let tokenizer = tokenizer();
    let render = |source: &str| {
        let message = json!({"role": "user", "content": "aé", "none": [null]});
        let template = Template::new(source, &tokenizer).unwrap();
        template.render_with(&[&message], &[], false, &serde_json::Map::new()).map(|rendered| rendered.text)
    };
    for (source, text) in [
        (
            "{% for c in messages[0].content %}{{ c }}{{ loop.length }}{{ loop.revindex }}{{ loop.last }}{{ ',' if not loop.last }}{% endfor %}",
            "a22False,é21True",
        ),
        ("{% for c in 'ab' if c != 'a' %}{{ c }}{{ loop.length }}{% endfor %}", "b1"),
        ("{% for c in 'ab' | list %}{{ loop.revindex0 }}{% else %}none{% endfor %}", "10"),
        ("{% for c in '' %}{% else %}none{% endfor %}{% for c in x %}{% else %}none{% endfor %}", "nonenone"),
        (
            "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{{ loop.last }}{% endfor %}",
            "a1Falseb2True",
        ),
        ("{% for k in {'a': 1, 'b': 2} %}{{ k }}{{ loop.last }}{% endfor %}", "aFalsebTrue"),
        ("{% for x in [1, [2, 3]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("{% for x in [1, 2, 3] | select('odd') %}{{ x }}{{ loop.last }}{% endfor %}", "1False3True"),
        ("{% for x in [1, 2, 3][1:] %}{{ x }}{{ loop.last }}{% endfor %}", "2False3True"),
        ("{% for x in [1, 2] + [3] %}{{ x }}{{ loop.last }}{% endfor %}", "1False2False3True"),
        ("{% for x in [1, 2] | reverse %}{{ x }}{{ loop.last }}{% endfor %}", "2False1True"),
        ("{% for x, y in [(1, 2)] %}{{ x }}{{ y }}{% endfor %}", "12"),
        ("{% for x in 1, 2 %}{{ x }}{% endfor %}", "12"),
    ] {
        assert_eq!(render(source).unwrap(), text, "{source}");
    }
    for source in
        ["{% for x in none %}{% endfor %}", "{% for x in messages[0]['none'][0] if x %}{% endfor %}"]
    {
        assert!(render(source).unwrap_err().contains("'NoneType' object is not iterable"), "{source}");
    }
}

/// A value nested deeper than usual stacks allow gives an error or a text, and does not end the process.
#[test]
fn values_nested_a_hundred_thousand_deep_do_not_overflow_the_stack() {
    let tokenizer = tokenizer();
    let nested = "{% set n = namespace(x=[]) %}{% for i in range(400) %}{% for j in range(250) %}{% set n.x = [n.x] %}{% endfor %}{% endfor %}";
    for then in ["", "{{ n.x | tojson }}", "{{ n.x }}", "{{ n.x == [n.x] }}"] {
        let template = Template::new(&format!("{nested}{then}"), &tokenizer).unwrap();
        let rendered = template.render(&conversation(two_turns()), 5, false);
        assert!(then != "{{ n.x | tojson }}" || rendered.unwrap_err().contains("tojson"));
    }
}

/// Null content next to tool calls is none for a template that tests for it, like DeepSeek's.
#[test]
fn content_that_is_null_is_none_where_a_template_asks() {
    let tokenizer = tokenizer();
    let message = json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}], "name": null});
    let render = |source: &str| {
        let template = Template::new(source, &tokenizer).unwrap();
        template.render_with(&[&message], &[], false, &serde_json::Map::new()).unwrap().text
    };
    for (source, text) in [
        ("{% if messages[0]['content'] is none %}calls{% endif %}", "calls"),
        ("{% if messages[0].content is not none %}words{% else %}calls{% endif %}", "calls"),
        ("{% set m = messages[0] %}{% if m[\"content\"] == None %}calls{% endif %}", "calls"),
        ("{{ messages[0].content }}{% if messages[0].tool_calls is not none %}calls{% endif %}", "calls"),
        ("{{ messages[0].content is defined }}", "False"),
        ("{% if messages[0].content is none and messages[0].name is defined %}a{% else %}b{% endif %}", "b"),
    ] {
        assert_eq!(render(source), text, "{source}");
    }
}

/// Results of Transformers 5.24 with the same templates: undefined is not JSON, even inside a list, a value or a key.
#[test]
fn what_is_undefined_is_no_json() {
    let tokenizer = tokenizer();
    let render = |source: &str| {
        let message = json!({"role": "user", "content": null});
        let template = Template::new(source, &tokenizer).unwrap();
        template.render_with(&[&message], &[], false, &serde_json::Map::new()).map(|rendered| rendered.text)
    };
    for source in [
        "{{ x | tojson }}",
        "{{ messages[0].content | tojson }}",
        "{{ messages[0]['z'] | tojson }}",
        "{{ [1, x] | tojson }}",
        "{{ {'a': [{'b': x}]} | tojson(indent=1) }}",
        "{{ dict(a=x) | tojson }}",
        "{{ ('a' if false) | tojson }}",
        "{% set all = namespace() %}{{ all.x | tojson }}",
    ] {
        let error = render(source).expect_err(source);
        assert!(error.contains("Object of type Undefined is not JSON serializable"), "{source}: {error}");
    }
    assert!(render("{{ {x: 1} | tojson }}").unwrap_err().contains("keys must be"));
    for (source, text) in [
        ("{{ none | tojson }}", "null"),
        ("{{ messages[0].get('content') | tojson }}", "null"),
        ("{{ x | default(none) | tojson }}", "null"),
        ("{{ x | default('d') | tojson }}", "\"d\""),
        ("{{ [none] | tojson }}", "[null]"),
        ("{{ {none: 1} | tojson }}", "{\"null\": 1}"),
        ("{{ {true: 1, 2: 3} | tojson(sort_keys=true) }}", "{\"true\": 1, \"2\": 3}"),
    ] {
        assert_eq!(render(source).unwrap(), text, "{source}");
    }
}

/// The appended text is the rendering of the longer conversation, minus the existing text.
#[test]
fn what_follows_an_answer_is_appended() {
    let tokenizer = std::rc::Rc::new(tokenizer());
    let follow = |source: Option<&str>| {
        let template = source.map(|source| Template::new(source, &tokenizer).unwrap());
        Follow { tokenizer: tokenizer.clone(), template, role: "tool".into() }
    };
    let asked = Conversation { prompt: 2, ..conversation(two_turns()) };
    let asked = Conversation { messages: asked.messages[..2].to_vec(), ..asked };
    let end = tokenizer.token_id("<|im_end|>");
    let (chat, want) =
        (follow(Some(CHATML)), "\n<|im_start|>tool\nit is <|im_end|>\n<|im_start|>assistant\n");
    chat.check(&asked).unwrap();
    let found = chat.tokens(Some(&asked), (" there ", end), "it is ").unwrap();
    assert_eq!(found, tokenizer.encode_special(want).unwrap());
    // An answer that ended with another token than its turn does.
    let found = chat.tokens(Some(&asked), ("there", None), "it is ").unwrap();
    assert_eq!(tokenizer.decode(&found), format!("<|im_end|>{want}"));
    // A plain text has no turns.
    let found = follow(None).tokens(None, ("there", end), "\n7<|im_end|>").unwrap();
    assert_eq!(found, tokenizer.encode_special("\n7<|im_end|>").unwrap());
    assert!(follow(None).tokens(Some(&asked), ("there", end), "7").is_err());
    // Reasoning in all turns but the last is dropped: answers without any can be continued.
    let drops = CHATML.replace(
        "message.content +",
        "(message.content if loop.last or message.role != 'assistant' else message.content.split('|')[-1]) +",
    );
    let drops = follow(Some(&drops));
    drops.check(&asked).unwrap();
    drops.tokens(Some(&asked), ("yes", end), "7").unwrap();
    let error = drops.tokens(Some(&asked), ("hm|yes", end), "7").unwrap_err();
    assert!(error.contains("rewrites earlier turns") && error.contains("data.chat_template"), "{error}");
    let counts = format!("{{{{- messages | length }}}}{CHATML}");
    assert!(follow(Some(&counts)).check(&asked).unwrap_err().contains("rewrites earlier turns"));
    let refuses = CHATML.replace(
        "message.role + ",
        "(raise_exception('no tools') if message.role == 'tool' else message.role) + ",
    );
    assert!(follow(Some(&refuses)).check(&asked).unwrap_err().contains("no tools"));
    let trims = CHATML.replace("message.content +", "(message.content | upper) +");
    assert!(follow(Some(&trims)).check(&asked).unwrap_err().contains("does not show an answer"));
}

/// Selection among a model's templates, as in Transformers.
#[test]
fn conversations_with_tools_have_a_template_of_their_own() {
    let (tokenizer, folder) = (tokenizer(), tempfile::tempdir().unwrap());
    let (plain, tools) = (format!("a{CHATML}"), format!("b{CHATML}"));
    let row = |tools: Value| {
        json!({"messages": [
        {"role": "user", "content": "hello"}, {"role": "assistant", "content": "there"}], "tools": tools})
    };
    let begins = |template: &Template| {
        let text = |tools| template.render(&conversation(row(tools)), 1, true).unwrap().text;
        [json!([]), json!([{"type": "function", "function": {"name": "f"}}])]
            .map(|tools| text(tools)[..1].to_string())
    };
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let named = json!([{"name": "default", "template": plain}, {"name": "tool_use", "template": tools}]);
    for templates in [named, json!({"tool_use": tools, "default": plain})] {
        write("tokenizer_config.json", &json!({ "chat_template": templates }).to_string());
        let template = Template::from_dir(folder.path(), &tokenizer).unwrap().unwrap();
        assert_eq!(begins(&template), ["a", "b"]);
        assert_ne!(template.hash(), Template::new(&plain, &tokenizer).unwrap().hash());
    }
    write("chat_template.jinja", &plain);
    let template = Template::from_dir(folder.path(), &tokenizer).unwrap().unwrap();
    assert_eq!(begins(&template), ["a", "a"]);
    write("additional_chat_templates/tool_use.jinja", &tools);
    assert_eq!(begins(&Template::from_dir(folder.path(), &tokenizer).unwrap().unwrap()), ["a", "b"]);
}
