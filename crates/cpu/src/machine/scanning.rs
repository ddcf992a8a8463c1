//! Conversion of the tensors of convolutions, gated norms and scans to operands of their kernels.
#![allow(unsafe_code)]

use fathom_tensor::{
    Conv, ConvBackward, ConvOperands, DType, Delta, DeltaAdvance, DeltaBackward, DeltaBegins, DeltaEnds,
    DeltaOperands, DocumentRun, DocumentRuns, GatedNorm, GatedNormBackward, GatedNormOperands, RunStates,
    Ssd, SsdBackward, SsdBegins, SsdEnds, SsdOperands, Tensor,
};

use super::cpu::Cpu;
use super::operands::{self, expect, f32s, f32s_mut, mat, mat_mut};
use crate::mat::MatMut;
use crate::{elementwise, scan};

/// The documents of an operand's rows.
///
/// # Panics
/// If they are not those of the rows, or states are for another number of them.
#[track_caller]
fn runs<'a>(op: &str, documents: &'a DocumentRuns, x: &Tensor, states: &[Tensor]) -> &'a [DocumentRun] {
    let end = documents.runs.last().map_or(0, |run| run.rows.end);
    assert!(end == x.rows(), "{op}: documents of {end} rows, x {x:?}");
    let fit = states.is_empty() || states.len() == documents.runs.len();
    assert!(fit, "{op}: {} states of {} documents", states.len(), documents.runs.len());
    &documents.runs
}

#[track_caller]
fn conv_operands<'a>(of: &ConvOperands<'a>, states: &[Tensor]) -> elementwise::ConvOperands<'a> {
    let [cols, taps] = of.weight.shape();
    expect("conv", "u", of.u, [of.u.rows(), cols]);
    of.bias.iter().for_each(|bias| expect("conv", "bias", bias, [1, cols]));
    states.iter().for_each(|state| expect("conv", "a state", state, [taps - 1, cols]));
    elementwise::ConvOperands {
        runs: runs("conv", of.documents, of.u, states),
        cols,
        taps,
        u: mat(of.u),
        weight: mat(of.weight),
        bias: of.bias.map(mat),
        silu: of.silu,
    }
}

/// See [`fathom_tensor::Machine::conv`].
#[track_caller]
pub fn conv(cpu: &Cpu, op: &Conv<'_>) {
    expect("conv", "out", op.out, op.of.u.shape());
    let states: Vec<MatMut> = op.states.iter().map(mat_mut).collect();
    let of = conv_operands(&op.of, op.states);
    let call = elementwise::Conv { of, states: &states, out: mat_mut(op.out) };
    // SAFETY: see the module of the machine.
    unsafe { elementwise::conv(cpu.place(), &call) }
}

/// See [`fathom_tensor::Machine::conv_backward`].
#[track_caller]
pub fn conv_backward(cpu: &Cpu, op: &ConvBackward<'_>) {
    expect("conv_backward", "dy", op.dy, op.of.u.shape());
    op.du.iter().for_each(|du| expect("conv_backward", "du", du, op.of.u.shape()));
    op.dweight.iter().for_each(|dw| expect("conv_backward", "dweight", dw, op.of.weight.shape()));
    op.dbias.iter().for_each(|db| expect("conv_backward", "dbias", db, [1, op.of.u.cols()]));
    let call = elementwise::ConvBackward {
        of: conv_operands(&op.of, &[]),
        dy: mat(op.dy),
        du: op.du.map(mat_mut),
        dweight: op.dweight.map(mat_mut),
        dbias: op.dbias.map(mat_mut),
    };
    // SAFETY: see the module of the machine.
    unsafe { elementwise::conv_backward(cpu.place(), &call) }
}

