//! The bodies of fuzz targets over changed seeds, without sanitizers (`fuzz/`).

#[path = "../../../../fuzz/bodies/serve.rs"]
mod body;

/// Runs on the bytes as they are, and with some of them changed, removed and duplicated.
fn changed(seed: &[u8], times: usize, run: impl Fn(&[u8])) {
    run(seed);
    let mut random = seed.len() as u64 + 5;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) as usize % below.max(1)
    };
    const PIECES: [&str; 12] =
        ["{", "}", "[", "]", "\"", "null", "-1", "1e400", "\\ud800", ":", ",", "<tool_call>"];
    for _ in 0..times {
        let mut bytes = seed.to_vec();
        for _ in 0..1 + next(3) {
            let at = 1 + next(bytes.len().saturating_sub(1));
            match next(4) {
                0 => bytes.truncate(at),
                1 => _ = bytes.get_mut(at).map(|byte| *byte = next(256) as u8),
                2 => _ = bytes.get(at).is_some().then(|| bytes.remove(at)),
                _ => {
                    let at = at.min(bytes.len());
                    bytes.splice(at..at, PIECES[next(PIECES.len())].bytes());
                }
            }
        }
        run(&bytes);
    }
}

#[test]
fn any_body_is_answered() {
    let fields = r#"{"model": "m", "prompt": ["a", "b"], "input": "a", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "tool_choice": "auto", "n": 2,
        "max_tokens": 4, "logprobs": 1, "logit_bias": {"5": 1.5}, "stop": ["x"], "stream": true, "stream_options": {"include_usage": true},
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}, "use_beam_search": true,
        "text_input": "a", "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a"]}], "tokens": [1, 2]}"#;
    for route in 0..16 {
        changed(&[&[route], fields.as_bytes()].concat(), 12, body::request);
        changed(
            &[&[route], br#"{"model": "m", "prompt": "a", "max_tokens": 2}"#.as_slice()].concat(),
            6,
            body::request,
        );
    }
}

#[test]
fn any_answer_is_reported_whole() {
    let text = "<think>a</think>I call <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call> [TOOL_CALLS][{\"name\": \"f\", \
                \"arguments\": {}}] {\"name\": \"f\", \"parameters\": {\"a\": \u{e9}\"\\n\"}}";
    for how in 0..10 {
        changed(&[&[how, 6], text.as_bytes()].concat(), 15, body::answer);
    }
}
