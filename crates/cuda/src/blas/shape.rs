//! Description of a product for cuBLASLt: three column-major matrices and their alignment.

use fathom_tensor::{DType, MatMul, Narrow, Tensor};

use super::Scales;

/// Element types that cuBLASLt accepts here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Element {
    /// IEEE single.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// 8 bits, 3 of them mantissa.
    E4M3,
    /// 8 bits, 2 of them mantissa.
    E5M2,
}

impl Element {
    /// The element type for products without scales, if supported.
    pub fn of(dtype: DType) -> Option<Element> {
        match dtype {
            DType::F32 => Some(Element::F32),
            DType::Bf16 => Some(Element::Bf16),
            DType::F16 => Some(Element::F16),
            _ => None,
        }
    }

    /// Bytes per element.
    pub fn bytes(self) -> u64 {
        match self {
            Element::F32 => 4,
            Element::Bf16 | Element::F16 => 2,
            Element::E4M3 | Element::E5M2 => 1,
        }
    }

    /// The element type for products with scales, if supported.
    fn coded(dtype: DType) -> Option<Element> {
        match dtype {
            DType::F8E4M3 => Some(Element::E4M3),
            DType::F8E5M2 => Some(Element::E5M2),
            _ => None,
        }
    }
}

/// A matrix as stored, column-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Layout {
    /// Length of a column.
    pub rows: u64,
    /// Number of columns.
    pub cols: u64,
    /// Elements from one column to the next.
    pub stride: i64,
    /// Alignment of the address: a power of two, at most 256.
    pub align: u32,
}

/// A product as cuBLASLt sees it: `D = op(first) op(second)`, all column-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape {
    /// Type of B.
    pub input: Element,
    /// Type of A.
    pub second_input: Element,
    /// Scale modes of B and of A, if scaled.
    pub scales: Option<[Scales; 2]>,
    /// Allows sums with fewer bits than f32.
    pub fast: bool,
    /// Type of the result.
    pub output: Element,
    /// B's bytes.
    pub first: Layout,
    /// Transposes B's bytes.
    pub first_trans: bool,
    /// A's bytes.
    pub second: Layout,
    /// Transposes A's bytes.
    pub second_trans: bool,
    /// C's bytes.
    pub result: Layout,
    /// The summed size.
    pub inner: u64,
}

/// Alignment of an address, as libraries expect it.
fn align(address: u64) -> u32 {
    1 << address.trailing_zeros().min(8)
}

/// A tensor's bytes as a column-major matrix.
fn stored(tensor: &Tensor) -> Layout {
    let [rows, cols] = tensor.shape();
    // A single row has no stride.
    let stride = if rows <= 1 { cols } else { tensor.stride() };
    Layout { rows: cols as u64, cols: rows as u64, stride: stride as i64, align: align(tensor.address()) }
}

impl Shape {
    /// Shape of `C = A B^T`, with scaled 8-bit A [m, k] and B [n, k], k a multiple of 16. `None` if cuBLASLt does not
    /// support the sizes or types (its manual, "cublasLtMatmul()" and "Tensor Core Usage").
    ///
    /// Sums are fast if both operands are E4M3 with one scale each, as in a forward pass; gradients, whose sums run
    /// over many tokens, and blocks are summed in f32 (Transformer Engine's `use_split_accumulator`).
    pub fn fp8([a, b]: [&Tensor; 2], [a_how, b_how]: [Narrow; 2], c: &Tensor) -> Option<Shape> {
        let ([m, k], n) = (a.shape(), b.rows());
        let (input, second_input) = (Element::coded(b.dtype())?, Element::coded(a.dtype())?);
        let (output, scales) = (Element::of(c.dtype())?, [Scales::of(b_how)?, Scales::of(a_how)?]);
        // Lines of every matrix are whole 16-byte pieces at aligned addresses.
        let bytes = c.dtype().bytes();
        let whole = [k, a.stride(), b.stride(), n * bytes, c.stride() * bytes]
            .iter()
            .all(|size| size.is_multiple_of(16))
            && [a, b, c].iter().all(|x| align(x.address()) >= 16);
        let blocks = scales.iter().any(|scales| matches!(scales, Scales::Lines128 | Scales::Tiles128));
        let fits = b.cols() == k && c.shape() == [m, n] && (!blocks || m.is_multiple_of(8));
        (fits && whole).then_some(Shape {
            input,
            second_input,
            scales: Some(scales),
            fast: scales == [Scales::Tensor; 2] && input == second_input,
            output,
            first: stored(b),
            first_trans: true,
            second: stored(a),
            second_trans: false,
            result: stored(c),
            inner: k as u64,
        })
    }