#[track_caller]
fn norm_operands(of: &GatedNormOperands<'_>) -> elementwise::GatedNormOperands {
    expect("gated_norm", "z", of.z, of.y.shape());
    of.weight.iter().for_each(|weight| expect("gated_norm", "weight", weight, [1, weight.cols()]));
    elementwise::GatedNormOperands {
        rows: of.y.rows(),
        cols: of.y.cols(),
        width: of.width,
        y: mat(of.y),
        z: mat(of.z),
        weight: of.weight.map(|weight| (mat(weight), weight.cols())),
        gate_first: of.gate_first,
        eps: of.eps,
    }
}

/// See [`fathom_tensor::Machine::gated_norm`].
#[track_caller]
pub fn gated_norm(cpu: &Cpu, op: &GatedNorm<'_>) {
    expect("gated_norm", "out", op.out, op.of.y.shape());
    // SAFETY: see the module of the machine.
    unsafe { elementwise::gated_norm(cpu.place(), &norm_operands(&op.of), mat_mut(op.out)) }
}

/// See [`fathom_tensor::Machine::gated_norm_backward`].
#[track_caller]
pub fn gated_norm_backward(cpu: &Cpu, op: &GatedNormBackward<'_>, ws: &Tensor) {
    let shape = op.of.y.shape();
    for (what, tensor) in [("dout", Some(op.dout)), ("dy", op.dy), ("dz", op.dz)] {
        tensor.iter().for_each(|tensor| expect("gated_norm_backward", what, tensor, shape));
    }
    if let (Some(dweight), Some(weight)) = (op.dweight, op.of.weight) {
        expect("gated_norm_backward", "dweight", dweight, weight.shape());
    }
    let call = elementwise::GatedNormBackward {
        of: norm_operands(&op.of),
        dout: mat(op.dout),
        dy: op.dy.map(mat_mut),
        dz: op.dz.map(mat_mut),
        dweight: op.dweight.map(mat_mut),
    };
    // SAFETY: see the module of the machine; the scratch has the bytes given by the profile.
    unsafe { elementwise::gated_norm_backward(cpu.place(), &call, operands::scratch(ws)) }
}

#[track_caller]
fn ssd_operands<'a>(of: &SsdOperands<'a>, states: &[Tensor]) -> scan::Operands<'a> {
    let (heads, state) = (of.heads(), of.state);
    let sizes =
        scan::Sizes { heads, width: of.width(), groups: of.groups, state, task_heads: scan::TASK_HEADS };
    let cols = heads * sizes.width + 2 * of.groups * state;
    assert!(
        heads.is_multiple_of(of.groups) && of.u.cols() == cols && of.dt.rows() == of.u.rows(),
        "ssd: u {:?}, dt {:?}, {} groups of {state}",
        of.u,
        of.dt,
        of.groups
    );
    for (what, weight) in [("a_log", of.a_log), ("dt_bias", of.dt_bias), ("d", of.d)] {
        expect("ssd", what, weight, [1, heads]);
    }
    states.iter().for_each(|kept| expect("ssd", "a state", kept, [heads, state * sizes.width]));
    scan::Operands {
        sizes,
        u: mat(of.u),
        steps: scan::Steps {
            raw: mat(of.dt),
            a_log: f32s(of.a_log),
            bias: f32s(of.dt_bias),
            limit: of.limit,
        },
        d: f32s(of.d),
        runs: runs("ssd", of.documents, of.u, states),
    }
}

/// States at borders of runs: `[heads, rows, columns]` of a state.
#[track_caller]
fn run_states<'a>(of: Option<&RunStates<'a>>, [heads, n, p]: [usize; 3]) -> scan::RunStates<'a> {
    let Some(RunStates { of, states }) = of else { return scan::RunStates::NONE };
    expect("a scan", "states of runs", states, [states.rows(), heads * n * p]);
    let places = of.places.iter().flatten().all(|place| *place < states.rows());
    assert!(places && states.dtype() == DType::F32, "a scan: {:?} in {states:?}", of.places);
    let rows = mat_mut(states);
    scan::RunStates { places: &of.places, first: rows.ptr.cast(), stride: rows.stride }
}

