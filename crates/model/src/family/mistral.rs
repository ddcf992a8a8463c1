//! Mistral: Llama with one sliding window for all layers.

use super::common;
use super::common::{Dialect, KvHeads};
use crate::spec::Family;
use crate::weight::Names;

const DIALECT: Dialect = Dialect { kv_heads: KvHeads::Fixed(8), ..common::LLAMA };

pub(super) static FAMILY: Family = Family {
    model_type: "mistral",
    architecture: "MistralForCausalLM",
    read: |c, family| {
        let mut spec = common::read(c, family, &DIALECT)?;
        common::read_window(c, &mut spec, Some(4096))?;
        Ok(spec)
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        common::write_window(s, map);
    },
    names: Names::LLAMA,
};
