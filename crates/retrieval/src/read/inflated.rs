//! A bound on what the compressed streams of a PDF become, held before its parser reads them: a few kilobytes of Flate
//! may be a gigabyte of zeros.

use std::io::Read;

use flate2::read::ZlibDecoder;

/// Most bytes of one stream, decompressed.
const MOST: u64 = 256 << 20;
/// Largest factor by which Flate compresses.
const FACTOR: u64 = 1032;
/// Bytes before a stream's data in which its dictionary is looked for.
const DICTIONARY: usize = 4096;

/// Checks all streams of a file.
///
/// # Errors
/// A stream that becomes more than the most.
pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    check_within(bytes, MOST)
}

fn check_within(bytes: &[u8], most: u64) -> Result<(), String> {
    const BEGIN: &[u8] = b"stream";
    const END: &[u8] = b"endstream";
    let mut at = 0;
    while let Some(found) = find(&bytes[at..], BEGIN) {
        let begin = at + found;
        at = begin + BEGIN.len();
        if bytes[..begin].ends_with(b"end") {
            continue;
        }
        let data = &bytes[at..];
        let data = data.strip_prefix(b"\r\n").or(data.strip_prefix(b"\n")).unwrap_or(data);
        let filters = filters(&bytes[begin.saturating_sub(DICTIONARY)..begin]);
        let stream = find(data, END).map_or(data, |end| &data[..end]);
        if filters > 0 && is_larger(stream, filters, most) {
            return Err(format!("a stream of the PDF becomes more than {} MiB", most >> 20));
        }
        // The data of a stream may itself contain the word.
        at = bytes.len() - data.len() + stream.len();
    }
    Ok(())
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|part| part == what)
}

/// Filters of Flate in the dictionary at the end of some bytes.
fn filters(before: &[u8]) -> usize {
    let start = before.windows(3).rposition(|part| part == b"obj").unwrap_or(0);
    let dictionary = &before[start..];
    let named = |name: &[u8]| {
        let found = dictionary.windows(name.len()).enumerate().filter(|(_, part)| *part == name);
        found
            .filter(|(at, _)| !dictionary.get(at + name.len()).is_some_and(u8::is_ascii_alphanumeric))
            .count()
    };
    named(b"/FlateDecode") + named(b"/Fl")
}

/// Returns whether a stream becomes more than the most. Damaged data end where they are damaged.
fn is_larger(stream: &[u8], filters: usize, most: u64) -> bool {
    if filters == 1 && (stream.len() as u64).saturating_mul(FACTOR) <= most {
        return false;
    }
    // Each filter's result is held in memory before the next one.
    (1..=filters.min(4)).any(|filters| {
        let mut reader: Box<dyn Read + '_> = Box::new(stream);
        for _ in 0..filters {
            reader = Box::new(ZlibDecoder::new(reader));
        }
        let (mut all, mut buffer) = (0, vec![0; 64 << 10]);
        while let Ok(count @ 1..) = reader.read(&mut buffer) {
            all += count as u64;
            if all > most {
                return true;
            }
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;

    use super::*;

    fn squeezed(bytes: &[u8], level: u32) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(level));
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn pdf(dictionary: &str, stream: &[u8]) -> Vec<u8> {
        let head = format!("%PDF-1.7\n1 0 obj\n<< {dictionary} /Length {} >>\nstream\n", stream.len());
        [head.as_bytes(), stream, b"\nendstream\nendobj\n"].concat()
    }

    #[test]
    fn a_stream_that_becomes_too_much_is_refused() {
        let zeros = squeezed(&vec![0; (4 << 20) + 9], 1);
        let check = |bytes: &[u8]| check_within(bytes, 4 << 20);
        assert!(check(&pdf("/Filter /FlateDecode", &zeros)).unwrap_err().contains("4 MiB"));
        assert!(check(&pdf("/Filter /FlateDecode", &zeros[..zeros.len() / 2])).is_ok());
        let twice = squeezed(&zeros, 6);
        assert!(check(&pdf("/Filter [/FlateDecode /Fl]", &twice)).is_err());
        assert!(check(&pdf("/Filter /DCTDecode", &zeros)).is_ok());
        assert!(check(&pdf("/Filter /FlateDecode", &squeezed(b"BT (Hello) Tj ET", 6))).is_ok());
        assert!(check(b"endstream stream").is_ok() && check(b"").is_ok());
    }
}
