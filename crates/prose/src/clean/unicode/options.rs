//! Which repairs run.

use serde::{Deserialize, Serialize};

/// When HTML entities are replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unescape {
    /// From the first line with a `<` on the text is HTML and keeps its entities.
    #[default]
    Auto,
    /// Everywhere.
    Always,
    /// Nowhere.
    Never,
}

/// A normal form of Unicode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Normalization {
    /// Composed.
    #[serde(rename = "NFC")]
    Nfc,
    /// Decomposed.
    #[serde(rename = "NFD")]
    Nfd,
    /// Composed, with compatibility characters replaced.
    #[serde(rename = "NFKC")]
    Nfkc,
    /// Decomposed, with compatibility characters replaced.
    #[serde(rename = "NFKD")]
    Nfkd,
}

/// The options of ftfy; the defaults are those of NeMo Curator's reformatter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UnicodeOptions {
    /// When HTML entities are replaced.
    pub unescape_html: Unescape,
    /// Remove escape sequences of terminals.
    pub remove_terminal_escapes: bool,
    /// Find mojibake and read it in the encoding that was meant.
    pub fix_encoding: bool,
    /// Let a space be the byte A0 where that makes mojibake readable.
    pub restore_byte_a0: bool,
    /// Make U+FFFD of mojibake that lost a byte.
    pub replace_lossy_sequences: bool,
    /// Repair mojibake that stands among other text.
    pub decode_inconsistent_utf8: bool,
    /// Read C1 controls as Windows-1252.
    pub fix_c1_controls: bool,
    /// Take Latin ligatures apart.
    pub fix_latin_ligatures: bool,
    /// Replace wide Latin and narrow Katakana by their usual widths.
    pub fix_character_width: bool,
    /// Make curly quotes straight.
    pub uncurl_quotes: bool,
    /// Make all line breaks `\n`.
    pub fix_line_breaks: bool,
    /// Accepted for recipes of Curator; text here is UTF-8, which has no surrogates.
    pub fix_surrogates: bool,
    /// Remove controls without effect.
    pub remove_control_chars: bool,
    /// The normal form of the result; none leaves it.
    pub normalization: Option<Normalization>,
    /// Longer lines are repaired in pieces of this many characters.
    pub max_decode_length: usize,
}

impl Default for UnicodeOptions {
    fn default() -> Self {
        UnicodeOptions {
            unescape_html: Unescape::Auto,
            remove_terminal_escapes: true,
            fix_encoding: true,
            restore_byte_a0: true,
            replace_lossy_sequences: true,
            decode_inconsistent_utf8: true,
            fix_c1_controls: true,
            fix_latin_ligatures: false,
            fix_character_width: false,
            uncurl_quotes: false,
            fix_line_breaks: false,
            fix_surrogates: true,
            remove_control_chars: true,
            normalization: None,
            max_decode_length: 1_000_000,
        }
    }
}

impl UnicodeOptions {
    /// ftfy's own defaults: all repairs, and NFC.
    pub fn ftfy() -> UnicodeOptions {
        UnicodeOptions {
            fix_latin_ligatures: true,
            fix_character_width: true,
            uncurl_quotes: true,
            fix_line_breaks: true,
            normalization: Some(Normalization::Nfc),
            ..UnicodeOptions::default()
        }
    }
}
