//! Tests of the conversion of rows to lessons, and of rejections.

use std::path::Path;

use super::*;

fn tokenizer() -> Tokenizer {
    let texts = ["what is two plus two? four. ".repeat(40), "a question and its answer. ".repeat(40)];
    Tokenizer::train_bpe(texts.into_iter(), 300, &["<|endoftext|>"]).unwrap()
}

fn teaching(max_tokens: usize) -> LessonConversion {
    LessonConversion { max_tokens, ..LessonConversion::default() }
}

fn read(row: &str, teaching: &LessonConversion) -> std::result::Result<Lesson, String> {
    lesson(&serde_json::from_str(row).unwrap(), (&tokenizer(), None), teaching)
}

#[test]
fn the_completion_and_the_end_are_learned() {
    let tokenizer = tokenizer();
    let lesson =
        read(r#"{"prompt": "what is two plus two?", "completion": " four."}"#, &teaching(64)).unwrap();
    let learned: Vec<u32> = lesson
        .ids
        .iter()
        .zip(&lesson.weights)
        .filter(|(_, weight)| **weight > 0.0)
        .map(|(id, _)| *id)
        .collect();
    assert_eq!(tokenizer.decode(&learned[..learned.len() - 1]), " four.");
    assert_eq!(learned.last(), tokenizer.eos().as_ref());
    assert_eq!(lesson.supervised(), learned.len());
    let all = LessonConversion { supervise: Supervise::All, ..teaching(64) };
    let all = read(r#"{"input": "what is two plus two?", "output": " four."}"#, &all).unwrap();
    assert_eq!((all.ids, all.weights), (lesson.ids.clone(), vec![1.0; lesson.ids.len()]));
}

#[test]
fn a_token_across_the_border_is_learned() {
    // `fo|ur` is one token of the whole text: the completion begins where the tokens differ.
    let lesson =
        read(r#"{"prompt": "what is two plus two? fo", "completion": "ur."}"#, &teaching(64)).unwrap();
    let first = lesson.weights.iter().position(|weight| *weight > 0.0).unwrap();
    let context = tokenizer().decode(&lesson.ids[..first]);
    assert!("what is two plus two? fo".starts_with(&context) && context.len() < 24, "{context}");
}

#[test]
fn masks_multiply() {
    let row = r#"{"input_ids": [5, 6, 7, 8], "labels": [-100, 6, 7, 8], "weights": [1, 0.5, 0, 2]}"#;
    assert_eq!(read(row, &teaching(8)).unwrap().weights, [0.0, 0.5, 0.0, 2.0]);
    let row =
        r#"{"input_ids": [5, 6, 7, 8], "completion_mask": [0, 1, 1, 1], "assistant_masks": [1, 1, 0, 1]}"#;
    assert_eq!(read(row, &teaching(8)).unwrap().weights, [0.0, 1.0, 0.0, 1.0]);
}

#[test]
fn long_rows_are_cut_where_it_says() {
    let row = r#"{"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]}"#;
    let kept = |truncation, max_tokens| read(row, &LessonConversion { truncation, ..teaching(max_tokens) });
    let start = kept(Truncation::KeepStart, 3).unwrap();
    assert_eq!((start.ids, start.cut), (vec![5, 6, 7], 1));
    assert_eq!(kept(Truncation::KeepEnd, 3).unwrap().ids, [6, 7, 8]);
    assert!(kept(Truncation::Error, 3).unwrap_err().contains("4 tokens"));
    assert!(kept(Truncation::KeepStart, 2).unwrap_err().contains("cut off"));
}

#[test]
fn what_cannot_be_taught_is_refused() {
    for (row, said) in [
        ("[1]", "no JSON object"),
        ("{}", "empty object"),
        (r#"{"messages": []}"#, "without messages"),
        (r#"{"messages": [{"role": "assistant", "content": "a"}]}"#, "chat template"),
        (r#"{"prompt": "a", "completion": ""}"#, "empty completion"),
        (r#"{"prompt": [{"role": "user"}], "completion": "a"}"#, "list of messages"),
        (r#"{"prompt": 5, "completion": "a"}"#, "`prompt` is no string"),
        (r#"{"input_ids": [5, 999999]}"#, "999999"),
        (r#"{"input_ids": [5, -1]}"#, "-1"),
        (r#"{"input_ids": [5, 6], "labels": [5]}"#, "1 values for 2"),
        (r#"{"input_ids": [5, 6], "labels": [5, 7]}"#, "`labels` has 7"),
        (r#"{"input_ids": [5, 6], "weights": [1, -1]}"#, "-1"),
        (r#"{"input_ids": [5, 6], "labels": [-100, -100]}"#, "no supervised token"),
        (r#"{"input_ids": [5], "labels": [5]}"#, "no supervised token"),
        (r#"{"input_ids": []}"#, "no supervised token"),
        (r#"{"input_ids": "5"}"#, "no list of numbers"),
    ] {
        let error = read(row, &teaching(8)).expect_err(row);
        assert!(error.contains(said), "{row}: {error}");
    }
}

#[test]
fn rows_behind_a_byte_order_mark_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let row = r#"{"prompt": "a", "completion": " b"}"#;
    for (name, text) in [("a.jsonl", row.to_string()), ("b.json", format!("[{row}]"))] {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("\u{feff}{text}\n")).unwrap();
        let rows: Vec<Value> = Rows::open(&path).unwrap().map(Result::unwrap).collect();
        assert_eq!(rows, [serde_json::from_str::<Value>(row).unwrap()], "{name}");
        assert!(is_lesson_file(&path, "text"), "{name}");
    }
}

#[test]
fn rows_are_named_by_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let (lines, array) = (folder.path().join("a.jsonl"), folder.path().join("b.json"));
    std::fs::write(
        &lines,
        "{\"prompt\": \"a\", \"completion\": \"b\"}\n\n{\"prompt\": \n{\"input_ids\": [1, 2]}",
    )
    .unwrap();
    std::fs::write(&array, "[{\"input_ids\": [1, 2, 3]}, {\"input_ids\": []}]").unwrap();
    let (tokenizer, teaching) = (tokenizer(), teaching(8));
    let files = files(&[folder.path().to_owned()]).unwrap();
    let lessons: Vec<_> = Lessons::new(files, (&tokenizer, None), &teaching).collect();
    let said: Vec<String> = lessons
        .iter()
        .map(|lesson| match lesson {
            Ok(documents) => documents[0].ids.len().to_string(),
            Err(error) => error.to_string(),
        })
        .collect();
    assert_eq!(said.len(), 5, "{said:?}");
    assert!(said[1].contains("a.jsonl:3: is no JSON"), "{}", said[1]);
    assert_eq!((said[2].as_str(), said[3].as_str()), ("2", "3"));
    assert!(said[4].contains("b.json:2: has no supervised"), "{}", said[4]);
    assert!(is_lesson_file(&lines, "text") && is_lesson_file(&array, "text"));
    assert!(!is_lesson_file(&lines, "prompt") && !is_lesson_file(Path::new("absent.jsonl"), "text"));
}

fn judged(
    judge: Judge,
    rows: &str,
    change: impl Fn(&mut LessonConversion),
) -> Vec<std::result::Result<Vec<Lesson>, String>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    std::fs::write(&path, rows).unwrap();
    let mut teaching = teaching(64);
    teaching.answers = Answers { judge, block: 3, ..Answers::default() };
    change(&mut teaching);
    let tokenizer = tokenizer();
    let read = Lessons::new(vec![path], (&tokenizer, None), &teaching);
    read.map(|row| row.map_err(|error| error.to_string())).collect()
}

/// Context and target text of a document.
fn parts(lesson: &Lesson) -> (String, String) {
    let start = lesson.values[0] as usize;
    let learned: Vec<f32> = (0..lesson.ids.len()).map(|at| f32::from(u8::from(at >= start))).collect();
    assert_eq!(lesson.weights, learned);
    let text = |ids: &[u32]| tokenizer().decode(ids);
    (text(&lesson.ids[..start]), text(&lesson.ids[start..]))
}

#[test]
fn pairs_come_in_the_formats_of_the_field() {
    let rows = [
        r#"{"prompt": "what is it?", "chosen": " good", "rejected": " bad", "margin": 0.5}"#,
        r#"{"chosen": "what is it? good", "rejected": "what is it? bad"}"#,
        r#"{"prompt": "what is it?", "chosen_response": " good", "rejected_response": " bad", "chosen_reward": 4, "rejected_reward": 1}"#,
        r#"{"text": "what is it? good"}"#,
        r#"{"text": "what is it? bad"}"#,
        r#"{"prompt": "a", "chosen": "b"}"#,
        r#"{"prompt": "a", "chosen": [{"role": "assistant", "content": "b"}], "rejected": [{"role": "assistant", "content": "c"}]}"#,
    ]
    .join("\n");
    let read = judged(Judge::Pairs, &rows, |_| {});
    assert_eq!(read.len(), 6);
    let eos = tokenizer().token(tokenizer().eos().unwrap()).unwrap();
    for row in &read[..4] {
        let [chosen, rejected] = &row.as_ref().unwrap()[..] else { panic!("a pair is two documents") };
        let (prompt, answer) = parts(chosen);
        assert_eq!(
            (prompt + &answer, parts(rejected).1.ends_with(&eos)),
            (format!("what is it? good{eos}"), true)
        );
        assert_eq!(chosen.ids[..chosen.values[0] as usize], rejected.ids[..rejected.values[0] as usize]);
    }
    let values = |row: usize, doc: usize| read[row].as_ref().unwrap()[doc].values[1..].to_vec();
    assert!(values(0, 0)[0].is_nan() && values(0, 1)[1] == 0.5);
    assert_eq!((values(2, 0)[0], values(2, 1)[0]), (4.0, 1.0));
    assert!(
        read[4].as_ref().unwrap_err().contains("rows.jsonl:6: has the keys `prompt`, `chosen`"),
        "{:?}",
        read[4]
    );
    assert!(read[5].as_ref().unwrap_err().contains("no chat template"), "{:?}", read[5]);
    let refused = judged(Judge::Pairs, &rows, |teaching| teaching.answers.rewards = true);
    assert!(refused[0].as_ref().unwrap_err().contains("`chosen_reward`") && refused[2].is_ok());
}

/// Everything before the answers is read, or the row is rejected; nothing is dropped silently.
#[test]
fn prompts_of_pairs_are_not_left_out() {
    let template = Template::new(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
        &tokenizer(),
    );
    let (tokenizer, template) = (tokenizer(), template.unwrap());
    let mut teaching = teaching(64);
    teaching.answers = Answers { judge: Judge::Pairs, ..Answers::default() };
    let read = |row: &str| -> std::result::Result<String, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), row).unwrap();
        let mut read =
            Lessons::new(vec![file.path().to_path_buf()], (&tokenizer, Some(&template)), &teaching);
        let documents = read.next().unwrap().map_err(|error| error.to_string())?;
        Ok(tokenizer.decode(&documents[0].ids))
    };
    let answers = r#""chosen": [{"role": "assistant", "content": "four"}], "rejected": [{"role": "assistant", "content": "a"}]"#;
    let said = read(&format!(r#"{{"prompt": "what is two?", {answers}}}"#)).unwrap();
    assert_eq!(said, "<user>what is two?<assistant>four");
    let whole = r#""chosen": [{"role": "user", "content": "two"}, {"role": "assistant", "content": "four"}],
        "rejected": [{"role": "user", "content": "two"}, {"role": "assistant", "content": "a"}]"#
        .replace('\n', "");
    assert_eq!(read(&format!(r#"{{"prompt": "two", {whole}}}"#)).unwrap(), "<user>two<assistant>four");
    assert_eq!(read(&format!(r#"{{"question": "two", {whole}}}"#)).unwrap(), "<user>two<assistant>four");
    for key in ["question", "instruction"] {
        let refused = read(&format!(r#"{{"{key}": "two", "chosen": "four", "rejected": "a"}}"#)).unwrap_err();
        assert!(refused.contains(&format!("data.columns.prompt={key}")), "{refused}");
    }
    let refused =
        read(r#"{"prompt": [{"role": "user", "content": "two"}], "chosen": "four", "rejected": "a"}"#);
    assert!(refused.unwrap_err().contains("is a text"), "a prompt of messages");
    // Ratings of answers do not define a margin, as in TRL.
    let rated =
        r#"{"prompt": "two", "chosen": "four", "rejected": "a", "score_chosen": 8, "score_rejected": 3}"#;
    let rows = judged(Judge::Pairs, rated, |_| {});
    assert!(rows[0].as_ref().unwrap()[0].values[2].is_nan());
}

#[test]
fn answers_without_a_template_have_beginnings_and_ends() {
    let row = r#"{"prompt": "what is it?", "chosen": " good", "rejected": " bad"}"#;
    let tokenizer = tokenizer();
    let read = judged(Judge::Pairs, row, |teaching| {
        teaching.answers.bare = true;
        teaching.answers.prompts = true;
    });
    let chosen = &read[0].as_ref().unwrap()[0];
    assert!(chosen.weights.iter().all(|weight| *weight == 1.0), "the prompt is learned too");
    assert_eq!(chosen.ids.last(), tokenizer.eos().as_ref());
    assert!(tokenizer.bos().is_none_or(|bos| chosen.ids[0] == bos));
    let long = judged(Judge::Pairs, row, |teaching| teaching.max_tokens = 3);
    assert!(long[0].as_ref().unwrap_err().contains("leaves nothing of the answer"), "{long:?}");
    let end = judged(Judge::Pairs, row, |teaching| {
        (teaching.max_tokens, teaching.truncation) = (3, Truncation::KeepEnd);
    });
    assert!(end[0].as_ref().unwrap().iter().all(|lesson| lesson.ids.len() == 3 && lesson.cut > 0));
}

/// Qwen 2's configuration names a beginning-of-text token that its tokenizer lacks.
#[test]
fn answers_begin_with_the_tokenizers_own_token_alone() {
    let (folder, rows) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    tokenizer().save(folder.path().join("tokenizer.json")).unwrap();
    write("config.json", r#"{"bos_token_id": 0, "eos_token_id": 0}"#);
    std::fs::write(rows.path(), r#"{"prompt": "what is it?", "chosen": " good", "rejected": " bad"}"#)
        .unwrap();
    let mut teaching = teaching(64);
    teaching.answers = Answers { judge: Judge::Pairs, bare: true, ..Answers::default() };
    for (config, begins) in [
        (r#"{"bos_token": "<|endoftext|>"}"#, true),
        (r#"{"bos_token": null}"#, false),
        (r#"{"tokenizer_class": "Qwen2Tokenizer"}"#, false),
        (r#"{"tokenizer_class": "LlamaTokenizer"}"#, true),
    ] {
        write("tokenizer_config.json", config);
        let tokenizer = Tokenizer::from_dir(folder.path()).unwrap();
        let mut read = Lessons::new(vec![rows.path().to_path_buf()], (&tokenizer, None), &teaching);
        let documents = read.next().unwrap().unwrap();
        assert!(documents.iter().all(|lesson| (lesson.ids[0] == 0) == begins), "{config}: {documents:?}");
        assert_eq!(tokenizer.bos(), Some(0), "{config}: the model has one");
    }
}

#[test]
fn answers_change_places_within_a_block() {
    let row = |at: usize| {
        format!(
            r#"{{"prompt": "question {at}:", "completion": " answer {at}", "label": {}}}"#,
            at.is_multiple_of(2)
        )
    };
    let mut rows: Vec<String> = (0..5).map(row).collect();
    rows.insert(1, r#"{"prompt": "a", "completion": "b", "label": "maybe"}"#.into());
    rows.push(r#"{"prompt": "question 5:", "response": " answer 5", "preference": "chosen"}"#.into());
    rows.push(r#"{"prompt": "question 6:", "chosen": " answer 6", "rejected": " answer 7"}"#.into());
    let read = judged(Judge::Labels, &rows.join("\n"), |_| {});
    let good: Vec<&Vec<Lesson>> = read.iter().flatten().collect();
    assert_eq!((good.len(), read.len()), (8, 9));
    let other = [2, 0, 1, 5, 3, 4, 7, 6];
    for (at, documents) in good.iter().enumerate() {
        let [own, mismatched] = &documents[..] else { panic!("two documents") };
        let (prompt, answer) = parts(own);
        assert!((prompt + &answer).contains(&format!(" answer {at}")));
        let (prompt, answer) = parts(mismatched);
        assert!((prompt + &answer).contains(&format!(" answer {}", other[at])), "{at}: {answer}");
        assert_eq!(own.values[1], [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0][at]);
        assert!(mismatched.values[1].is_nan());
    }
}

#[test]
fn responses_are_read() {
    let known = |given: f64, own: f64, then: f64| {
        format!("\"log(P(a|x,y))\": {given}, \"log(P(y|x))\": {own}, \"log(Q(y|a,x))\": {then}")
    };
    let of = |value: &str, known: &str| format!("{{\"value\": \"{value}\", {known}}}");
    let two = [of(" good", &known(-1.0, -4.0, -3.5)), of(" bad", &known(-2.0, -3.0, -8.0))].join(", ");
    let rows = [
        format!("{{\"prompt\": \"what is it?\", \"responses\": [{two}]}}"),
        format!(
            "{{\"prompt_turns\": [{{\"from\": \"User\", \"value\": \"what\"}}], \"label\": \"a:4\", \"responses\": [{two}]}}"
        ),
        format!("{{\"prompt\": \"a\", \"responses\": [{}]}}", of("b", &known(0.0, 0.0, 0.0))),
        "{\"prompt\": \"a\", \"responses\": [{\"value\": \"b\"}, {\"value\": \"c\"}]}".into(),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    std::fs::write(&path, rows.join("\n")).unwrap();
    let answers = Answers { judge: Judge::Responses, responses: 2, ..Answers::default() };
    assert_eq!((answers.group(), answers.values()), (2, 3));
    let teaching = LessonConversion { answers, ..teaching(64) };
    let tokenizer = tokenizer();
    let source = "{%- for message in messages -%}{%- if message.role == 'user' -%}{{ 'U:' + message.content }}{%- else -%}\
        {{ 'A[' + message.label + ']' }}{%- generation -%}{{ message.content + '!' }}{%- endgeneration -%}{{ '~' }}{%- endif -%}{%- endfor -%}";
    let template = Template::new(source, &tokenizer).unwrap();
    let read = Lessons::new(vec![path], (&tokenizer, Some(&template)), &teaching);
    let read: Vec<_> = read.map(|row| row.map_err(|error| error.to_string())).collect();
    for (row, [prompt, good, bad]) in
        [(0, ["what is it?", " good", " bad"]), (1, ["U:whatA[a:4]", " good!", " bad!"])]
    {
        let [one, other] = &read[row].as_ref().unwrap()[..] else { panic!("two documents") };
        let eos = tokenizer.token(tokenizer.eos().unwrap()).unwrap();
        let text = |text: &str| if row == 0 { format!("{text}{eos}") } else { text.to_string() };
        assert_eq!(parts(one), (prompt.to_string(), text(good)));
        assert_eq!(parts(other), (prompt.to_string(), text(bad)));
        assert_eq!([&one.values[1..], &other.values[1..]], [[-1.5, -3.5], [3.0, -8.0]]);
    }
    assert!(
        read[2].as_ref().unwrap_err().contains("1 `responses`, and objective.responses is 2"),
        "{read:?}"
    );
    assert!(read[3].as_ref().unwrap_err().contains("log(P(a|x,y))"), "{read:?}");
}

#[test]
fn ratings_and_steps_are_read() {
    let rows = "{\"text\": \"good\", \"label\": [1, -100]}\n{\"prompt\": \"a\", \"response\": \"b\", \"fun\": 2}\n\
                {\"text\": \"good\", \"label\": [1]}\n{\"text\": \"good\"}";
    let read = judged(Judge::Ratings, rows, |teaching| {
        (teaching.answers.ratings, teaching.answers.whole) = (vec!["sense".into(), "fun".into()], true);
    });
    let values = |row: usize| read[row].as_ref().unwrap()[0].values[1..].to_vec();
    assert!(values(0)[0] == 1.0 && values(0)[1].is_nan());
    assert!(values(1)[0].is_nan() && values(1)[1] == 2.0);
    assert!(read[2].as_ref().unwrap_err().contains("has 1 ratings"), "{:?}", read[2]);
    assert!(read[3].as_ref().unwrap_err().contains("no rating"), "{:?}", read[3]);
    let row = r#"{"prompt": "one and one", "completions": ["is two", "so four"], "labels": [true, false]}"#;
    let read = judged(Judge::Steps, row, |_| {});
    let lesson = &read[0].as_ref().unwrap()[0];
    let judged: Vec<f32> = lesson.weights.iter().copied().filter(|weight| *weight > 0.0).collect();
    assert_eq!(judged, [2.0, 1.0]);
    assert_eq!(lesson.weights.last(), Some(&1.0));
}

/// A table of conversations as found in data sets: `messages` is a list of `role` and `content`, and `tools` is null
/// in the first row.
fn table(path: &Path) {
    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::writer::SerializedFileWriter;
    let schema = "message rows {
        optional group messages (LIST) { repeated group list { optional group element {
            optional binary role (STRING); optional binary content (STRING); } } }
        optional binary tools (STRING); }";
    let schema = std::sync::Arc::new(parquet::schema::parser::parse_message_type(schema).unwrap());
    let file = std::fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Default::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    type Column = (&'static [&'static str], &'static [i16], Option<&'static [i16]>);
    let columns: [Column; 3] = [
        (&["user", "assistant", "user"], &[4, 4, 4], Some(&[0, 1, 0])),
        (&["Hi", "Ho", "Hm"], &[4, 4, 4], Some(&[0, 1, 0])),
        (&["none"], &[0, 1], None),
    ];
    for (values, defined, repeated) in columns {
        let mut column = group.next_column().unwrap().unwrap();
        let values: Vec<ByteArray> = values.iter().map(|text| ByteArray::from(*text)).collect();
        column.typed::<ByteArrayType>().write_batch(&values, Some(defined), repeated).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn rows_are_read_compressed_and_from_tables() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let lines = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Ho\"}]}\n\
                 {\"messages\": [{\"role\": \"user\", \"content\": \"Hm\"}], \"tools\": \"none\"}\n";
    std::fs::write(at("a.jsonl"), lines).unwrap();
    let mut gz =
        flate2::write::GzEncoder::new(std::fs::File::create(at("b.jsonl.gz")).unwrap(), Default::default());
    gz.write_all(lines.as_bytes()).unwrap();
    gz.finish().unwrap();
    std::fs::write(at("c.json.zst"), zstd::encode_all(lines.as_bytes(), 3).unwrap()).unwrap();
    table(&at("d.parquet"));
    std::fs::write(at("e.txt"), lines).unwrap();
    let found = files(&[folder.path().to_path_buf()]).unwrap();
    assert_eq!(found.len(), 4, "{found:?}");
    let rows = |path: &Path| Rows::open(path).unwrap().map(|row| row.unwrap()).collect::<Vec<_>>();
    for path in &found[1..] {
        assert_eq!(rows(path), rows(&found[0]), "{}", path.display());
        assert!(is_lesson_file(path, "text"));
    }
    // Truncated files give an error with its place.
    for name in ["b.jsonl.gz", "c.json.zst", "d.parquet"] {
        let bytes = std::fs::read(at(name)).unwrap();
        std::fs::write(at(name), &bytes[..bytes.len() / 2]).unwrap();
        let error = match Rows::open(&at(name)) {
            Ok(rows) => rows.filter_map(Result::err).next().unwrap(),
            Err(error) => error,
        };
        assert!(error.to_string().contains(name), "{error}");
    }
}

/// A table of one row: a list of texts, all the same, which a dictionary holds once, or not.
fn row_of(path: &Path, text: &str, times: usize, has_dictionary: bool) {
    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    let schema = "message rows { repeated binary output (STRING); }";
    let schema = std::sync::Arc::new(parquet::schema::parser::parse_message_type(schema).unwrap());
    let how = WriterProperties::builder().set_dictionary_enabled(has_dictionary).build();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, how.into()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let values = vec![ByteArray::from(text); times];
    let repeated: Vec<i16> = (0..times).map(|at| i16::from(at > 0)).collect();
    column.typed::<ByteArrayType>().write_batch(&values, Some(&vec![1; times]), Some(&repeated)).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
}

/// Most bytes of a row, as in JSON lines, whatever the size of its file.
#[test]
fn a_row_of_a_table_has_as_many_bytes_as_one_of_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let error = || Rows::open(&path).and_then(|mut rows| rows.next().unwrap()).unwrap_err().to_string();
    let text = "a".repeat(512 << 10);
    row_of(&path, &text, 130, true);
    assert!(std::fs::metadata(&path).unwrap().len() < 2 << 20);
    assert!(error().contains("a.parquet:1: is longer than 67108864 bytes"), "{}", error());
    row_of(&path, &text, 130, false);
    assert!(error().contains("1 in all, unpack to 68"), "{}", error());
    row_of(&path, &text, 120, true);
    assert!(Rows::open(&path).unwrap().next().unwrap().is_ok());
}

#[test]
fn a_damaged_table_ends_at_its_first_error() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, damaged) = (folder.path().join("whole.parquet"), folder.path().join("damaged.parquet"));
    table(&whole);
    let bytes = std::fs::read(&whole).unwrap();
    let mut failed = 0;
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x55;
        std::fs::write(&damaged, &bytes).unwrap();
        let Ok(rows) = Rows::open(&damaged) else { continue };
        let rows: Vec<bool> = rows.take(1000).map(|row| row.is_err()).collect();
        assert!(rows.len() < 1000, "byte {at}: the rows do not end");
        assert!(rows.iter().rev().skip(1).all(|error| !error), "byte {at}: rows follow an error");
        failed += usize::from(rows.last() == Some(&true));
    }
    assert!(failed > 10, "{failed}");
}

#[test]
fn a_row_that_is_too_long_is_an_error_and_the_next_one_is_read() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let packed = |name: &str, start: &[u8], end: &[u8]| {
        let path = folder.path().join(name);
        let file = std::fs::File::create(&path).unwrap();
        let mut gz = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
        gz.write_all(start).unwrap();
        for _ in 0..70 {
            gz.write_all(&[b' '; 1 << 20]).unwrap();
        }
        gz.write_all(end).unwrap();
        gz.finish().unwrap();
        Rows::open(&path).unwrap().collect::<Vec<_>>()
    };
    let too_long = |row: &Result<Value>, place: &str| {
        let error = row.as_ref().unwrap_err().to_string();
        assert!(error.contains(place) && error.contains("longer than 67108864 bytes"), "{error}");
    };
    let rows = packed("long.jsonl.gz", b"", b"{}\n{\"prompt\": \"a\"}\n");
    assert_eq!(rows.len(), 2, "{rows:?}");
    too_long(&rows[0], "long.jsonl.gz:1");
    assert_eq!(rows[1].as_ref().unwrap()["prompt"], "a");
    // An array ends there, since the start of its next element is unknown.
    let rows = packed("long.json.gz", b"[{\"prompt\": \"a\"}, {\"prompt\": \"", b"\"}]");
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert_eq!(rows[0].as_ref().unwrap()["prompt"], "a");
    too_long(&rows[1], "long.json.gz:2");
}

#[test]
fn an_array_is_read_row_by_row_up_to_what_is_wrong_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.json");
    for (text, count, said) in [
        (" \n[ ] \n", 0, ""),
        ("[{\"a\": [1, {}]},\n{\"b\": \"]},\\\"\"}\n]\n", 2, ""),
        ("[{}, {}", 2, "the file ends inside the array"),
        ("[{} {}]", 1, "a `,` is missing"),
        ("[{},]", 1, "is no JSON object"),
        ("[{}, 7]", 1, "is no JSON object"),
        ("[, {}]", 0, "is no JSON object"),
        ("[{}, {\"a\": }]", 1, "is no JSON: "),
        ("[{}] {}", 1, "more behind the end"),
    ] {
        std::fs::write(&path, text).unwrap();
        let rows: Vec<_> = Rows::open(&path).unwrap().collect();
        assert_eq!(rows.iter().filter(|row| row.is_ok()).count(), count, "{text}");
        let errors: Vec<String> = rows.into_iter().filter_map(Result::err).map(|e| e.to_string()).collect();
        assert_eq!(errors.len(), usize::from(!said.is_empty()), "{text}: {errors:?}");
        assert!(errors.iter().all(|error| error.contains(said)), "{text}: {errors:?}");
    }
}
