//! Products documented for compute capability 9.0. Sections refer to cuBLAS' documentation: "Tensor Core Usage",
//! "Narrow Precision Data Types Usage" with its subsections, `cublasLtMatmulDescAttributes_t`, and `cublasLtMatmul()`
//! with its tables.

use cudarc::cublaslt::sys::{
    cublasComputeType_t as Compute, cublasLtMatmulDescAttributes_t as Attribute, cudaDataType_t as Type,
};

use super::objects::Operation;
use super::operands::{Matrix, Mode, Precision, Problem, Scale};
use super::values::Kind;
use super::{Outcome, invalid, unsupported};

/// Attributes that an algorithm depends on: all but addresses.
pub const KEY: [Attribute; 13] = [
    Attribute::CUBLASLT_MATMUL_DESC_COMPUTE_TYPE,
    Attribute::CUBLASLT_MATMUL_DESC_SCALE_TYPE,
    Attribute::CUBLASLT_MATMUL_DESC_POINTER_MODE,
    Attribute::CUBLASLT_MATMUL_DESC_TRANSA,
    Attribute::CUBLASLT_MATMUL_DESC_TRANSB,
    Attribute::CUBLASLT_MATMUL_DESC_TRANSC,
    Attribute::CUBLASLT_MATMUL_DESC_FILL_MODE,
    Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE,
    Attribute::CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET,
    Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM,
    Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
    Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
    Attribute::CUBLASLT_MATMUL_DESC_D_SCALE_MODE,
];

/// Refuses features that this device lacks for all products, and those that the rehearsal does not support.
pub fn refuse_what_is_absent(operation: &Operation) -> Outcome<()> {
    let get = |attribute| operation.get(attribute);
    if get(Attribute::CUBLASLT_MATMUL_DESC_TRANSC) != 0 {
        return unsupported("op(C): only CUBLAS_OP_N is supported");
    }
    if get(Attribute::CUBLASLT_MATMUL_DESC_FILL_MODE) != 2 {
        return unsupported("the fill mode is not supported on Hopper");
    }
    if get(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE) != 1 {
        return unsupported("the rehearsal has no epilogue but the default");
    }
    match get(Attribute::CUBLASLT_MATMUL_DESC_POINTER_MODE) {
        0 | 1 => {}
        2..=4 => return unsupported("the rehearsal has no scalars as vectors"),
        other => return invalid(format!("pointer mode {other}")),
    }
    let unused = [
        (Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, "a bias without its epilogue"),
        (Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, "an auxiliary buffer without its epilogue"),
        (Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER, "a factor of no auxiliary buffer"),
        (Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER, "the largest of no auxiliary buffer"),
        (Attribute::CUBLASLT_MATMUL_DESC_D_OUT_SCALE_POINTER, "factors that D's scaling does not write"),
        (
            Attribute::CUBLASLT_MATMUL_DESC_EMULATION_DESCRIPTOR,
            "emulation, which the rehearsal does not have",
        ),
    ];
    match unused.into_iter().find(|(attribute, _)| get(*attribute) != 0) {
        Some((_, why)) => invalid(why),
        None => Ok(()),
    }
}

