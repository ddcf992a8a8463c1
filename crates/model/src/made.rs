//! Families of given sizes, made from nothing, that differ from Llama in more than a switch.

use fathom_tensor::{Activation, NormKind};

use crate::family::Family;
use crate::spec::{Mlp, Spec};

impl Spec {
    /// A Llama's sizes as Nemotron 3 and 4 (arXiv 2402.16819): LayerNorm with biases that multiplies by one plus the weight,
    /// squared ReLU without a gate, half of each head rotates.
    pub fn into_nemotron(mut self) -> Spec {
        for rope in &mut self.ropes {
            rope.rot_dim = self.head_dim / 2;
        }
        let norm = NormKind { centred: true, plus_one: true, round_first: false, eps: 1e-5 };
        let mlp = Mlp { activation: Activation::Relu2, gated: false };
        Spec { family: Family::named("nemotron"), norm, norm_bias: true, mlp, ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::{Family, LlamaSizes, Spec};

    /// What is made is what a Hugging Face configuration of the family says.
    #[test]
    fn a_made_family_is_the_one_that_is_read() {
        let llama = Spec::llama(LlamaSizes {
            hidden: 32,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 8,
            ffn: 64,
            vocab: 96,
            rope_theta: 1e4,
            max_positions: 128,
            tied: false,
        });
        let spec = llama.into_nemotron();
        // Writing reads what was written, and refuses what differs.
        let config = Family::write(Path::new("config.json"), &spec).unwrap();
        assert_eq!(Family::read(Path::new("config.json"), &config).unwrap(), spec);
    }
}
