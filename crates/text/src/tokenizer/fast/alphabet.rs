//! Alphabet of byte-level vocabularies: each byte is represented by one printable character.

/// Character that represents a byte: itself if it is printable Latin-1, otherwise the next free one from U+0100 on.
pub(super) fn char_of(byte: u8) -> char {
    if is_printable(byte) {
        return byte.into();
    }
    let before = (0..byte).filter(|&earlier| !is_printable(earlier)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Bytes represented by a token; `None` if one of its characters represents none.
pub(in crate::tokenizer) fn bytes_of(token: &str) -> Option<Vec<u8>> {
    token
        .chars()
        .map(|c| match u32::from(c) {
            number @ 0..=0xFF => Some(number as u8).filter(|&byte| is_printable(byte)),
            number @ 0x100..=0x143 => HIDDEN.get(number as usize - 0x100).copied(),
            _ => None,
        })
        .collect()
}

const fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// Bytes without a printable character of their own, in order.
static HIDDEN: [u8; 68] = {
    let mut hidden = [0; 68];
    let (mut byte, mut count) = (0, 0);
    while byte < 256 {
        if !is_printable(byte as u8) {
            hidden[count] = byte as u8;
            count += 1;
        }
        byte += 1;
    }
    hidden
};

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    #[test]
    fn every_byte_has_its_character() {
        let mut all: Vec<char> = (0..=255).map(char_of).collect();
        for (byte, c) in all.iter().enumerate() {
            assert_eq!(bytes_of(&c.to_string()), Some(vec![byte as u8]));
        }
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(b'a')), ('Ġ', 'Ċ', 'a'));
        assert_eq!(bytes_of("a中"), None);
        let mut theirs: Vec<char> = ByteLevel::alphabet().into_iter().collect();
        theirs.sort_unstable();
        all.sort_unstable();
        assert_eq!(all, theirs);
    }
}
