//! Numbers that other libraries read without copying.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// A read-only array of f32. It owns its numbers, so that it outlives its model.
#[pyclass(frozen, module = "fathom._fathom")]
pub struct Array {
    numbers: Vec<f32>,
    shape: Vec<usize>,
}

impl Array {
    /// An array of rows; one dimension if there is one number a row.
    pub fn rows(numbers: Vec<f32>, columns: usize) -> Array {
        let rows = numbers.len() / columns.max(1);
        Array { numbers, shape: if columns == 1 { vec![rows] } else { vec![rows, columns] } }
    }

    /// A vector.
    pub fn vector(numbers: Vec<f32>) -> Array {
        Array { shape: vec![numbers.len()], numbers }
    }
}

#[pymethods]
impl Array {
    /// Lengths of the dimensions.
    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.shape.clone()
    }

    /// Address of the first number.
    #[getter]
    fn address(&self) -> usize {
        self.numbers.as_ptr() as usize
    }

    /// NumPy's description of the memory, which is read-only.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let of = PyDict::new(py);
        of.set_item("shape", pyo3::types::PyTuple::new(py, &self.shape)?)?;
        of.set_item("typestr", if cfg!(target_endian = "little") { "<f4" } else { ">f4" })?;
        of.set_item("data", (self.address(), true))?;
        of.set_item("version", 3)?;
        Ok(of)
    }

    /// The numbers of a row, or of a vector from an index on.
    fn row<'py>(&self, py: Python<'py>, row: usize) -> PyResult<Bound<'py, PyList>> {
        let columns = self.shape.get(1).copied().unwrap_or(1);
        let numbers = self.numbers.get(row * columns..(row + 1) * columns).unwrap_or_default();
        PyList::new(py, numbers)
    }

    fn __len__(&self) -> usize {
        self.shape[0]
    }
}
