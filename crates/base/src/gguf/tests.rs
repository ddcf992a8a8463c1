//! Tests of intact and damaged GGUF files.

use super::*;

/// A file with these values and tensors, with all tensor bytes zero.
fn file(values: &[(String, Value)], tensors: &[Layout]) -> Vec<u8> {
    let mut out = header(values, tensors);
    for (_, kind, shape) in tensors {
        out.resize(out.len() + kind.bytes(shape.iter().product()).next_multiple_of(32), 0);
    }
    out
}

fn read(bytes: &[u8]) -> Result<Gguf> {
    Gguf::read(bytes, bytes.len() as u64)
}

fn sample() -> (Vec<(String, Value)>, Vec<Layout>) {
    let values = [
        ("general.architecture", Value::Text("llama".into())),
        ("a.count", Value::Unsigned(7)),
        ("a.large", Value::Unsigned(1 << 40)),
        ("a.negative", Value::Signed(-3)),
        ("a.float", Value::Float(0.5)),
        ("a.flag", Value::Bool(true)),
        ("a.texts", Value::Texts(vec!["x".into(), String::new(), "é".into()])),
        ("a.integers", Value::Integers(vec![3, -1])),
        ("a.floats", Value::Floats(vec![1.5, -2.0])),
    ];
    let tensors = vec![
        ("norm".to_string(), Kind::F32, vec![5]),
        ("one".to_string(), Kind::Q8_0, vec![3, 64]),
        ("two".to_string(), Kind::Q6K, vec![2, 256]),
    ];
    (values.map(|(key, value)| (key.to_string(), value)).to_vec(), tensors)
}

#[test]
fn what_is_written_is_read() {
    let (values, tensors) = sample();
    let bytes = file(&values, &tensors);
    let got = read(&bytes).unwrap();
    assert_eq!(got.values.into_iter().collect::<Vec<_>>().len(), values.len());
    let got = read(&bytes).unwrap();
    for (key, value) in &values {
        assert_eq!(got.values.get(key), Some(value), "{key}");
    }
    let [norm, one, two] = ["norm", "one", "two"].map(|name| got.tensors[name].clone());
    assert_eq!((norm.bytes, one.bytes, two.bytes), (20, 6 * 34, 2 * 210));
    assert_eq!((one.start - norm.start, two.start - one.start), (32, 224));
    assert_eq!((one.shape, got.count("a.count").unwrap()), (vec![3, 64], Some(7)));
}

#[test]
fn every_cut_is_an_error() {
    let (values, tensors) = sample();
    let bytes = file(&values, &tensors);
    // The padding after the last tensor is optional.
    for end in 0..bytes.len() - 32 {
        assert!(read(&bytes[..end]).is_err(), "{end} bytes");
    }
}

#[test]
fn changed_bytes_never_panic() {
    let (values, tensors) = sample();
    let bytes = file(&values, &tensors);
    for at in 0..bytes.len().min(600) {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] = value;
            let _ = read(&changed);
            for byte in &mut changed[at..(at + 8).min(bytes.len())] {
                *byte = value;
            }
            let _ = read(&changed);
        }
    }
}

/// Published kinds of malicious files.
#[test]
fn known_attacks_are_errors() {
    let why = |values: &[(String, Value)], change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = file(values, &[("one".to_string(), Kind::F32, vec![4, 2])]);
        change(&mut bytes);
        read(&bytes).unwrap_err().to_string()
    };
    for alignment in [0, 1, 3, 24, 1 << 33] {
        let values = [(ALIGNMENT.to_string(), Value::Unsigned(alignment))];
        assert!(why(&values, &|_| ()).contains("general.alignment"), "{alignment}");
    }
    // From byte 24 on: name length, name, number of dimensions, dimensions, type and offset.
    let set = |at: usize, number: u64| {
        move |bytes: &mut Vec<u8>| bytes[at..at + 8].copy_from_slice(&number.to_le_bytes())
    };
    for (at, number, part) in [
        (8, 1 << 60, "tensors"),
        (16, u64::MAX, "keys"),
        (24, u64::MAX, "text"),
        (39, 1 << 62, "sizes"),
        (39, 0, "sizes"),
        (59, 1 << 63, "over the tensor"),
        (59, 1 << 40, "cut off"),
        (59, 8, "multiple of 32"),
    ] {
        let got = why(&[], &set(at, number));
        assert!(got.contains(part) || (at == 59 && got.contains("cut off")), "byte {at}: {got}");
    }
    let wraps = why(&[], &|bytes| {
        set(39, 1 << 32)(bytes);
        set(47, 1 << 32)(bytes);
    });
    assert!(wraps.contains("key `one` has the sizes"), "{wraps}");
    let kind = |code: u32| move |bytes: &mut Vec<u8>| bytes[55..59].copy_from_slice(&code.to_le_bytes());
    assert!(why(&[], &kind(23)).contains("IQ4_XS, which is not supported"));
    assert!(why(&[], &kind(4000)).contains("unknown type 4000"));
    assert!(why(&[], &|bytes| bytes[4] = 1).contains("version 1"));
    assert!(why(&[], &|bytes| bytes[4..8].copy_from_slice(&[0, 0, 0, 3])).contains("big-endian"));
}