/// See [`fathom_tensor::Machine::ssd_ends`].
#[track_caller]
pub fn ssd_ends(cpu: &Cpu, op: &SsdEnds<'_>, ws: &Tensor) {
    let of = ssd_operands(&op.of, &[]);
    let ends = run_states(Some(&op.ends), of.sizes.of_state());
    expect("ssd_ends", "decays", op.decays, [op.ends.states.rows(), of.sizes.heads]);
    assert!(op.decays.dtype() == DType::F32, "ssd_ends: decays {:?}", op.decays);
    let decays = mat_mut(op.decays);
    let call = scan::Ends { of, ends, decays: (decays.ptr.cast(), decays.stride) };
    // SAFETY: see the module of the machine; the scratch has the bytes given by the profile.
    unsafe { scan::ends(&cpu.threads, cpu.isa, &call, operands::scratch(ws)) }
}

/// See [`fathom_tensor::Machine::ssd_begins`].
#[track_caller]
pub fn ssd_begins(cpu: &Cpu, op: &SsdBegins<'_>, ws: &Tensor) {
    let of = ssd_operands(&op.of, &[]);
    expect("ssd_begins", "dy", op.dy, [op.of.u.rows(), of.sizes.heads * of.sizes.width]);
    let call = scan::Backward {
        of,
        borders: [scan::RunStates::NONE; 2],
        begins: run_states(Some(&op.begins), of.sizes.of_state()),
        kept: std::ptr::null(),
        dy: mat(op.dy),
        du: None,
        ddt: None,
        dweights: [None; 3],
    };
    // SAFETY: see the module of the machine; the scratch has the bytes given by the profile.
    unsafe { scan::backward(&cpu.threads, cpu.isa, &call, operands::scratch(ws)) }
}

/// See [`fathom_tensor::Machine::ssd_advance`].
#[track_caller]
pub fn ssd_advance(cpu: &Cpu, state: &Tensor, decays: &Tensor, added: &Tensor) {
    expect("ssd_advance", "decays", decays, [1, state.rows()]);
    expect("ssd_advance", "what is added", added, state.shape());
    let to = f32s_mut(state);
    // SAFETY: see the module of the machine; the extents were checked.
    unsafe { scan::advance(&cpu.threads, state.shape(), to, f32s(decays), f32s(added).as_ptr()) }
}

/// See [`fathom_tensor::Machine::ssd`].
#[track_caller]
pub fn ssd(cpu: &Cpu, op: &Ssd<'_>, ws: &Tensor) {
    let of = ssd_operands(&op.of, op.states);
    expect("ssd", "y", op.y, [op.of.u.rows(), of.sizes.heads * of.sizes.width]);
    let size = of.sizes.heads * of.sizes.state * of.sizes.width;
    expect("ssd", "kept", op.kept, [op.of.u.rows(), fathom_tensor::state_cols(size)]);
    let states: Vec<*mut f32> = op.states.iter().map(f32s_mut).collect();
    let before = run_states(op.before.as_ref(), of.sizes.of_state());
    let call = scan::Forward { of, states: &states, before, y: mat_mut(op.y), kept: f32s_mut(op.kept) };
    // SAFETY: see the module of the machine; the scratch has the bytes given by the profile.
    unsafe { scan::forward(&cpu.threads, cpu.isa, &call, operands::scratch(ws)) }
}

