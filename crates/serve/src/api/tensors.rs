//! KServe's binary data extension: tensors as bytes, concatenated after the JSON of a request or response, whose length
//! is in a header. Numbers are little-endian; an element of BYTES is preceded by its length, in four bytes.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Response};
use serde_json::{Value, json};

use super::{json_answer, typed};
use crate::fault::Fault;

/// The header with the length of the JSON part.
pub const JSON_BYTES: HeaderName = HeaderName::from_static("inference-header-content-length");

/// The JSON of a body, and the tensors after it.
///
/// # Errors
/// The body is shorter than its header says.
pub fn split(body: &[u8], json_bytes: Option<usize>) -> Result<(&[u8], &[u8]), Fault> {
    let whole = json_bytes.unwrap_or(body.len());
    body.split_at_checked(whole).ok_or_else(|| {
        Fault::bad(format!("`{JSON_BYTES}` says {whole} bytes, and the body has {}", body.len()))
    })
}

/// The single element of a request's tensor, which may be the first of those after the JSON. In JSON its data may be
/// nested.
///
/// # Errors
/// Another number of elements, or a wrong type.
pub fn element(input: &Value, behind: &mut &[u8]) -> Result<Value, Fault> {
    let name = input["name"].as_str().unwrap_or_default();
    let elements = input.get("shape").map(|shape| elements(name, shape)).transpose()?;
    if let Some(count) = elements.filter(|count| *count != 1) {
        return Err(wrong(&format!(
            "has to hold tensors of one element, and the shape of `{name}` is of {count}"
        )));
    }
    let Some(size) = input["parameters"].get("binary_data_size") else {
        let mut data = Vec::new();
        flat(input["data"].as_array().ok_or_else(|| wrong(&format!("has no data of `{name}`")))?, &mut data);
        let [only] = data[..] else {
            return Err(wrong(&format!(
                "has to hold tensors of one element, and the data of `{name}` are {}",
                data.len()
            )));
        };
        return Ok(only.clone());
    };
    let size = size.as_u64().and_then(|size| usize::try_from(size).ok());
    let Some((bytes, rest)) = size.and_then(|size| behind.split_at_checked(size)) else {
        return Err(wrong("has a `binary_data_size` beyond the end of the body"));
    };
    *behind = rest;
    decode(input["datatype"].as_str().unwrap_or_default(), bytes)
}

/// The elements of nested lists, in order.
fn flat<'a>(data: &'a [Value], out: &mut Vec<&'a Value>) {
    for value in data {
        match value {
            Value::Array(inner) => flat(inner, out),
            value => out.push(value),
        }
    }
}

fn elements(name: &str, shape: &Value) -> Result<u64, Fault> {
    let extents = shape.as_array().map(|all| all.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>());
    let wrong = || wrong(&format!("has a shape of `{name}` that is no list of extents: {shape}"));
    Ok(extents.flatten().ok_or_else(wrong)?.into_iter().fold(1, u64::saturating_mul))
}

/// An element of a type from its bytes.
fn decode(datatype: &str, bytes: &[u8]) -> Result<Value, Fault> {
    macro_rules! number {
        ($type:ty) => {
            bytes.try_into().ok().map(|bytes| Value::from(<$type>::from_le_bytes(bytes)))
        };
    }
    let element = match datatype {
        "BYTES" => text(bytes).map(Value::from),
        "BOOL" => <[u8; 1]>::try_from(bytes).ok().map(|[byte]| Value::from(byte != 0)),
        "INT8" => number!(i8),
        "INT16" => number!(i16),
        "INT32" => number!(i32),
        "INT64" => number!(i64),
        "UINT8" => number!(u8),
        "UINT16" => number!(u16),
        "UINT32" => number!(u32),
        "UINT64" => number!(u64),
        "FP32" => number!(f32),
        "FP64" => number!(f64),
        other => {
            return Err(wrong(&format!(
                "has binary data of type `{other}`, which this server does not read"
            )));
        }
    };
    element.ok_or_else(|| {
        let what = if datatype == "BYTES" { "text in UTF-8 behind its length" } else { "number" };
        wrong(&format!("has {} bytes of type {datatype} that are not one {what}", bytes.len()))
    })
}

