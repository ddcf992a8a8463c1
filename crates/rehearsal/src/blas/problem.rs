//! A product, assembled from its descriptors: D = scale_D (alpha scale_A scale_B op(A) op(B) + beta scale_C C).

use std::hash::{DefaultHasher, Hash, Hasher};

use cudarc::cublaslt::sys::cublasLtMatmulDescAttributes_t as Attribute;

use super::objects::{Layout, Operation};
use super::operands::{Matrix, Problem, Scale};
use super::{Outcome, invalid, rules};

pub(super) fn transposed(name: &str, value: u64) -> Outcome<bool> {
    match value {
        0 => Ok(false),
        // The conjugate of a real matrix is itself.
        1 | 2 => Ok(true),
        _ => invalid(format!("op({name}) is {value}")),
    }
}

fn shape(matrix: &Matrix, transposed: bool) -> [usize; 2] {
    if transposed { [matrix.cols, matrix.rows] } else { [matrix.rows, matrix.cols] }
}

impl Problem {
    /// The requested product, if it is documented for this device.
    pub fn of(operation: &Operation, [a, b, c, d]: [&Layout; 4]) -> Outcome<Problem> {
        let get = |attribute| operation.get(attribute);
        let key = {
            let mut hasher = DefaultHasher::new();
            for layout in [a, b, c, d] {
                (layout.kind, layout.rows, layout.cols, layout.ld).hash(&mut hasher);
            }
            rules::KEY.iter().for_each(|attribute| get(*attribute).hash(&mut hasher));
            hasher.finish()
        };
        let [a, b] = [Matrix::of("A", a)?, Matrix::of("B", b)?];
        let [c, d] = [Matrix::of("C", c)?, Matrix::of("D", d)?];
        let left = transposed("A", get(Attribute::CUBLASLT_MATMUL_DESC_TRANSA))?;
        let right = transposed("B", get(Attribute::CUBLASLT_MATMUL_DESC_TRANSB))?;
        let ([m, k], [inner, n]) = (shape(&a, left), shape(&b, right));
        if inner != k || shape(&d, false) != [m, n] {
            let [rows, cols] = shape(&d, false);
            return invalid(format!("op(A) is {m} x {k}, op(B) {inner} x {n}, D {rows} x {cols}"));
        }
        if shape(&c, false) != [m, n] {
            return invalid(format!("C is {} x {}, D {m} x {n}", c.rows, c.cols));
        }
        rules::refuse_what_is_absent(operation)?;
        let precision = rules::precision(operation, [&a, &b, &c, &d])?;
        let scale =
            |mode, address| Outcome::Ok(Scale { mode: rules::mode(get(mode))?, address: get(address) });
        let problem = Problem {
            a,
            b,
            c,
            d,
            transposed: [left, right],
            m,
            n,
            k,
            precision,
            scalars_on_device: get(Attribute::CUBLASLT_MATMUL_DESC_POINTER_MODE) == 1,
            scale_a: scale(
                Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
                Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
            )?,
            scale_b: scale(
                Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
                Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
            )?,
            scale_c: get(Attribute::CUBLASLT_MATMUL_DESC_C_SCALE_POINTER),
            scale_d: get(Attribute::CUBLASLT_MATMUL_DESC_D_SCALE_POINTER),
            largest: get(Attribute::CUBLASLT_MATMUL_DESC_AMAX_D_POINTER),
            key,
        };
        rules::check_scales(&problem)?;
        rules::check_narrow(operation, &problem)?;
        Ok(problem)
    }

    /// True if both operands have eight-bit elements.
    pub fn is_narrow(&self) -> bool {
        self.a.kind.is_narrow()
    }
}
