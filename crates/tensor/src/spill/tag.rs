//! Names of values.

use std::fmt;

/// Identifies the value of a transfer in messages and recordings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tag {
    /// Name of the activation or parameter.
    pub name: &'static str,
    /// The segment's layer, or -1 outside one.
    pub layer: i32,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            -1 => f.write_str(self.name),
            layer => write!(f, "{} (layer {layer})", self.name),
        }
    }
}