/// Precision according to tables 1 and 3 of `cublasLtMatmul()`.
pub fn precision(operation: &Operation, [a, b, c, d]: [&Matrix; 4]) -> Outcome<Precision> {
    let compute = operation.get(Attribute::CUBLASLT_MATMUL_DESC_COMPUTE_TYPE);
    let scale = operation.get(Attribute::CUBLASLT_MATMUL_DESC_SCALE_TYPE);
    let is = |wanted: Compute| compute == wanted as u64;
    let full = is(Compute::CUBLAS_COMPUTE_32F) || is(Compute::CUBLAS_COMPUTE_32F_PEDANTIC);
    let precision = if full {
        Precision::Full
    } else if is(Compute::CUBLAS_COMPUTE_32F_FAST_TF32) {
        Precision::Tf32
    } else if is(Compute::CUBLAS_COMPUTE_32F_FAST_16F) {
        Precision::F16
    } else if is(Compute::CUBLAS_COMPUTE_32F_FAST_16BF) {
        Precision::Bf16
    } else {
        return unsupported(format!("the rehearsal does not have compute type {compute}"));
    };
    if scale != Type::CUDA_R_32F as u64 {
        return unsupported(format!("scale type {scale}: products that accumulate in f32 have CUDA_R_32F"));
    }
    let kinds = [a.kind, b.kind, c.kind, d.kind];
    if kinds[..2].iter().any(|kind| kind.is_narrow()) {
        if !is(Compute::CUBLAS_COMPUTE_32F) {
            return unsupported("FP8: the compute type must be CUBLAS_COMPUTE_32F");
        }
        return if is_listed_narrow(kinds) { Ok(precision) } else { not_listed(kinds, "FP8") };
    }
    if c.kind != d.kind {
        return unsupported(format!(
            "C is {:?}, D is {:?}: both must have the same data type",
            c.kind, d.kind
        ));
    }
    let listed = match (a.kind, c.kind) {
        (Kind::F32, Kind::F32) => true,
        (Kind::F16, Kind::F16 | Kind::F32) | (Kind::Bf16, Kind::Bf16 | Kind::F32) => full,
        _ => false,
    };
    if a.kind == b.kind && listed { Ok(precision) } else { not_listed(kinds, "this compute type") }
}

fn not_listed(kinds: [Kind; 4], of: &str) -> Outcome<Precision> {
    let [a, b, c, d] = kinds;
    unsupported(format!("the table of {of} does not list A {a:?}, B {b:?}, C {c:?}, D {d:?}"))
}

fn is_listed_narrow([a, b, c, d]: [Kind; 4]) -> bool {
    let both_exact = match (a, b) {
        (Kind::E4m3, Kind::E4m3) => true,
        (Kind::E4m3, Kind::E5m2) | (Kind::E5m2, Kind::E4m3) => false,
        _ => return false,
    };
    match (c, d) {
        (Kind::Bf16, Kind::Bf16) | (Kind::F16, Kind::F16) | (Kind::F32, Kind::F32) => true,
        (Kind::Bf16 | Kind::F16, Kind::E4m3) => true,
        (Kind::Bf16 | Kind::F16, Kind::E5m2) => !both_exact,
        _ => false,
    }
}

/// Scaling mode according to "Scaling Mode Support Overview".
pub fn mode(number: u64) -> Outcome<Mode> {
    match number {
        0 => Ok(Mode::Tensor),
        3 => Ok(Mode::Outer),
        4 => Ok(Mode::Vector),
        5 => Ok(Mode::Block),
        1 | 2 => unsupported("factors for 16 or 32 elements: compute capability 10.0 and above"),
        other => invalid(format!("scaling mode {other}")),
    }
}

/// Checks factors against the documentation.
pub fn check_scales(problem: &Problem) -> Outcome<()> {
    let sides = [("A", &problem.scale_a, problem.m), ("B", &problem.scale_b, problem.n)];
    if !problem.is_narrow() {
        let set = sides.iter().any(|(_, scale, _)| scale.address != 0 || scale.mode != Mode::Tensor);
        if set || problem.scale_c != 0 || problem.scale_d != 0 {
            return invalid("factors are only for products of narrow types");
        }
    }
    if problem.scale_d != 0 && !problem.d.kind.is_narrow() {
        return invalid(format!("D is {:?}: a factor is only for a narrow D", problem.d.kind));
    }
    if problem.largest != 0 && !problem.d.kind.is_narrow() {
        return invalid("the largest of D, where D is not narrow (the documents are silent)");
    }
    let [left, right] = [problem.scale_a.mode, problem.scale_b.mode];
    match (left, right) {
        (Mode::Tensor, Mode::Tensor) => return check_addresses(problem, &sides, 4),
        (Mode::Outer, Mode::Outer) => {}
        (Mode::Vector, Mode::Vector | Mode::Block) | (Mode::Block, Mode::Vector) => {
            if !problem.m.is_multiple_of(4) || !problem.n.is_multiple_of(4) {
                return unsupported(format!("M {} and N {} must be multiples of 4", problem.m, problem.n));
            }
            // TransformerEngine's `CanonicalizeGemmInput`: "observed this requirement only present for B tensor is 1D quantized".
            if right == Mode::Vector && !problem.n.is_multiple_of(8) {
                return unsupported(format!(
                    "N {} must be a multiple of 8 where B has factors for 128 elements (observed; documented is 4)",
                    problem.n
                ));
            }
        }
        _ => return unsupported(format!("A's scaling mode {left:?} with B's {right:?} is not listed")),
    }
    // Footnote 8 of `cublasLtMatmul()`; the status is the one that PyTorch has met (pull request 164844).
    if problem.d.kind.is_narrow() {
        return invalid(format!("a narrow D with scaling modes {left:?} and {right:?}"));
    }
    if let Some((name, ..)) = sides.iter().find(|(_, scale, _)| scale.address == 0) {
        let why = "without factors where there are more than one (the documents are silent)";
        return unsupported(format!("{name} is {why}"));
    }
    check_addresses(problem, &sides, 16)
}

