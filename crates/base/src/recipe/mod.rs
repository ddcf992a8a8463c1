//! Typed recipes: layers of TOML text in which every value keeps its source.
//!
//! A recipe type is declared once, with [`crate::recipe!`]; struct, defaults, key list and documentation all come
//! from that declaration. Loading applies these layers in order, later ones overriding earlier ones:
//!
//! 1. the defaults of the type,
//! 2. a named recipe (which may say `extends = "other"` at its top),
//! 3. files (which may also extend),
//! 4. settings `a.b=v` from the command line.
//!
//! The same dotted path works in a file, on the command line and in the documentation. An unknown key is an error
//! with a suggestion; a value of the wrong kind is an error with its place. A list replaces the whole list, and an
//! array of tables (`[[stage]]`) the whole array; `stage.0.tokens=2k` sets a key of one element. The text `none`
//! unsets an optional key. Whole numbers may be written `16k`.
//!
//! This module knows no keys of any particular recipe.

mod allowed;
mod form;
mod load;
#[macro_use]
mod macros;
mod raw;
mod resolved;
mod schema;
mod source;
mod suggest;
#[cfg(test)]
mod tests;
mod tree;
mod value;

pub use allowed::AllowedRange;
pub use form::{Form, Group};
pub use load::{Layers, Library, Loaded};
pub use resolved::{Difference, Row, diff};
pub use schema::{Field, Key, KeyDoc, Keys, Kind, Leaf, Shape, Table, TableSchema, keys};
pub use source::Source;

use crate::error::Result;

/// Returns a hint for a name that is not among `names`: `did you mean ..?`, or else `what: ` and the full list.
pub fn suggest_name(written: &str, names: &[&str], what: &str) -> String {
    suggest::name(written, names, what)
}

/// Returns the value of a top-level text key such as `about` without loading the recipe. Used for lists of recipes.
///
/// # Errors
/// [`crate::Error::Toml`] if the text is not TOML.
pub fn header(name: &str, text: &str, key: &str) -> Result<Option<String>> {
    let table = raw::Raw::parse(text, &source::Origin::Recipe { name: name.to_string() })?;
    Ok(table.into_iter().find(|(k, _)| k == key).and_then(|(_, raw)| raw.into_text()))
}

/// Entry point for fuzzing: reads arbitrary bytes as a recipe file, and their first line also as a command-line
/// setting. Checks that a recipe that loads resolves to text that loads to the same values.
pub fn fuzz_recipe(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (setting, rest) = text.split_once('\n').unwrap_or((text, ""));
    for layers in [Layers::new().text("fuzz", text), Layers::new().text("fuzz", rest).set(setting)] {
        let Ok(recipe) = Loaded::<fuzz::EveryKind>::load(layers) else { continue };
        match Loaded::<fuzz::EveryKind>::load(Layers::new().text("again", recipe.text())) {
            Ok(again) => {
                assert!(diff(recipe.rows(), again.rows()).is_empty(), "resolved text changed values")
            }
            Err(error) => panic!("resolved text does not load: {error}\n{}", recipe.text()),
        }
    }
}

mod fuzz {
    //! A recipe with every kind of key.

    choice! {
        /// A choice.
        pub enum Colour { Red = "red", Green = "green" }
    }
    recipe! {
        /// Every kind of key.
        pub struct EveryKind {
            /// Text.
            pub name: String = "x".into(),
            /// Switch.
            pub on: bool = true,
            /// Choice.
            pub colour: Colour = Colour::Red,
            /// Optional number.
            pub rate: Option<f64> = Some(0.5),
            /// Whole numbers.
            pub sizes: Vec<u64> = vec![1, 2],
            /// By name.
            pub weights: std::collections::BTreeMap<String, f64>,
            /// Table.
            pub inner: Inner,
            /// Optional table.
            pub maybe: Option<Inner>,
            /// Tables.
            pub stage: Vec<Inner> = vec![Inner::default()],
        }
        /// A table.
        pub struct Inner {
            /// Whole number.
            pub tokens: u32 = 2048,
            /// Text that may be missing.
            pub note: Option<String>,
        }
    }
}
