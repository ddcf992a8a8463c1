//! Steps of encoders: the head runs for chosen tokens alone, steps of many micro-batches compare all vectors, and plans
//! are equal to runs.

use std::path::Path;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{CpComm, Places};
use fathom_model::{Caps, EncoderHead, Model, Spec, load, open_any};
use fathom_tensor::mesh::{Axis, CountingLink, Grid, Mesh};
use fathom_tensor::{DType, Device, Machine, Meta};
use fathom_text::pack::{Facts, IGNORE};
use fathom_train::encoder::{Contrast, LabelLoss, LabelObjective, MaskedObjective, Pooling};
use fathom_train::parallel::Sharding;
use fathom_train::{CrossEntropy, InStep, MicroBatch, Objective, Trainer};

use crate::mesh::{ADAMW, Case, ONE, every_rank, in_step};

fn trainer(name: &str, head: EncoderHead, device: &Device) -> Trainer {
    trainer_of((name, head), device, &ONE)
}

fn trainer_of((name, head): (&str, EncoderHead), device: &Device, case: &Case) -> Trainer {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/masked").join(name);
    let opened = open_any(&folder).unwrap();
    let spec: Spec = opened.spec.with_encoder_head(head);
    let portion = in_step(case).ranks.portion(&spec, &device.mesh);
    let (model, mut params) = Model::declare_part(device, &spec, DType::F32, None, portion);
    let source = fathom_model::WithRandomTensor::head(&opened.source, &spec, 3);
    load(device, &model, &mut params, &source).unwrap();
    Trainer::sharded(device, model, params, case.sharding, ADAMW)
}

fn devices() -> [Device; 2] {
    let cpu = Cpu::new(1, None);
    let meta = Meta::new(cpu.profile().clone());
    [Device::new(Arc::new(cpu), 1 << 28), Device::new(Arc::new(meta), 1 << 28)]
}

fn how(objective: impl Objective + 'static) -> InStep {
    let mut how = InStep::plain(Places::linear().with_tiles(Some(128)), Caps { docs: 16, seq_tokens: 40 });
    how.goal.objective = Arc::new(objective);
    how
}

/// Documents of these lengths; every fifth token is a label.
fn micro(lengths: &[usize], values: usize) -> MicroBatch {
    let mut micro =
        MicroBatch { facts: Facts { width: values, values: Vec::new() }, ..MicroBatch::default() };
    for (doc, length) in lengths.iter().enumerate() {
        let start = micro.ids.len();
        for at in 0..*length {
            micro.ids.push(3 + ((start + at) * 7 % 60) as i32);
            micro.labels.push(if at % 5 == 1 { 3 + (at % 9) as i32 } else { IGNORE });
            micro.positions.push(at as i32);
        }
        micro.docs.push(start..start + length);
        micro.facts.values.extend((0..values).map(|at| ((doc + at) % 2) as f32));
    }
    micro
}

fn gradients(trainer: &Trainer) -> Vec<Vec<f32>> {
    let all =
        trainer.params.iter().map(|(id, _)| trainer.grads().get(id).map(|grad| trainer.device.to_f32(grad)));
    all.flatten().collect()
}

#[track_caller]
fn near(found: &[Vec<f32>], wanted: &[Vec<f32>]) {
    let most = wanted.iter().flatten().fold(0f32, |most, x| most.max(x.abs()));
    assert!(most > 0.0 && found.len() == wanted.len());
    for (found, wanted) in found.iter().flatten().zip(wanted.iter().flatten()) {
        assert!((found - wanted).abs() <= 2e-6 * most, "{found} {wanted} of {most}");
    }
}

#[test]
fn a_head_over_chosen_tokens_has_the_gradients_of_one_over_all() {
    for name in ["bert", "modernbert"] {
        let [device, _] = devices();
        let micro = [micro(&[40, 33, 7, 40, 40, 40], 0)];
        let mut of_all = trainer(name, EncoderHead::Masked, &device);
        of_all.accumulate(&micro, &how(CrossEntropy));
        let mut of_chosen = trainer(name, EncoderHead::Masked, &device);
        of_chosen.accumulate(&micro, &how(MaskedObjective { share: 0.2 }));
        assert!((of_all.loss_sum() / of_chosen.loss_sum() - 1.0).abs() < 1e-6, "{name}");
        near(&gradients(&of_chosen), &gradients(&of_all));
    }
}

#[test]
fn a_step_of_many_micro_batches_has_the_gradients_of_one() {
    let contrast = Contrast { group: 2, pooling: Pooling::Mean, temperature: 0.1, widths: vec![32, 8] };
    let [device, _] = devices();
    let mut one = trainer("bert", EncoderHead::None, &device);
    one.accumulate(&[micro(&[9, 12, 30, 8, 17, 17, 5, 21], 1)], &how(contrast.clone()));
    let mut many = trainer("bert", EncoderHead::None, &device);
    let whole = micro(&[9, 12, 30, 8, 17, 17, 5, 21], 1);
    let part = |docs: std::ops::Range<usize>| {
        let (from, to) = (whole.docs[docs.start].start, whole.docs[docs.end - 1].end);
        MicroBatch {
            ids: whole.ids[from..to].to_vec(),
            labels: whole.labels[from..to].to_vec(),
            positions: whole.positions[from..to].to_vec(),
            docs: whole.docs[docs.clone()].iter().map(|doc| doc.start - from..doc.end - from).collect(),
            facts: Facts { width: 1, values: whole.facts.values[docs].to_vec() },
            ..MicroBatch::default()
        }
    };
    many.accumulate(&[part(0..2), part(2..6), part(6..8)], &how(contrast));
    assert!((one.loss_sum() / many.loss_sum() - 1.0).abs() < 1e-6);
    near(&gradients(&many), &gradients(&one));
}