    /// Shape of an operation; `None` if cuBLASLt does not support the types.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn of(op: &MatMul<'_>) -> Option<Shape> {
        let (m, n, k) = op.sizes();
        let (input, output) = (Element::of(op.a.dtype())?, Element::of(op.c.dtype())?);
        // Narrow operands may have a wide result, but not vice versa, nor one narrow type from another.
        if output != Element::F32 && output != input {
            return None;
        }
        let shape = Shape {
            input,
            second_input: input,
            scales: None,
            fast: false,
            output,
            first: stored(op.b),
            first_trans: op.b_trans,
            second: stored(op.a),
            second_trans: op.a_trans,
            result: stored(op.c),
            inner: k as u64,
        };
        debug_assert_eq!((shape.result.cols, shape.result.rows), (m as u64, n as u64));
        Some(shape)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fathom_tensor::{Category, Device, Meta, Profile, Tensor};

    use super::*;

    /// op(x) by columns, from the bytes of a matrix.
    fn at(data: &[f64], layout: &Layout, trans: bool, row: u64, col: u64) -> f64 {
        let (row, col) = if trans { (col, row) } else { (row, col) };
        assert!(row < layout.rows && col < layout.cols);
        data[(col as i64 * layout.stride + row as i64) as usize]
    }

    #[test]
    fn a_product_by_columns_is_the_product_by_rows() {
        let device = Device::new(Arc::new(Meta::new(Profile::portable(1))), 1 << 20);
        let tensor = |rows, cols, gap| {
            let whole = device.empty(rows, cols + gap, DType::Bf16, Category::Data);
            whole.view_cols(0..cols)
        };
        let data = |x: &Tensor, seed: usize| -> Vec<f64> {
            (0..x.rows() * x.stride()).map(|i| ((i * 7 + seed) % 11) as f64 - 5.0).collect()
        };
        let (m, n, k) = (3, 4, 5);
        for (a_trans, b_trans, gap) in
            [(false, false, 0), (true, false, 2), (false, true, 3), (true, true, 1)]
        {
            let a = if a_trans { tensor(k, m, gap) } else { tensor(m, k, gap) };
            let b = if b_trans { tensor(n, k, gap) } else { tensor(k, n, gap) };
            let c = tensor(m, n, gap);
            let op = MatMul { a: &a, a_trans, b: &b, b_trans, c: &c, accumulate: false };
            let shape = Shape::of(&op).unwrap();
            let (a_data, b_data) = (data(&a, 1), data(&b, 2));
            let by_rows = |x: &Tensor, data: &[f64], trans: bool, row: usize, col: usize| {
                let (row, col) = if trans { (col, row) } else { (row, col) };
                data[row * x.stride() + col]
            };
            for row in 0..m {
                for col in 0..n {
                    let expected: f64 = (0..k)
                        .map(|i| {
                            by_rows(&a, &a_data, a_trans, row, i) * by_rows(&b, &b_data, b_trans, i, col)
                        })
                        .sum();
                    // Element (row, col) of a row-major matrix is element (col, row) column-major.
                    let found: f64 = (0..shape.inner)
                        .map(|i| {
                            at(&b_data, &shape.first, shape.first_trans, col as u64, i)
                                * at(&a_data, &shape.second, shape.second_trans, i, row as u64)
                        })
                        .sum();
                    assert_eq!(found, expected);
                    let place = row as i64 * shape.result.stride + col as i64;
                    assert_eq!(place, (row * c.stride() + col) as i64);
                }
            }
        }
    }

    #[test]
    fn types_that_the_library_lacks_are_left_to_kernels() {
        let device = Device::new(Arc::new(Meta::new(Profile::portable(1))), 1 << 20);
        let make = |dtype| device.empty(8, 8, dtype, Category::Data);
        for (input, output, taken) in [
            (DType::Bf16, DType::F32, true),
            (DType::Bf16, DType::Bf16, true),
            (DType::F32, DType::F32, true),
            (DType::F32, DType::Bf16, false),
            (DType::F16, DType::Bf16, false),
            (DType::F8E4M3, DType::F32, false),
        ] {
            let (a, b, c) = (make(input), make(input), make(output));
            let op = MatMul { a: &a, a_trans: false, b: &b, b_trans: false, c: &c, accumulate: false };
            assert_eq!(Shape::of(&op).is_some(), taken, "{input:?} {output:?}");
        }
        assert_eq!([align(512), align(16), align(6)], [256, 16, 2]);
    }
}