/// See [`fathom_tensor::Machine::ssd_backward`].
#[track_caller]
pub fn ssd_backward(cpu: &Cpu, op: &SsdBackward<'_>, ws: &Tensor) {
    let of = ssd_operands(&op.of, &[]);
    expect("ssd_backward", "dy", op.dy, [op.of.u.rows(), of.sizes.heads * of.sizes.width]);
    op.du.iter().for_each(|du| expect("ssd_backward", "du", du, op.of.u.shape()));
    op.ddt.iter().for_each(|ddt| expect("ssd_backward", "ddt", ddt, op.of.dt.shape()));
    for dweight in op.dweights.iter().flatten() {
        expect("ssd_backward", "the gradient of a weight", dweight, [1, of.sizes.heads]);
    }
    let call = scan::Backward {
        of,
        borders: [&op.before, &op.after].map(|border| run_states(border.as_ref(), of.sizes.of_state())),
        begins: scan::RunStates::NONE,
        kept: f32s(op.kept).as_ptr(),
        dy: mat(op.dy),
        du: op.du.map(mat_mut),
        ddt: op.ddt.map(mat_mut),
        dweights: op.dweights.map(|dweight| dweight.map(mat_mut)),
    };
    // SAFETY: see the module of the machine; the scratch has the bytes given by the profile.
    unsafe { scan::backward(&cpu.threads, cpu.isa, &call, operands::scratch(ws)) }
}

#[track_caller]
fn delta_operands<'a>(of: &DeltaOperands<'a>, states: &[Tensor]) -> scan::DeltaOperands<'a> {
    let (key_heads, heads, key, value) = (of.key_heads, of.heads(), of.key, of.value());
    let cols = 2 * key_heads * key + heads * value;
    let rows = of.u.rows();
    assert!(
        heads.is_multiple_of(key_heads) && of.u.cols() == cols && of.a.rows() == rows,
        "delta: u {:?}, a {:?}, {key_heads} key heads of {key}",
        of.u,
        of.a
    );
    expect("delta", "b", of.b, [rows, heads]);
    for (what, weight) in [("a_log", of.a_log), ("dt_bias", of.dt_bias)] {
        expect("delta", what, weight, [1, heads]);
    }
    states.iter().for_each(|kept| expect("delta", "a state", kept, [heads, key * value]));
    let limit = [0.0, f32::INFINITY];
    let (raw, a_log, bias) = (mat(of.a), f32s(of.a_log), f32s(of.dt_bias));
    scan::DeltaOperands {
        sizes: scan::DeltaSizes { key_heads, heads, key, value, further: 0 },
        u: mat(of.u),
        steps: scan::Steps { raw, a_log, bias, limit },
        b: mat(of.b),
        eps: of.eps,
        beta: of.beta,
        runs: runs("delta", of.documents, of.u, states),
    }
}

/// See [`fathom_tensor::Machine::delta_ends`].
#[track_caller]
pub fn delta_ends(cpu: &Cpu, op: &DeltaEnds<'_>, ws: &Tensor) {
    let of = delta_operands(&op.of, &[]);
    let scan::DeltaSizes { heads, key, .. } = of.sizes;
    let ends = run_states(Some(&op.ends), of.sizes.of_state());
    let matrices = RunStates { of: op.ends.of, states: op.matrices };
    let matrices = run_states(Some(&matrices), [heads, key, key]);
    let of = scan::DeltaOperands { sizes: scan::DeltaSizes { further: key, ..of.sizes }, ..of };
    let call = scan::DeltaEnds { of, ends, matrices };
    // SAFETY: see the module of the machine; the scratch has the bytes given by the profile.
    unsafe { scan::delta_ends(&cpu.threads, cpu.isa, &call, operands::scratch(ws)) }
}

/// See [`fathom_tensor::Machine::delta_begins`].
#[track_caller]
pub fn delta_begins(cpu: &Cpu, op: &DeltaBegins<'_>, ws: &Tensor) {
    let of = delta_operands(&op.of, &[]);
    expect("delta_begins", "dout", op.dout, [op.of.u.rows(), of.sizes.heads * of.sizes.value]);
    let call = scan::DeltaBackward {
        of,
        borders: [scan::RunStates::NONE; 2],
        begins: run_states(Some(&op.begins), of.sizes.of_state()),
        kept: std::ptr::null(),
        dout: mat(op.dout),
        du: None,
        da: None,
        db: None,
        dweights: [None; 2],
    };
    // SAFETY: see the module of the machine; the scratch has the bytes given by the profile.
    unsafe { scan::delta_backward(&cpu.threads, cpu.isa, &call, operands::scratch(ws)) }
}

