//! Writes the header of a GGUF file.

use super::{DEFAULT_ALIGNMENT, Kind, Value};

/// Tensor to be written: name, type and dimensions, slowest first.
pub type Layout = (String, Kind, Vec<usize>);

/// Bytes of a version 3 header, padded up to the data section. Tensors follow in this order, each padded to the
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

/// Writes a value with its type; integers use 32 bits if they fit, as in ggml's own writers.
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
