//! Keys of distillation from a teacher.

use super::{Row, on};
use crate::foreign::values::{flag, float, text};

/// Rules for distillation.
pub(in crate::foreign) const RULES: &[Row] = &[
    (&["teacher_model_name_or_path", "teacher_checkpointer.checkpoint_dir"], |draft, v| {
        text(v).map(|v| draft.set("objective.teacher", v))
    }),
    (&["teacher_model_revision"], |_, _| Err("a teacher is a folder (objective.teacher)".into())),
    (&["temperature"], |draft, v| float(v).map(|v| draft.set("objective.temperature", v))),
    // Interpolates from the forward divergence at 0 to the reverse one at 1.
    (&["beta"], |draft, v| {
        let beta = float(v)?;
        let loss = match beta {
            0.0 => "fwd_kl",
            1.0 => "bwd_kl",
            _ => "jsd",
        };
        draft.set("objective.loss", loss);
        if loss == "jsd" {
            draft.set("objective.jsd_beta", beta);
        }
        Ok(())
    }),
    (&["kd_ratio"], |draft, v| float(v).map(|v| draft.set("objective.kd_ratio", v))),
    (&["kd_loss._component_"], |draft, v| {
        let name = text(v)?.rsplit('.').next().unwrap_or_default();
        let loss = match name {
            forward if forward.starts_with("ForwardKL") => "fwd_kl",
            reverse if reverse.starts_with("ReverseKL") => "bwd_kl",
            other => return Err(format!("`{other}` is none of fwd_kl, bwd_kl and jsd (objective.loss)")),
        };
        draft.set("objective.loss", loss);
        Ok(())
    }),
    (&["kd_loss.num_output_chunks"], |_, _| Ok(())),
    (&["lmbda"], |_, v| match float(v)? {
        0.0 => Ok(()),
        share => Err(format!(
            "a share of {share} of the answers is the student's own there; here all are the rows' own"
        )),
    }),
    (&["seq_kd"], |_, v| {
        if flag(v)? {
            Err("answers are the rows' own; `fathom generate` writes the teacher's".into())
        } else {
            Ok(())
        }
    }),
    (&["max_new_tokens", "max_completion_length"], |_, _| Err("answers are the rows' own".into())),
    (&["loss_type"], |_, _| Ok(())),
    (&["sample_packing", "packing", "dataset.packed"], |draft, v| flag(v).map(|on| draft.packed = on)),
    (&["completion_only_loss"], |draft, v| {
        flag(v).map(|on| {
            if !on {
                draft.set("data.supervise", "all")
            }
        })
    }),
    (&["assistant_only_loss"], |_, v| flag(v).map(drop)),
    (&["train_on_inputs", "dataset.train_on_input"], |draft, v| on(v, || draft.set("data.supervise", "all"))),
    (
        &["teacher_model._component_", "teacher_checkpointer._component_", "teacher_checkpointer.model_type"],
        |_, _| Ok(()),
    ),
    (&["teacher_checkpointer.checkpoint_files", "teacher_checkpointer.output_dir"], |_, _| Ok(())),
    (
        &[
            "teacher_checkpointer.checkpoint_files.filename_format",
            "teacher_checkpointer.checkpoint_files.max_filename",
        ],
        |_, _| Ok(()),
    ),
];
