//! Character references.

use super::text;

/// Appends `raw` with its character references decoded and white space unchanged.
pub(crate) fn decode_entities(out: &mut String, raw: &str) {
    text::append(out, raw, true);
}
