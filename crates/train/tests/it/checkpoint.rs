//! Checkpoints: written while steps go on, they hold what was there when they began.

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

#[test]
#[should_panic(expected = "end its share first")]
fn an_update_that_does_not_wait_for_the_save_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut one = trainer(1, DType::F32);
    let _saving = Checkpoints::new(folder.path(), 1).begin(&one, &Progress::default()).unwrap();
    one.step(&[micro(256)], &how(fathom_grad::Places::none(), 256)).unwrap();
}