/// Sixteen bytes are documented for blocks; for one factor per row the documentation is silent, and the same is
/// required here.
fn check_addresses(problem: &Problem, sides: &[(&str, &Scale, usize)], alignment: u64) -> Outcome<()> {
    let singles = [("C", problem.scale_c), ("D", problem.scale_d), ("the largest of D", problem.largest)];
    for (name, address) in singles {
        if !address.is_multiple_of(4) {
            return invalid(format!("the address {address:#x} of {name}'s factor is not aligned"));
        }
    }
    for (name, Scale { address, .. }, _) in sides {
        if !address.is_multiple_of(alignment) {
            return invalid(format!("{name}'s factors at {address:#x} must be {alignment} byte aligned"));
        }
    }
    Ok(())
}

/// Requirements of FP8 kernels on shapes: "TN", and alignment to sixteen bytes everywhere ("Tensor Core Usage"). Only C
/// is named there; applying the same to D follows from "all matrix dimensions".
pub fn check_narrow(operation: &Operation, problem: &Problem) -> Outcome<()> {
    let modes = [
        (Attribute::CUBLASLT_MATMUL_DESC_C_SCALE_MODE, "C"),
        (Attribute::CUBLASLT_MATMUL_DESC_D_SCALE_MODE, "D"),
        (Attribute::CUBLASLT_MATMUL_DESC_D_OUT_SCALE_MODE, "D's output"),
        (Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_MODE, "the auxiliary buffer"),
    ];
    if let Some((_, name)) = modes.into_iter().find(|(attribute, _)| operation.get(*attribute) != 0) {
        return unsupported(format!("the scaling mode of {name} must not be modified on this device"));
    }
    let fast = operation.get(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM) != 0;
    if !problem.is_narrow() {
        return if fast {
            invalid("fast accumulation is for FP8 (the documents are silent)")
        } else {
            Ok(())
        };
    }
    let blocked = |scale: &Scale| matches!(scale.mode, Mode::Vector | Mode::Block);
    if fast && (blocked(&problem.scale_a) || blocked(&problem.scale_b)) {
        // PyTorch's `CUDABlas.cpp` refuses it; TransformerEngine never requests it.
        return unsupported("fast accumulation with factors of blocks (the documents are silent)");
    }
    if operation.get(Attribute::CUBLASLT_MATMUL_DESC_TRANSA) != 1 || problem.transposed[1] {
        return unsupported("FP8 on Hopper: A must be transposed and B must not (TN)");
    }
    let Problem { a, b, c, d, m, k, .. } = problem;
    let dimensions = [
        ("K of A", *k, a.kind),
        ("K of B", *k, b.kind),
        ("M of C", *m, c.kind),
        ("M of D", *m, d.kind),
        ("A's leading dimension", a.ld, a.kind),
        ("B's leading dimension", b.ld, b.kind),
        ("C's leading dimension", c.ld, c.kind),
        ("D's leading dimension", d.ld, d.kind),
    ];
    let odd = |(_, size, kind): &(&str, usize, Kind)| !(*size as u64 * kind.size()).is_multiple_of(16);
    match dimensions.into_iter().find(odd) {
        Some((name, size, kind)) => {
            unsupported(format!("FP8: {name} is {size} of {kind:?}, which is no multiple of 16 bytes"))
        }
        None => Ok(()),
    }
}
