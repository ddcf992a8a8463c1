//! Comparison of the lazy search with an exhaustive one.

use fathom_base::recipe::{Layers, Loaded};
use fathom_model::{LlamaSizes, Spec};
use fathom_tensor::gpu;

use super::super::mesh_grids::meshes;
use super::super::mesh_states::states;
use super::*;
use crate::plan::Budgets;
use crate::recipe::Recipe;

const GIB: u64 = 1 << 30;

/// An eight-layer model, by ranks, tokens, micro-batches, GiB of memory, and the number of best meshes.
#[test]
fn what_is_left_for_later_would_not_be_among_the_best() {
    let mut spared = 0;
    let cases = [(16, 8192, 32, 12, 6), (32, 65_536, 32, 20, 6), (8, 32_768, 16, 48, 1)];
    for (gpus, tokens, micro_batches, gib, most) in cases {
        let spec = Spec::llama(LlamaSizes {
            hidden: 4096,
            layers: 8,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            ffn: 14_336,
            vocab: 32_000,
            rope_theta: 5e5,
            max_positions: 1 << 17,
            tied: false,
        });
        let text = format!("[[stage]]\nseq_tokens = {tokens}\nmicro_batches = {micro_batches}\n");
        let recipe: Recipe = Loaded::load(Layers::new().text("case", &text)).unwrap().value;
        let budgets = Budgets { memory: gib * GIB, host: 0, disk: 0 };
        let profile = gpu::named("dgx-h100").unwrap();
        let draft = Draft { profile: &profile, spec: &spec, recipe, index: 0, budgets, rank: 0 };
        let work = draft.alone().unwrap();
        let meshes = meshes(&work, gpus);
        let state = states(&draft.recipe, &work, &budgets).remove(0);
        let open = || -> Vec<Open> {
            meshes.iter().enumerate().map(|(at, ranks)| draft.open(at, *ranks, &state)).collect()
        };
        let found = draft.try_open(open(), most);
        let mut all = open();
        for open in &mut all {
            draft.look_at(open);
            while !open.pending.is_empty() {
                open.ask_everything();
                draft.look_at(open);
            }
        }
        let expected = draft.try_open(all, most);
        let figures = |one: &Candidate| (one.step_s.to_bits(), one.peak_bytes, one.settings.clone());
        let [of, from] = [&found, &expected].map(|tried| tried.best.iter().map(figures).collect::<Vec<_>>());
        assert!(!of.is_empty() && of == from, "{gpus} ranks, {most}: {of:?} {from:?}");
        assert_eq!(found.too_large, expected.too_large, "{gpus} ranks, {most}");
        assert!(found.planned <= expected.planned, "{} {}", found.planned, expected.planned);
        spared += expected.planned - found.planned;
    }
    assert!(spared > 20, "{spared}");
}
