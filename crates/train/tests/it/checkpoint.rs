//! Checkpoints: written while steps continue, they contain the state at their start.

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

        // With the same tensors but other progress, only the progress is written.
        let later = Progress { stage: 1, ..progress };
        assert!(checkpoints.advance(&later).unwrap());
        assert!(!checkpoints.advance(&Progress { step: 5, ..later.clone() }).unwrap());
        assert_eq!(checkpoints.load_latest(&mut other).unwrap(), Some(later));
        assert!(bits(&other) == before);
    }
}

/// The error names the checkpoint before the damaged one, and how to continue from it.
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

/// Two checkpoints of a trainer in a folder.
fn two(folder: &std::path::Path) -> (Checkpoints, Trainer) {
    let (checkpoints, trainer) = (Checkpoints::new(folder, 2), trainer(1, DType::F32));
    for step in [3, 5] {
        let progress = Progress { step, ..Progress::default() };
        checkpoints.begin(&trainer, &progress).unwrap().finish(&trainer.device).unwrap();
    }
    (checkpoints, trainer)
}

/// Without `LATEST` the newest checkpoint is unknown, and the run does not start over them.
#[test]
fn a_missing_latest_is_refused_with_the_choice() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoints, mut trainer) = two(folder.path());
    let latest = folder.path().join("LATEST");
    std::fs::remove_file(&latest).unwrap();
    let error = checkpoints.load_latest(&mut trainer).unwrap_err().to_string();
    for text in
        ["LATEST: is missing", "step-00000003, step-00000005", "echo step-00000005 >", "begin at step 0"]
    {
        assert!(error.contains(text), "{text}: {error}");
    }
    assert!(folder.path().join("step-00000003/state.json").is_file());
    std::fs::write(&latest, "step-00000003").unwrap();
    assert_eq!(checkpoints.load_latest(&mut trainer).unwrap().unwrap().step, 3);
    for outside in ["../step-00000003", "/tmp", "step-00000003/../step-00000005", ""] {
        std::fs::write(&latest, outside).unwrap();
        let error = checkpoints.load_latest(&mut trainer).unwrap_err().to_string();
        assert!(error.contains("should name a checkpoint"), "{error}");
    }
    // The state after a kill between publishing the first checkpoint and naming it.
    std::fs::remove_file(&latest).unwrap();
    std::fs::remove_dir_all(folder.path().join("step-00000005")).unwrap();
    std::fs::write(folder.path().join(".LATEST.next"), "step-00000003").unwrap();
    assert_eq!(checkpoints.load_latest(&mut trainer).unwrap().unwrap().step, 3);
    // The state before it.
    std::fs::remove_dir_all(folder.path().join("step-00000003")).unwrap();
    assert_eq!(checkpoints.load_latest(&mut trainer).unwrap(), None);
}

/// All files of a checkpoint are protected by hashes.
#[test]
fn every_file_of_a_checkpoint_is_covered() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoints, mut trainer) = two(folder.path());
    let step = folder.path().join("step-00000005");
    let (state, model) = (step.join("state.json"), step.join("model/model.safetensors"));
    let [sound, weights] = [&state, &model].map(|path| std::fs::read(path).unwrap());
    let found = || checkpoints.found().unwrap().unwrap();
    assert!(found().weights().is_ok() && found().note().is_none());

    for (number, other) in
        [("\"optimizer_step\": 0", "\"optimizer_step\": 1"), ("\"stage\": 0", "\"stage\": 1")]
    {
        let text = String::from_utf8(sound.clone()).unwrap();
        assert!(text.contains(number), "{text}");
        std::fs::write(&state, text.replace(number, other)).unwrap();
        let error = checkpoints.load_latest(&mut trainer).unwrap_err().to_string();
        assert!(error.contains("state.json: was altered"), "{error}");
    }
    std::fs::write(&state, &sound).unwrap();

    let mut flipped = weights.clone();
    *flipped.last_mut().unwrap() ^= 1;
    std::fs::write(&model, flipped).unwrap();
    let error = found().weights().err().unwrap().to_string();
    assert!(error.contains("model/model.safetensors: was altered"), "{error}");
    std::fs::write(&model, weights).unwrap();

    let stray = step.join("model/model.safetensors.index.json");
    std::fs::write(&stray, "{}").unwrap();
    for error in [found().weights().err().unwrap(), checkpoints.load_latest(&mut trainer).unwrap_err()] {
        assert!(error.to_string().contains("is no file that state.json lists"), "{error}");
    }
    std::fs::remove_file(&stray).unwrap();
    assert!(checkpoints.load_latest(&mut trainer).unwrap().is_some());

    // A state file of another step.
    std::fs::copy(folder.path().join("step-00000003/state.json"), &state).unwrap();
    let error = checkpoints.found().err().unwrap().to_string();
    assert!(error.contains("is of step 3, in the folder of step 5"), "{error}");
}

/// Checkpoints of earlier versions, whose `state.json` ends without a hash.
#[test]
fn an_earlier_layout_is_read_and_noted() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoints, mut trainer) = two(folder.path());
    let state = folder.path().join("step-00000005/state.json");
    let text = std::fs::read_to_string(&state).unwrap();
    let (body, _) = text.rsplit_once(",\n  \"hash\"").unwrap();
    let old = format!("{body}\n}}").replace("\"version\": 3", "\"version\": 2");
    std::fs::write(&state, &old).unwrap();
    assert_eq!(checkpoints.load_latest(&mut trainer).unwrap().unwrap().step, 5);
    assert!(checkpoints.note().unwrap().contains("earlier version"));
    for (number, other) in [
        ("\"step\": 5", "\"step\": 18446744073709551615"),
        ("\"stage_step\": 0", "\"stage_step\": 6"),
        ("\"optimizer_step\": 0", "\"optimizer_step\": 6"),
        ("\"stage\": 0", "\"stage\": 18446744073709551615"),
    ] {
        std::fs::write(&state, old.replace(number, other)).unwrap();
        let error = checkpoints.load_latest(&mut trainer).unwrap_err().to_string();
        assert!(error.contains("state.json") && error.contains(number.split('"').nth(1).unwrap()), "{error}");
    }
    // A run that continues from it writes the current layout.
    std::fs::write(&state, &old).unwrap();
    checkpoints.advance(&Progress { step: 5, tokens: 9, ..Progress::default() }).unwrap();
    assert!(checkpoints.note().is_none());
}

/// Weights may be secret: other users of the machine cannot read a checkpoint.
#[test]
fn a_checkpoint_is_its_owners() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (checkpoints, _) = two(folder.path());
    checkpoints.advance(&Progress { step: 5, tokens: 9, ..Progress::default() }).unwrap();
    let mode = |name: &str| folder.path().join(name).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("step-00000005"), 0o700);
    for file in ["state.json", "model/model.safetensors", "moment1/model.safetensors"] {
        assert_eq!(mode(&format!("step-00000005/{file}")), 0o600, "{file}");
    }
}

/// Moments stored as codes are saved as the values that they represent, and resume exactly.
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

/// A run without masters resumes exactly.
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
    let progress = Progress { step: 3, ..Progress::default() };
    checkpoints.begin(&one, &progress).unwrap().finish(&one.device).unwrap();
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
