//! Shapes of a product of groups.

use std::hash::{DefaultHasher, Hash, Hasher};

use cudarc::cublaslt::sys::{
    cublasComputeType_t as Compute, cublasLtMatmulDescAttributes_t as Attribute, cublasLtMatrixLayout_t,
};

use super::objects::{GroupLayout, Operation};
use super::operands::{Matrix, Mode, Precision, Problem, Scale};
use super::problem::transposed;
use super::values::Kind;
use super::{Outcome, invalid, objects, rules, unsupported};

/// First version that supports grouped products on compute capability 9.0.
const FIRST: usize = 130_400;

/// Up to this version host factors give wrong results there (release notes of CUDA 13.4 update 1, issue 6681084).
const HOST_FACTORS: usize = 130_700;

pub(super) const NAMES: [&str; 4] = ["A", "B", "C", "D"];

/// A grouped product.
#[derive(Clone, Debug)]
pub struct Groups {
    /// Layouts of A, B, C and D.
    pub(crate) layouts: [GroupLayout; 4],
    pub(super) kinds: [Kind; 4],
    pub(super) transposed: [bool; 2],
    pub(super) scalars_on_device: bool,
    /// Identifies products that can share an algorithm.
    pub key: u64,
}

fn kind_of(name: &str, number: u32) -> Outcome<Kind> {
    match Kind::of(number) {
        Some(kind) => Ok(kind),
        None => unsupported(format!("{name} is of type {number}, which the rehearsal does not have")),
    }
}

impl Groups {
    /// The product requested of a library of this version; `None` if none of the matrices is grouped.
    pub fn of(
        operation: &Operation,
        handles: [cublasLtMatrixLayout_t; 4],
        version: usize,
    ) -> Outcome<Option<Groups>> {
        let [a, b, c, d] = match handles.map(objects::groups) {
            [None, None, None, None] => return Ok(None),
            [Some(a), Some(b), Some(c), Some(d)] => [a, b, c, d],
            _ => return unsupported("some matrices are grouped and others are not"),
        };
        let layouts = [a, b, c, d];
        if version < FIRST {
            return unsupported(format!(
                "groups on compute capability 9.0 come with {FIRST}, this is {version}"
            ));
        }
        let count = a.count;
        if count <= 0 || layouts.iter().any(|layout| layout.count != count) {
            return invalid(format!("numbers of groups {:?}", layouts.map(|layout| layout.count)));
        }
        for (name, layout) in NAMES.iter().zip(&layouts) {
            if layout.tables.iter().any(|table| *table == 0 || !table.is_multiple_of(4)) {
                return invalid(format!("tables of {name} at {:x?}", layout.tables));
            }
        }
        let mut kinds = [Kind::F32; 4];
        for ((kind, name), layout) in kinds.iter_mut().zip(NAMES).zip(&layouts) {
            *kind = kind_of(name, layout.kind)?;
        }
        check_kinds(operation, kinds)?;
        let get = |attribute| operation.get(attribute);
        let groups = Groups {
            layouts,
            kinds,
            transposed: [
                transposed("A", get(Attribute::CUBLASLT_MATMUL_DESC_TRANSA))?,
                transposed("B", get(Attribute::CUBLASLT_MATMUL_DESC_TRANSB))?,
            ],
            scalars_on_device: get(Attribute::CUBLASLT_MATMUL_DESC_POINTER_MODE) == 1,
            key: {
                let mut hasher = DefaultHasher::new();
                ("groups", count, layouts.map(|layout| layout.kind)).hash(&mut hasher);
                rules::KEY.iter().for_each(|attribute| get(*attribute).hash(&mut hasher));
                hasher.finish()
            },
        };
        if !groups.scalars_on_device && version <= HOST_FACTORS {
            return unsupported(format!(
                "factors of the host, which give wrong results up to {HOST_FACTORS}"
            ));
        }
        Ok(Some(groups))
    }

    /// The problem of one group.
    pub(super) fn problem(&self, [a, b, c, d]: [Matrix; 4], [m, n, k]: [usize; 3]) -> Problem {
        let none = Scale { mode: Mode::Tensor, address: 0 };
        Problem {
            a,
            b,
            c,
            d,
            transposed: self.transposed,
            m,
            n,
            k,
            precision: Precision::Full,
            scalars_on_device: self.scalars_on_device,
            scale_a: none,
            scale_b: none,
            scale_c: 0,
            scale_d: 0,
            largest: 0,
            key: self.key,
        }
    }
}

/// Checks the documentation's table of grouped matrices, and features that this device lacks.
fn check_kinds(operation: &Operation, [a, b, c, d]: [Kind; 4]) -> Outcome<()> {
    rules::refuse_what_is_absent(operation)?;
    let get = |attribute| operation.get(attribute);
    if get(Attribute::CUBLASLT_MATMUL_DESC_COMPUTE_TYPE) != Compute::CUBLAS_COMPUTE_32F as u64
        || get(Attribute::CUBLASLT_MATMUL_DESC_SCALE_TYPE) != 0
    {
        return unsupported("groups: the compute type must be CUBLAS_COMPUTE_32F, the scale type CUDA_R_32F");
    }
    if a.is_narrow() || b.is_narrow() {
        return unsupported("the rehearsal has no groups of narrow types");
    }
    let listed = matches!(a, Kind::Bf16 | Kind::F16) && a == b && c == d && (d == a || d == Kind::F32);
    if !listed {
        return unsupported(format!("the table of groups does not list A {a:?}, B {b:?}, C {c:?}, D {d:?}"));
    }
    if operation.factor_strides() != [0; 2] {
        return unsupported("groups on compute capability 9.0 have one alpha and one beta");
    }
    let scaled = [
        Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
        Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
        Attribute::CUBLASLT_MATMUL_DESC_C_SCALE_POINTER,
        Attribute::CUBLASLT_MATMUL_DESC_D_SCALE_POINTER,
        Attribute::CUBLASLT_MATMUL_DESC_AMAX_D_POINTER,
        Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM,
    ];
    if scaled.iter().any(|attribute| get(*attribute) != 0) {
        return invalid("factors and fast accumulation are only for products of narrow types");
    }
    Ok(())
}
