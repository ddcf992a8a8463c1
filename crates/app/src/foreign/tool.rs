//! Supported tools.

use std::fmt;

/// A tool whose files can be translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// axolotl.
    Axolotl,
    /// LLaMA-Factory.
    LlamaFactory,
    /// torchtune.
    Torchtune,
    /// TRL, and tools that share the keys of Transformers' trainer.
    Trl,
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tool::Axolotl => "axolotl",
            Tool::LlamaFactory => "LLaMA-Factory",
            Tool::Torchtune => "torchtune",
            Tool::Trl => "TRL",
        })
    }
}
