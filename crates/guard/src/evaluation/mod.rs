//! Measurements of rails: interaction sets with expected verdicts, thresholds from labelled texts, and probes of a model.
//! Results are plain data, and every rate has its count and its interval.

mod audit;
mod calibrate;
mod guards;
mod interactions;
mod probes;
mod statistics;

pub use audit::{AuditReport, KindRates, ProbeAnswer, ProbeOutcome, ProbeRecord, audit, audit_model};
pub use calibrate::{Calibration, CurvePoint, LabelledScore, calibrate};
pub use guards::{audit_guard, evaluate_guard, rail_scores};
pub use interactions::{
    EvaluationReport, Expectation, Interaction, Judgement, Miss, RailDecision, RailRates, evaluate,
    read_interactions,
};
pub use probes::{Probe, ProbeKind, probes, read_probes};
pub use statistics::{Latency, Rate};