/// Loss, norm of the gradient, and peak of a step of one micro-batch over ranks.
fn stepped(
    (name, head): (&str, EncoderHead),
    goal: &(dyn Fn() -> Arc<dyn Objective> + Sync),
    case: Case,
) -> Vec<[f64; 3]> {
    let grid = case.grid;
    let step = |device: &Device| {
        let mut trainer = trainer_of((name, head), device, &case);
        let mut how = InStep { caps: Caps { docs: 16, seq_tokens: 40 }, z_loss: 0.0, ..in_step(&case) };
        how.goal.objective = goal();
        // Data parallel ranks share the micro batches.
        let all = [micro(&[36, 30, 20, 6], 2), micro(&[30, 30, 30, 2], 2)];
        let [first, step] = [device.mesh.index(Axis::Dp), device.mesh.size(Axis::Dp)];
        let own: Vec<MicroBatch> = all.into_iter().skip(first).step_by(step).collect();
        let result = trainer.step(&own, &how).unwrap();
        let [loss, norm] = [result.loss, result.norm].map(|of| f64::from(of.wait_f32()));
        [loss, norm, device.pool.usage().peak_reserved as f64]
    };
    let found = every_rank(case, &step);
    for (rank, found) in found.iter().enumerate() {
        let machine = Meta::new(Cpu::new(1, None).profile().clone());
        let mesh = Mesh::new(grid, Box::new(CountingLink::new(rank, grid.ranks())));
        assert_eq!(step(&Device::on_mesh(Arc::new(machine), 1 << 28, mesh))[2], found[2], "{head:?} {rank}");
    }
    found
}

#[test]
fn a_context_shares_texts_with_labels_and_vectors() {
    let masked = || -> Arc<dyn Objective> { Arc::new(MaskedObjective { share: 0.2 }) };
    let vectors = || -> Arc<dyn Objective> {
        Arc::new(Contrast { group: 2, pooling: Pooling::Mean, temperature: 0.1, widths: vec![] })
    };
    let labels = |loss| {
        move || -> Arc<dyn Objective> { Arc::new(LabelObjective { name: "classify", loss, group: 1 }) }
    };
    let texts = labels(LabelLoss::OneOf);
    for (head, goal) in [
        (EncoderHead::Masked, &masked as &(dyn Fn() -> Arc<dyn Objective> + Sync)),
        (EncoderHead::None, &vectors),
        (EncoderHead::Text(2), &texts),
    ] {
        let grids = [2, 4].map(|cp| Grid { cp, ..Grid::default() });
        agree(("modernbert", head), goal, &grids);
    }
}

/// Steps over ranks have the losses and norms of one rank's.
fn agree(of: (&str, EncoderHead), goal: &(dyn Fn() -> Arc<dyn Objective> + Sync), grids: &[Grid]) {
    let case = Case { cp_comm: CpComm::AllGather, ..ONE };
    let [one] = stepped(of, goal, case)[..] else { panic!("one rank") };
    for grid in grids {
        let sharding = if grid.dp > 1 { Sharding::OptimGradsParams } else { case.sharding };
        for rank in stepped(of, goal, Case { grid: *grid, sharding, ..case }) {
            let close = (0..2).all(|at| (rank[at] / one[at] - 1.0).abs() < 1e-5);
            assert!(close, "{of:?} {grid}: {rank:?} {one:?}");
        }
    }
}

/// A mesh of each kind.
const GRIDS: [Grid; 5] = [
    Grid { tp: 2, ..ONE.grid },
    Grid { tp: 2, sequence_parallel: true, ..ONE.grid },
    Grid { cp: 2, ..ONE.grid },
    Grid { pp: 2, ..ONE.grid },
    Grid { dp: 2, ..ONE.grid },
];

#[test]
fn ranks_share_embeddings_of_another_width() {
    let masked = || -> Arc<dyn Objective> { Arc::new(MaskedObjective { share: 0.2 }) };
    let texts = || -> Arc<dyn Objective> {
        Arc::new(LabelObjective { name: "classify", loss: LabelLoss::OneOf, group: 1 })
    };
    for name in ["electra_narrow", "electra_wide_untied"] {
        agree((name, EncoderHead::Masked), &masked, &GRIDS);
        agree((name, EncoderHead::Text(2)), &texts, &GRIDS[..2]);
    }
}

#[test]
fn ranks_share_the_mean_of_a_text() {
    let texts = || -> Arc<dyn Objective> {
        Arc::new(LabelObjective { name: "classify", loss: LabelLoss::OneOf, group: 1 })
    };
    agree(("../encoders/modernbert_mean", EncoderHead::Text(3)), &texts, &GRIDS);
}

#[test]
fn the_plan_of_a_step_is_its_peak() {
    let contrast = || Contrast { group: 2, pooling: Pooling::First, temperature: 0.1, widths: vec![] };
    let labelled = || LabelObjective { name: "classify", loss: LabelLoss::OneOf, group: 1 };
    for (case, head) in [EncoderHead::Masked, EncoderHead::None, EncoderHead::Text(2)].into_iter().enumerate()
    {
        let peaks = devices().map(|device| {
            let mut trainer = trainer("roberta", head, &device);
            let how = match case {
                0 => how(MaskedObjective { share: 0.2 }),
                1 => how(contrast()),
                _ => how(labelled()),
            };
            let micro = [micro(&[36, 30, 20, 6], 2), micro(&[30, 30, 30, 2], 2)];
            for _ in 0..2 {
                trainer.step(&micro, &how).unwrap();
            }
            device.pool.usage().peak_reserved
        });
        assert_eq!(peaks[0], peaks[1], "{head:?}");
    }
}
