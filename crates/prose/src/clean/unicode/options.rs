//! Options of Unicode repair.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When HTML entities are replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unescape {
    /// Entities are decoded up to the first line with a `<`; from there on the text is HTML and keeps them.
    #[default]
    Auto,
    /// Everywhere.
    Always,
    /// Nowhere.
    Never,
}

/// A normal form of Unicode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UnicodeOptions {
    /// Where HTML entities (`&amp;`) become their characters.
    pub unescape_html: Unescape,
    /// Removes escape sequences of terminals, such as colours.
    pub remove_terminal_escapes: bool,
    /// Finds mojibake, text that was decoded in a wrong charset, and reads it in the one that was meant.
    pub fix_encoding: bool,
    /// Lets a space be the byte A0 where that makes mojibake readable.
    pub restore_byte_a0: bool,
    /// Makes U+FFFD of mojibake that lost a byte.
    pub replace_lossy_sequences: bool,
    /// Repairs mojibake that stands among other text too.
    pub decode_inconsistent_utf8: bool,
    /// Reads the control characters U+0080 to U+009F as Windows-1252.
    pub fix_c1_controls: bool,
    /// Takes Latin ligatures apart: `ﬁ` becomes `fi`.
    pub fix_latin_ligatures: bool,
    /// Replaces wide Latin and narrow Katakana by their usual widths.
    pub fix_character_width: bool,
    /// Makes curly quotes straight.
    pub uncurl_quotes: bool,
    /// Makes a newline of every kind of line break.
    pub fix_line_breaks: bool,
    /// Has no effect: text here is UTF-8, which has no surrogates. It is accepted for recipes of NeMo Curator.
    pub fix_surrogates: bool,
    /// Removes control characters without effect on what is shown.
    pub remove_control_chars: bool,
    /// The normal form of Unicode that the text gets; none leaves it as it is.
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