/// See [`fathom_tensor::Machine::delta_advance`].
#[track_caller]
pub fn delta_advance(cpu: &Cpu, op: &DeltaAdvance<'_>) {
    let ([heads, cols], key) = (op.before.shape(), op.matrices.cols().isqrt());
    expect("delta_advance", "matrices", op.matrices, [heads, key * key]);
    assert!(cols.is_multiple_of(key), "delta_advance: states {:?}, {key} columns of keys", op.before);
    expect("delta_advance", "what is added", op.added, op.before.shape());
    expect("delta_advance", "states after runs", op.after, op.before.shape());
    let sizes = scan::DeltaSizes { key_heads: heads, heads, key, value: cols / key, further: 0 };
    let (matrices, before, added) = (f32s(op.matrices), f32s(op.before), f32s(op.added));
    let (transposed, after) = (op.transposed, f32s_mut(op.after));
    let call = scan::DeltaAdvance { sizes, matrices, transposed, before, added, after };
    // SAFETY: see the module of the machine; the extents were checked.
    unsafe { scan::delta_advance(&cpu.threads, cpu.isa, &call) }
}

/// See [`fathom_tensor::Machine::delta`].
#[track_caller]
pub fn delta(cpu: &Cpu, op: &Delta<'_>, ws: &Tensor) {
    let of = delta_operands(&op.of, op.states);
    let scan::DeltaSizes { heads, key, value, .. } = of.sizes;
    expect("delta", "out", op.out, [op.of.u.rows(), heads * value]);
    let cols = fathom_tensor::state_cols(heads * key * value);
    expect("delta", "kept", op.kept, [op.of.u.rows(), cols]);
    let states: Vec<*mut f32> = op.states.iter().map(f32s_mut).collect();
    let before = run_states(op.before.as_ref(), of.sizes.of_state());
    let (out, kept) = (mat_mut(op.out), f32s_mut(op.kept));
    let call = scan::DeltaForward { of, states: &states, before, out, kept };
    // SAFETY: see the module of the machine; the scratch has the bytes given by the profile.
    unsafe { scan::delta_forward(&cpu.threads, cpu.isa, &call, operands::scratch(ws)) }
}

/// See [`fathom_tensor::Machine::delta_backward`].
#[track_caller]
pub fn delta_backward(cpu: &Cpu, op: &DeltaBackward<'_>, ws: &Tensor) {
    let of = delta_operands(&op.of, &[]);
    let scan::DeltaSizes { heads, value, .. } = of.sizes;
    expect("delta_backward", "dout", op.dout, [op.of.u.rows(), heads * value]);
    op.du.iter().for_each(|du| expect("delta_backward", "du", du, op.of.u.shape()));
    for (what, tensor) in [("da", op.da), ("db", op.db)] {
        tensor.iter().for_each(|tensor| expect("delta_backward", what, tensor, op.of.a.shape()));
    }
    for dweight in op.dweights.iter().flatten() {
        expect("delta_backward", "the gradient of a weight", dweight, [1, heads]);
    }
    let call = scan::DeltaBackward {
        of,
        borders: [&op.before, &op.after].map(|border| run_states(border.as_ref(), of.sizes.of_state())),
        begins: scan::RunStates::NONE,
        kept: f32s(op.kept).as_ptr(),
        dout: mat(op.dout),
        du: op.du.map(mat_mut),
        da: op.da.map(mat_mut),
        db: op.db.map(mat_mut),
        dweights: op.dweights.map(|dweight| dweight.map(mat_mut)),
    };
    // SAFETY: see the module of the machine; the scratch has the bytes given by the profile.
    unsafe { scan::delta_backward(&cpu.threads, cpu.isa, &call, operands::scratch(ws)) }
}
