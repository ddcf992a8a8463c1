//! Log-probabilities of tokens, in OpenAI's two forms.

use fathom_base::{Service, TokenLogprob};
use serde_json::{Map, Value, json};

/// How a token is spelled in an answer.
#[derive(Clone, Copy, Debug)]
pub struct Spelling {
    /// `token_id:5`.
    pub as_ids: bool,
}

impl Spelling {
    /// A token as text. Of bytes that are no characters, OpenAI's spelling of them.
    pub fn of(self, service: &dyn Service, id: u32) -> String {
        if self.as_ids {
            return format!("token_id:{id}");
        }
        match String::from_utf8(service.token_bytes(id)) {
            Ok(text) => text,
            Err(error) => {
                let byte = |byte: &u8| format!("\\x{byte:02x}");
                format!("bytes:{}", error.as_bytes().iter().map(byte).collect::<String>())
            }
        }
    }
}

/// A number that JSON has: minus infinity is not.
fn finite(logprob: f32) -> f64 {
    f64::from(logprob).max(-9999.0)
}

/// The `logprobs.content` of a chat.
pub fn chat(service: &dyn Service, tokens: &[TokenLogprob], spelling: Spelling, top: usize) -> Value {
    let one = |id: u32, logprob: f32| json!({"token": spelling.of(service, id), "logprob": finite(logprob), "bytes": service.token_bytes(id)});
    let all = tokens.iter().map(|token| {
        let mut value = one(token.id, token.logprob.unwrap_or(0.0));
        let likely = token.top.iter().take(top).map(|(id, logprob)| one(*id, *logprob));
        value["top_logprobs"] = likely.collect();
        value
    });
    json!({ "content": all.collect::<Value>() })
}

/// The `prompt_logprobs` of vLLM: of each token an object by id, of itself and of what is likely there; none of the first.
pub fn prompt(service: &dyn Service, tokens: &[TokenLogprob], top: usize) -> Value {
    let one = |id: u32, logprob: f32, rank: Option<u32>| {
        let text = String::from_utf8_lossy(&service.token_bytes(id)).into_owned();
        json!({"logprob": finite(logprob), "rank": rank.map(|rank| rank + 1), "decoded_token": text})
    };
    let of = |token: &TokenLogprob| {
        let Some(own) = token.logprob else { return Value::Null };
        let mut map = Map::new();
        map.insert(token.id.to_string(), one(token.id, own, token.rank));
        for (rank, (id, logprob)) in (0..).zip(token.top.iter().take(top)) {
            map.entry(id.to_string()).or_insert_with(|| one(*id, *logprob, Some(rank)));
        }
        map.into()
    };
    tokens.iter().map(of).collect()
}

/// The `logprobs` of a completion; `offset` is where the text of the first token begins, in characters, and is moved on.
pub fn legacy(
    service: &dyn Service,
    tokens: &[TokenLogprob],
    spelling: Spelling,
    top: usize,
    offset: &mut usize,
) -> Value {
    let mut texts = Vec::with_capacity(tokens.len());
    let mut offsets = Vec::with_capacity(tokens.len());
    let mut likely = Vec::with_capacity(tokens.len());
    for token in tokens {
        let text = spelling.of(service, token.id);
        offsets.push(*offset);
        *offset += String::from_utf8_lossy(&service.token_bytes(token.id)).chars().count();
        likely.push(match token.logprob {
            None => Value::Null,
            Some(_) if top == 0 => Value::Null,
            Some(own) => {
                // The chosen token is among them, if it is not among the likeliest too.
                let mut map = Map::new();
                for (id, logprob) in token.top.iter().take(top) {
                    map.entry(spelling.of(service, *id)).or_insert(json!(finite(*logprob)));
                }
                map.entry(text.clone()).or_insert(json!(finite(own)));
                map.into()
            }
        });
        texts.push(text);
    }
    let own: Vec<Option<f64>> = tokens.iter().map(|token| token.logprob.map(finite)).collect();
    json!({"tokens": texts, "token_logprobs": own, "top_logprobs": likely, "text_offset": offsets})
}
