//! The header of a GGUF file that is written.

use super::{DEFAULT_ALIGNMENT, Kind, Value};

/// A tensor that is written: its name, type and sizes, slowest first.
pub type Layout = (String, Kind, Vec<usize>);

/// The bytes of a header, version 3, filled up to where the data begins. Tensors follow each other in this order, each filled up to the
/// alignment of 32 bytes.
pub fn header(values: &[(String, Value)], tensors: &[Layout]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((values.len() as u64).to_le_bytes());
    for (key, value) in values {
        text(&mut out, key);
        put(&mut out, value);
    }
    let mut at = 0u64;
    for (name, kind, shape) in tensors {
        text(&mut out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|size| out.extend((*size as u64).to_le_bytes()));
        out.extend(kind.code().to_le_bytes());
        out.extend(at.to_le_bytes());
        at += (kind.bytes(shape.iter().product()) as u64).next_multiple_of(DEFAULT_ALIGNMENT);
    }
    out.resize(out.len().next_multiple_of(DEFAULT_ALIGNMENT as usize), 0);
    out
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A value with its type; numbers have 32 bits where they fit, as ggml's own writers have them.
fn put(out: &mut Vec<u8>, value: &Value) {
    let mut kind = |kind: u32| out.extend(kind.to_le_bytes());
    let list = |out: &mut Vec<u8>, kind: u32, len: usize| {
        out.extend(9u32.to_le_bytes());
        out.extend(kind.to_le_bytes());
        out.extend((len as u64).to_le_bytes());
    };
    match value {
        Value::Unsigned(number) => match u32::try_from(*number) {
            Ok(number) => {
                kind(4);
                out.extend(number.to_le_bytes());
            }
            Err(_) => {
                kind(10);
                out.extend(number.to_le_bytes());
            }
        },
        Value::Signed(number) => {
            kind(11);
            out.extend(number.to_le_bytes());
        }
        Value::Float(number) => {
            kind(6);
            out.extend((*number as f32).to_le_bytes());
        }
        Value::Bool(flag) => {
            kind(7);
            out.push(u8::from(*flag));
        }
        Value::Text(content) => {
            kind(8);
            text(out, content);
        }
        Value::Texts(texts) => {
            list(out, 8, texts.len());
            texts.iter().for_each(|content| text(out, content));
        }
        Value::Integers(numbers) => {
            list(out, 5, numbers.len());
            numbers.iter().for_each(|number| out.extend((*number as i32).to_le_bytes()));
        }
        Value::Floats(numbers) => {
            list(out, 6, numbers.len());
            numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
        }
    }
}
