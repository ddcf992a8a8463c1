//! Comparison of the solver with an exhaustive search over tables.

use std::borrow::Cow;

use fathom_model::{Caps, LlamaSizes, Spec};
use fathom_tensor::{DType, Profile, Rates};

use super::*;
use crate::in_step::InStep;

fn spec(layers: usize) -> Spec {
    Spec::llama(LlamaSizes {
        hidden: 256,
        layers,
        head_dim: 64,
        ffn: 704,
        vocab: 512,
        max_positions: 4096,
        ..LlamaSizes::TINY
    })
}

/// A processor with a disk that hides some transfers but not all.
fn profile() -> Profile {
    let rates = Rates {
        matmul_bf16_flops_per_s: 9e11,
        matmul_f32_flops_per_s: 4e11,
        attention_forward_flops_per_s: 8e11,
        attention_backward_flops_per_s: 8e11,
        memory_bytes_per_s: 4e10,
        elementwise_bytes_per_s: 2e10,
        call_s: 1e-6,
        disk_write_bytes_per_s: 5e8,
        disk_read_bytes_per_s: 1e9,
        ..Rates::default()
    };
    Profile { rates: Some(rates), ..Profile::portable(2) }
}

fn work<'a>(profile: &'a Profile, spec: &'a Spec, tokens: usize) -> Workload<'a> {
    let caps = Caps { docs: 1, seq_tokens: tokens };
    let how = InStep::plain(Places::none(), caps);
    Workload { profile, spec: Cow::Borrowed(spec), dtype: DType::Bf16, how, micro_batches: 1, tokens }
}

/// All tables whose norms and middle residual share a place.
fn tables(choices: &Choices) -> Vec<Table> {
    let mut all = vec![choices.plain()];
    for group in [vec![0], vec![2], vec![3], vec![6], vec![7], vec![1, 4, 5]] {
        let longer = all.iter().flat_map(|table| {
            choices.places_of(group[0]).map(|place| {
                let mut table = table.clone();
                group.iter().for_each(|unit| table.places[*unit] = place);
                table
            })
        });
        all = longer.collect();
    }
    let heights = choices.neighbours(&choices.plain()).into_iter().map(|table| table.tile).max().unwrap_or(0);
    all.iter().flat_map(|table| (0..=heights).map(|tile| Table { tile, ..table.clone() })).collect()
}

#[test]
fn within_two_per_cent_of_every_table() {
    let (profile, spec) = (profile(), spec(3));
    let work = work(&profile, &spec, 2048);
    let roomy = Budgets { memory: u64::MAX, host: 0, disk: u64::MAX };
    let choices = work.choices(&roomy);
    let all: Vec<Figures> = tables(&choices)
        .iter()
        .map(|table| figures(&work.with_places(&choices.places(table, 0..usize::MAX, table)).plan().unwrap()))
        .collect();
    let [least, most] = [f64::min, f64::max]
        .map(|pick: fn(f64, f64) -> f64| all.iter().map(|figures| figures.memory).reduce(pick).unwrap());
    for share in [0.0, 0.1, 0.25, 0.5, 0.8, 1.0] {
        let budgets = Budgets { memory: (least + share * (most - least)) as u64, host: 0, disk: u64::MAX };
        let fits = |figures: &&Figures| figures.memory <= budgets.memory as f64;
        let best = all.iter().filter(fits).map(|figures| figures.cost).reduce(f64::min).unwrap();
        let solution = work.solve(&budgets).unwrap().unwrap();
        assert!(budgets.hold(&solution.plan), "{share}");
        let found = solution.plan.step_s().unwrap();
        println!("{share}: found {found}, best of {} {best}, {} planned", all.len(), solution.planned);
        assert!(found <= best * 1.02, "{share}: {found} s, and {best} s is possible");
    }
}

#[test]
fn a_deep_model_is_divided_and_a_budget_without_disk_is_kept() {
    let (profile, spec) = (profile(), spec(16));
    let work = work(&profile, &spec, 2048);
    let plain = work.plan().unwrap();
    let memory = plain.usage.peak_reserved * 3 / 5;
    for disk in [0, 8 << 20, u64::MAX] {
        let budgets = Budgets { memory, host: 0, disk };
        let solution = work.solve(&budgets).unwrap().unwrap();
        assert!(budgets.hold(&solution.plan), "{disk}");
        assert!(disk > 0 || solution.plan.disk_bytes == 0);
        assert_eq!(solution.rows.len(), UNITS.len());
        // Its own table gives the plan that it reports.
        assert_eq!(work.with_places(&solution.places).plan().unwrap().usage, solution.plan.usage);
    }
    assert!(work.solve(&Budgets { memory: 1 << 20, host: 0, disk: u64::MAX }).unwrap().is_none());
}
