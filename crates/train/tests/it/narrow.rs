//! Steps with low-precision GEMMs: the same bits everywhere, planned memory, meshes, and refusals.

use fathom_grad::{GemmFormat, Places};
use fathom_model::{Linears, LlamaSizes, NarrowLayers, Spec};
use fathom_tensor::mesh::Grid;
use fathom_tensor::{DType, Element};
use fathom_train::recipe::{GemmName, Memory, Recipe, Stage};
use fathom_train::{Checkpoints, InStep, Progress, Trainer, plan, stage};

use crate::mesh::{self, Case, ONE};
use crate::step::{how, micro, spec, trainer};

fn layers(format: GemmFormat) -> NarrowLayers {
    NarrowLayers { format, linears: Linears::All, at_start: 0, at_end: 1, history: 4 }
}

#[test]
fn every_place_tile_and_thread_gives_the_same_bits_and_the_plan_is_exact() {
    let mut losses = Vec::new();
    for format in GemmFormat::ALL {
        let mut bits: Option<Vec<u32>> = None;
        let tiles = (!format.depends_on_tiles()).then_some(128);
        for (places, threads) in [
            (Places::none(), 1),
            (Places::full(), 2),
            (Places::linear().with_tiles(tiles), 3),
            (Places::none().with_tiles(tiles.map(|rows| 2 * rows)), 2),
        ] {
            let how = InStep { narrow: Some(layers(format)), ..how(places, 512) };
            let mut trainer = trainer(threads, DType::Bf16);
            trainer.narrow(how.narrow.as_ref()).unwrap();
            let data = [micro(512)];
            let seen: Vec<f32> = (0..4)
                .map(|_| {
                    let result = trainer.step(&data, &how).unwrap();
                    result.loss.wait_f32() / result.count.wait_f32()
                })
                .collect();
            assert!(seen[3] < seen[0] - 0.1, "{format:?}: {seen:?}");
            let now: Vec<u32> = seen.iter().map(|loss| loss.to_bits()).collect();
            assert_eq!(
                bits.get_or_insert(now.clone()),
                &now,
                "{format:?}: placement or threads changed bits"
            );
            let planned = plan(trainer.device.machine.profile(), &spec(), DType::Bf16, &how, 1, 512).unwrap();
            let measured = trainer.device.pool.usage();
            assert_eq!(planned.usage.peak_live, measured.peak_live, "{format:?}");
            assert_eq!(planned.usage.peak_reserved, measured.peak_reserved, "{format:?}");
        }
        losses.push(bits.unwrap());
    }
    losses.sort();
    losses.dedup();
    assert_eq!(losses.len(), GemmFormat::ALL.len(), "two formats have the same losses");
}

/// Each of two ranks has whole blocks of 32 everywhere.
fn wide(tied: bool) -> Spec {
    Spec::llama(LlamaSizes { tied, ..SIZES })
}

const SIZES: LlamaSizes = LlamaSizes { layers: 3, head_dim: 32, ffn: 128, ..LlamaSizes::TINY };

#[test]
fn meshes_have_the_losses_of_one_rank() {
    let grid = |tp, cp, dp, sequence_parallel| Grid { tp, cp, dp, sequence_parallel, ..ONE.grid };
    for format in [GemmFormat::Micro(Element::E4M3), GemmFormat::Fp8Delayed, GemmFormat::Fp8Current] {
        let narrow = Some(NarrowLayers { at_end: 0, ..layers(format) });
        let case = Case { narrow, spec: wide, ..ONE };
        let one = mesh::losses(case);
        for grid in [grid(2, 1, 1, true), grid(2, 1, 1, false), grid(1, 2, 1, true), grid(1, 1, 2, true)] {
            let ranks = mesh::losses(Case { grid, ..case });
            let error = |(one, ranks): (&f32, &f32)| (one / ranks - 1.0).abs();
            let errors: Vec<f32> = one.iter().zip(&ranks).map(error).collect();
            // Later steps amplify differences in rounding.
            let fine = errors[0] < 1e-4 && errors[..6].iter().all(|error| *error < 1e-3);
            assert!(fine, "{format:?} on {grid}: {errors:?}");
        }
    }
}