/// The single text of a tensor of BYTES.
fn text(bytes: &[u8]) -> Option<&str> {
    let (length, text) = bytes.split_first_chunk::<4>()?;
    let whole = u32::from_le_bytes(*length) as usize == text.len();
    std::str::from_utf8(text).ok().filter(|_| whole)
}

/// True if a request wants the texts of its answer as binary data.
///
/// # Errors
/// An unknown output.
pub fn wants_binary(outputs: &[Value], whole: bool) -> Result<bool, Fault> {
    let Some(other) = outputs.iter().find(|output| output["name"] != "text_output") else {
        let own = outputs.iter().find_map(|output| output["parameters"]["binary_data"].as_bool());
        return Ok(own.unwrap_or(whole));
    };
    Err(Fault::field("outputs", format_args!("has {}, and there is `text_output` alone", other["name"])))
}

/// A response with the texts as the tensor `text_output`, in JSON or after it.
pub fn answer(mut body: Value, texts: &[String], binary: bool) -> Response<Body> {
    let mut output = json!({"name": "text_output", "datatype": "BYTES", "shape": [texts.len()]});
    if !binary {
        output["data"] = json!(texts);
        body["outputs"] = json!([output]);
        return json_answer(&body);
    }
    let mut behind = Vec::new();
    for text in texts {
        behind.extend((text.len() as u32).to_le_bytes());
        behind.extend(text.as_bytes());
    }
    output["parameters"] = json!({"binary_data_size": behind.len()});
    body["outputs"] = json!([output]);
    let mut whole = body.to_string().into_bytes();
    let json_bytes = HeaderValue::from(whole.len());
    whole.append(&mut behind);
    let mut response = typed("application/octet-stream", whole);
    response.headers_mut().insert(JSON_BYTES, json_bytes);
    response
}

fn wrong(message: &str) -> Fault {
    Fault::field("inputs", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_what_their_types_say() {
        let mut behind = &b"\x02\0\0\0hi\x07\0\0\0\0\0\x80\x3f\x01"[..];
        let all = [("BYTES", 6), ("INT32", 4), ("FP32", 4), ("BOOL", 1)].map(|(datatype, size)| {
            element(&json!({"datatype": datatype, "parameters": {"binary_data_size": size}}), &mut behind)
                .unwrap()
        });
        assert_eq!(json!(all), json!(["hi", 7, 1.0, true]));
        assert!(behind.is_empty());
        for (datatype, bytes) in [
            ("BYTES", &b"\x03\0\0\0hi"[..]),
            ("BYTES", b"\x02\0\0\0hihi"),
            ("BYTES", b"\x01\0\0\0\xff"),
            ("BYTES", b"\x01"),
            ("INT64", b"1234"),
            ("FP16", b"12"),
        ] {
            let mut behind = bytes;
            let input = json!({"datatype": datatype, "parameters": {"binary_data_size": bytes.len()}});
            assert!(element(&input, &mut behind).is_err(), "{datatype} {bytes:?}");
        }
        let given = |shape: Value, data: Value| json!({"name": "a", "datatype": "BYTES", "shape": shape, "data": data});
        for (shape, data) in
            [(json!([1]), json!(["a"])), (json!([1, 1]), json!([["a"]])), (json!([1, 1]), json!(["a"]))]
        {
            assert_eq!(element(&given(shape, data), &mut &b""[..]).unwrap(), "a");
        }
        for (shape, data, says) in [
            (json!([3]), json!(["a"]), "the shape of `a` is of 3"),
            (json!([0]), json!([]), "the shape of `a` is of 0"),
            (json!([-1]), json!(["a"]), "[-1]"),
            (json!(1), json!(["a"]), "no list of extents"),
            (json!([1]), json!([["a", "b"]]), "the data of `a` are 2"),
            (json!([1]), json!("a"), "no data of `a`"),
        ] {
            let message = element(&given(shape, data), &mut &b""[..]).unwrap_err().message;
            assert!(message.contains(says), "{message}");
        }
        let beyond = json!({"datatype": "BYTES", "parameters": {"binary_data_size": u64::MAX}});
        assert!(element(&beyond, &mut &b"1"[..]).is_err());
        assert!(split(b"{}", Some(3)).is_err());
        assert_eq!(split(b"{}12", Some(2)).unwrap(), (&b"{}"[..], &b"12"[..]));
    }
}
