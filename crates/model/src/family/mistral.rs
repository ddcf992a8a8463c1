//! Mistral: Llama with one sliding window for all layers.

use super::common::{Dialect, KvHeads};
use super::{Family, common, names};

const DIALECT: Dialect = Dialect { model_type: "mistral", kv_heads: KvHeads::Fixed(8), ..common::LLAMA };

pub(super) static FAMILY: Family = Family {
    model_type: "mistral",
    architecture: "MistralForCausalLM",
    read: |c| {
        let mut spec = common::read(c, &DIALECT)?;
        common::read_window(c, &mut spec, Some(4096))?;
        Ok(spec)
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        common::write_window(s, map);
    },
    names: names::LLAMA,
};