#[track_caller]
fn refused(change: impl Fn(&mut Recipe), words: &[&str]) {
    let mut recipe = Recipe { stage: vec![Stage::default()], ..Recipe::default() };
    change(&mut recipe);
    let error = stage::narrow(&recipe, 0).unwrap_err().to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

#[test]
fn what_does_not_go_together_is_refused_by_name() {
    refused(
        |recipe| {
            recipe.precision.gemm = GemmName::Fp8Current;
            recipe.activations.tile_rows = Some(128);
        },
        &["precision.gemm", "fp8_current", "tile_rows", "fp8_delayed"],
    );
    refused(
        |recipe| {
            recipe.precision.gemm = GemmName::Fp8Current;
            recipe.activations.memory = Memory::Auto;
        },
        &["precision.gemm", "auto"],
    );
    refused(
        |recipe| {
            recipe.precision.gemm = GemmName::Fp8Delayed;
            recipe.mesh.pp = 2;
        },
        &["precision.gemm", "mesh.pp"],
    );
    refused(
        |recipe| {
            recipe.precision.gemm = GemmName::Fp8Delayed;
            recipe.precision.amax_history = 0;
        },
        &["precision.amax_history", "at least 1"],
    );
    // Each of two ranks has 32 rows of keys: a whole block of 32, but not of 128.
    let case = Case { grid: Grid { tp: 2, ..ONE.grid }, spec: wide, ..ONE };
    for (format, fits) in [(GemmFormat::Micro(Element::E4M3), true), (GemmFormat::Fp8Block, false)] {
        let answers = mesh::every_rank(case, &|device| {
            let mut trainer: Trainer = mesh::trainer(device, &case);
            trainer.narrow(Some(&layers(format))).map_err(|error| error.to_string())
        });
        for answer in answers {
            assert_eq!(answer.is_ok(), fits, "{format:?}: {answer:?}");
            if let Err(error) = answer {
                let words = ["mesh.tp=2", "blocks of 128", "precision.gemm"];
                assert!(words.iter().all(|word| error.contains(word)), "{error}");
            }
        }
    }
}

#[test]
fn experts_are_refused_and_attention_next_to_them_is_not() {
    let device = fathom_tensor::Device::new(std::sync::Arc::new(fathom_cpu::Cpu::new(1, None)), 1 << 30);
    let mut spec = spec();
    spec.moe = Some(fathom_model::Moe::new(4, 2, 64));
    let (model, mut params) = fathom_model::Model::declare(&device, &spec, DType::Bf16);
    let all = layers(GemmFormat::Fp8Block);
    let error = model.narrow(&device, &mut params, Some(&all)).unwrap_err();
    assert!(error.contains("experts") && error.contains("precision.linears"), "{error}");
    let attention = NarrowLayers { linears: Linears::Attention, ..all };
    model.narrow(&device, &mut params, Some(&attention)).unwrap();
}

#[test]
fn delayed_scaling_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path(), 1);
    let how = InStep { narrow: Some(layers(GemmFormat::Fp8Delayed)), ..how(Places::none(), 512) };
    let begin = || {
        let mut trainer = trainer(1, DType::Bf16);
        trainer.narrow(how.narrow.as_ref()).unwrap();
        trainer
    };
    let steps = |trainer: &mut Trainer| -> Vec<u32> {
        let loss = |_| trainer.step(&[micro(512)], &how).unwrap().loss.wait_f32().to_bits();
        (0..3).map(loss).collect()
    };
    let mut whole = begin();
    steps(&mut whole);
    let progress = Progress { step: 3, ..Progress::default() };
    checkpoints.begin(&whole, &progress).unwrap().finish(&whole.device).unwrap();
    let expected = steps(&mut whole);
    let mut again = begin();
    assert_eq!(checkpoints.load_latest(&mut again).unwrap(), Some(progress));
    assert_eq!(again.amax().unwrap().row, 3);
    assert_eq!(steps(&mut again), expected);
}
