//! Checkpoints: written while steps go on, they hold what was there when they began.

use fathom_grad::Moments;
use fathom_tensor::DType;
use fathom_train::{Checkpoints, Progress, Trainer};

use crate::step::{how, micro, trainer};

/// Bits of the weights, then of moments and masters.
pub fn bits(trainer: &Trainer) -> Vec<Vec<u8>> {
    let of = |id, weight| {
        let state = trainer.optimizer().state(id).unwrap();
        [Some(weight), Some(&state.m), state.v.as_ref(), state.master.as_ref()].into_iter().flatten()
    };
    let values = trainer.params.iter().flat_map(|(id, param)| of(id, &param.value));
    values.map(|value| value.bytes(&trainer.device)).collect()
}

#[test]
fn a_checkpoint_is_of_the_moment_it_began() {
    let how = how(fathom_grad::Places::none(), 256);
    for dtype in [DType::F32, DType::Bf16] {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path(), 2);
        let mut one = trainer(2, dtype);
        one.step(&[micro(256)], &how).unwrap();
        one.step(&[micro(256)], &how).unwrap();
        let before = bits(&one);
        let progress = Progress { step: 2, tokens: 512, ..Progress::default() };
        let mut saving = checkpoints.begin(&one, &progress).unwrap();
        for _ in 0..3 {
            one.step_with(&[micro(256)], &how, |_, _| {
                saving.release();
                Ok(())
            })
            .unwrap();
        }
        assert!(saving.finish(&one.device).unwrap().bytes > 0);
        assert_ne!(bits(&one), before);

        let mut other = trainer(1, dtype);
        assert_eq!(checkpoints.load_latest(&mut other).unwrap(), Some(progress.clone()));
        assert!(bits(&other) == before, "{dtype:?}");
        assert_eq!(other.optimizer().updates(&other.device), 2);
        for _ in 0..3 {
            other.step(&[micro(256)], &how).unwrap();
        }
        assert!(bits(&other) == bits(&one), "{dtype:?}: the same three steps");

        // The same tensors under another progress: nothing is written again but where the run is.
        let later = Progress { stage: 1, ..progress };
        assert!(checkpoints.advance(&later).unwrap());
        assert!(!checkpoints.advance(&Progress { step: 5, ..later.clone() }).unwrap());
        assert_eq!(checkpoints.load_latest(&mut other).unwrap(), Some(later));
        assert!(bits(&other) == before);
    }
}

/// A refusal names the checkpoint before the damaged one, and how to go on from there.
#[test]
fn a_damaged_checkpoint_names_the_one_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path(), 2);
    let mut one = trainer(1, DType::F32);
    let steps = [3, 5].map(|step| Progress { step, ..Progress::default() });
    for progress in &steps {
        checkpoints.begin(&one, progress).unwrap().finish(&one.device).unwrap();
    }
    for (damage, file) in [("moment1/model.safetensors", "moment1"), ("state.json", "state.json")] {
        let file_of_it = folder.path().join("step-00000005").join(damage);
        std::fs::write(&file_of_it, "{").unwrap();
        std::fs::write(folder.path().join("LATEST"), "step-00000005").unwrap();
        let error = checkpoints.load_latest(&mut one).unwrap_err().to_string();
        for text in [file, "LATEST", "go on from step-00000003"] {
            assert!(error.contains(text), "{text}: {error}");
        }
        std::fs::write(folder.path().join("LATEST"), "step-00000003\n").unwrap();
        assert_eq!(checkpoints.load_latest(&mut one).unwrap().as_ref(), Some(&steps[0]));
    }
}

/// Moments that are codes are stored as what they stand for, and go on as if they had never been.
#[test]
fn codes_of_moments_resume() {
    let how = how(fathom_grad::Places::none(), 256);
    let moments = Moments { dtype: DType::F8E4M3, ..Moments::default() };
    for dtype in [DType::F32, DType::Bf16] {
        let (one_folder, other_folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let trainer = || crate::step::trainer_with(2, dtype, moments);
        let (mut one, mut other) = (trainer(), trainer());
        let step = |trainer: &mut Trainer| trainer.step(&[micro(256)], &how).unwrap().loss.wait_f32();
        let save = |trainer: &Trainer, folder: &std::path::Path, step| {
            let progress = Progress { step, ..Progress::default() };
            let mut saving = Checkpoints::new(folder, 9).begin(trainer, &progress).unwrap();
            saving.finish(&trainer.device).unwrap();
        };
        for _ in 0..4 {
            step(&mut one);
        }
        save(&one, one_folder.path(), 4);
        Checkpoints::new(one_folder.path(), 9).load_latest(&mut other).unwrap();
        save(&other, other_folder.path(), 4);
        let same = || {
            let diff =
                fathom_train::compare_checkpoints(one_folder.path(), other_folder.path()).unwrap().unwrap();
            assert!(diff.differing == 0 && diff.tensors > 0, "{dtype:?}: {diff:?}");
        };
        same();
        for _ in 0..4 {
            assert_eq!(step(&mut one).to_bits(), step(&mut other).to_bits());
        }
        save(&one, one_folder.path(), 8);
        save(&other, other_folder.path(), 8);
        same();
    }
}

/// A run without masters goes on as if it had never been interrupted.
#[test]
fn weights_without_masters_resume() {
    let how = how(fathom_grad::Places::none(), 256);
    let moments = Moments { masters: false, ..Moments::default() };
    let trainer = || crate::step::trainer_with(2, DType::Bf16, moments);
    let steps = |trainer: &mut Trainer| {
        for _ in 0..3 {
            trainer.step(&[micro(256)], &how).unwrap();
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path(), 1);
    let (mut one, mut other) = (trainer(), trainer());
    steps(&mut one);
    checkpoints.begin(&one, &Progress::default()).unwrap().finish(&one.device).unwrap();
    checkpoints.load_latest(&mut other).unwrap();
    let some = other.params.iter().filter(|(id, _)| other.optimizer().state(*id).unwrap().master.is_some());
    assert_eq!(some.count(), 0);
    assert!(bits(&other) == bits(&one));
    let before = bits(&one);
    [&mut one, &mut other].into_iter().for_each(steps);
    assert!(bits(&one) != before && bits(&other) == bits(&one));
}

#[test]
#[should_panic(expected = "end its share first")]
fn an_update_that_does_not_wait_for_the_save_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut one = trainer(1, DType::F32);
    let _saving = Checkpoints::new(folder.path(), 1).begin(&one, &Progress::default()).unwrap();
    one.step(&[micro(256)], &how(fathom_grad::Places::none(), 256)).unwrap();
}
