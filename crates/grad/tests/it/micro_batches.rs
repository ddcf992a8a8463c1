//! Accumulation over micro-batches of whole chunks of 128 tokens equals one big batch, bit for bit.

use fathom_cpu::isa::Isa;
use fathom_grad::Places;
use fathom_tensor::DType;

use crate::stack::{Setup, Variant, cpu, levels, whole};

const DOCS: [usize; 4] = [128; 4];

fn parts(tokens: usize) -> Vec<std::ops::Range<usize>> {
    (0..512).step_by(tokens).map(|start| start..start + tokens).collect()
}

#[test]
fn split_batches_have_the_gradients_of_the_whole() {
    for variant in Variant::ALL {
        for dtype in [DType::F32, DType::Bf16] {
            // The schedule is the same on every instruction set, and one arrangement calls every kernel.
            let every =
                levels().into_iter().filter(|isa| variant == Variant::Capped || *isa == Isa::detect());
            for isa in every {
                let setup = Setup { machine: cpu(1, isa), ..Setup::new(variant, dtype) };
                let expected = setup.run(&whole(&DOCS), &DOCS);
                let tiled = Setup { places: Places::linear().with_tiles(Some(256)), ..setup.clone() };
                for (setup, tokens) in [(&setup, 128), (&setup, 256), (&tiled, 128)] {
                    let found = setup.run(&parts(tokens), &DOCS);
                    let at = format!("{variant:?}, {dtype:?}, {isa:?}, {tokens} tokens");
                    assert!(found.loss == expected.loss, "{at}: loss");
                    for ((name, found), (_, expected)) in found.grads.iter().zip(&expected.grads) {
                        assert!(found == expected, "{at}: gradient of {name}");
                    }
                    let planned = setup.plan().run(&parts(tokens), &DOCS);
                    assert_eq!((found.usage, found.flops), (planned.usage, planned.flops), "{at}");
                }
            }
        }
    }
}
