//! Log-probabilities of tokens, in OpenAI's two formats.

use fathom_base::{Service, TokenLogprob};
use serde_json::{Map, Value, json};

/// Spelling of tokens in a response.
#[derive(Clone, Copy, Debug)]
pub struct Spelling {
    /// Spell tokens as `token_id:5`.
    pub as_ids: bool,
}

impl Spelling {
    /// A token as text; bytes that are not characters have OpenAI's spelling.
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

/// A logarithm that JSON can represent: minus infinity becomes -9999.
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

/// The `prompt_logprobs` of vLLM: for each token an object by id, with itself and the most likely ones; null for the
/// first.
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

/// Offset of tokens in a text, in characters. All tokens of one character have its offset.
#[derive(Clone, Debug, Default)]
pub struct Offset {
    /// Number of preceding characters.
    chars: usize,
    /// Bytes of an incomplete character.
    part: Vec<u8>,
}

impl Offset {
    /// The offset of the next token, which has these bytes.
    fn next(&mut self, bytes: &[u8]) -> usize {
        let at = self.chars;
        self.part.extend(bytes);
        let mut open = 0;
        for chunk in self.part.utf8_chunks() {
            self.chars += chunk.valid().chars().count();
            let last = chunk.invalid().as_ptr_range().end == self.part.as_ptr_range().end;
            match std::str::from_utf8(chunk.invalid()) {
                // An incomplete character at the end.
                Err(error) if last && error.error_len().is_none() => open = chunk.invalid().len(),
                Err(_) => self.chars += 1,
                Ok(_) => {}
            }
        }
        self.part.drain(..self.part.len() - open);
        at
    }
}

/// The `logprobs` of a completion; `offset` is the position of the first token, and is advanced.
pub fn legacy(
    service: &dyn Service,
    tokens: &[TokenLogprob],
    spelling: Spelling,
    top: usize,
    offset: &mut Offset,
) -> Value {
    let mut texts = Vec::with_capacity(tokens.len());
    let mut offsets = Vec::with_capacity(tokens.len());
    let mut likely = Vec::with_capacity(tokens.len());
    for token in tokens {
        let text = spelling.of(service, token.id);
        offsets.push(offset.next(&service.token_bytes(token.id)));
        likely.push(match token.logprob {
            None => Value::Null,
            Some(_) if top == 0 => Value::Null,
            Some(own) => {
                // The chosen token is added if it is not among the most likely ones.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_one_character_begin_where_it_does() {
        let mut offset = Offset::default();
        let tokens: [&[u8]; 8] = [b"a", b"\xc3", b"\xbc", b"n", b"\xf0\x9f", b"\x98", b"\x80 d", b"o"];
        assert_eq!(tokens.map(|token| offset.next(token)), [0, 1, 1, 2, 3, 3, 3, 6]);
        // Each invalid byte sequence counts as one replacement character.
        let broken: [&[u8]; 4] = [b"\xff", b"\xc3", b"a", b"b"];
        assert_eq!(broken.map(|token| offset.next(token)), [7, 8, 8, 10]);
    }
}
