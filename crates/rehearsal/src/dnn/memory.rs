//! Tensors in memory: reads and writes strictly within their bounds.

use half::{bf16, f16};

use super::tensor::{Element, Tensor};
use crate::device::check_memory;

/// Value of elements that were not read or do not exist.
pub const NOTHING: f32 = f32::NAN;

/// A tensor's memory while work runs.
pub struct View<'a> {
    /// The tensor.
    pub tensor: &'a Tensor,
    /// Address of its first element, or the origin of offsets.
    pub address: u64,
    /// For ragged tensors, the start of each batch, and the end of the last.
    pub offsets: Option<&'a [i64]>,
    /// For each dimension, its size in each batch.
    pub limits: Vec<Option<&'a [i64]>>,
}

impl View<'_> {
    /// Size of a dimension in a batch.
    fn size(&self, dim: usize, batch: usize) -> i64 {
        let whole = self.tensor.dims[dim];
        self.limits[dim].map_or(whole, |lengths| lengths[batch].min(whole))
    }

    /// Start of a batch, in elements.
    fn start(&self, batch: usize) -> i64 {
        self.offsets.map_or(batch as i64 * self.tensor.strides[0], |offsets| offsets[batch])
    }

    /// Checks that all of the tensor is accessible; for ragged tensors each sequence, which must end before the next
    /// begins.
    ///
    /// # Errors
    /// If it is not.
    pub fn check(&self) -> Result<(), String> {
        let Tensor { uid, element, dims, .. } = self.tensor;
        let check = |start: i64, count: i64| {
            check_memory(self.address + (start * element.bytes()) as u64, (count * element.bytes()) as u64)
                .map_err(|why| format!("tensor {uid}: {why}"))
        };
        let Some(offsets) = self.offsets else { return check(0, self.tensor.reach(dims)) };
        for batch in 0..dims[0] as usize {
            let mut sizes: Vec<i64> = (0..dims.len()).map(|dim| self.size(dim, batch)).collect();
            sizes[0] = 1;
            let reach = self.tensor.reach(&sizes);
            let (start, end) = (offsets[batch], offsets[batch + 1]);
            if start < 0 || end < start {
                return Err(format!("tensor {uid}: offsets {start}, then {end}"));
            }
            if start + reach > end {
                let why = format!("sequence {batch} of {reach} elements, and {} to the next", end - start);
                return Err(format!("tensor {uid}: {why}"));
            }
            if reach > 0 {
                check(start, reach)?;
            }
        }
        Ok(())
    }

    /// Visits rows of the last dimension: the index of the row, its start in memory, and its size.
    fn rows(&self, mut visit: impl FnMut(usize, i64, usize)) {
        let dims = &self.tensor.dims;
        let last = dims.len() - 1;
        let mut index = vec![0; last];
        let rows: i64 = dims[..last].iter().product();
        for row in 0..rows as usize {
            let batch = index.first().map_or(0, |batch| *batch as usize);
            let within = (0..last).all(|dim| index[dim] < self.size(dim, batch));
            let inside = (1..last.max(1)).filter(|dim| *dim < last);
            let steps: i64 = inside.map(|dim| index[dim] * self.tensor.strides[dim]).sum();
            let start = if last == 0 { 0 } else { self.start(batch) };
            let there = if within { self.size(last, batch).max(0) as usize } else { 0 };
            visit(row, start + steps, there);
            for dim in (0..last).rev() {
                index[dim] += 1;
                if index[dim] < dims[dim] {
                    break;
                }
                index[dim] = 0;
            }
        }
    }

    /// All elements in order, with absent ones as [`NOTHING`].
    ///
    /// # Errors
    /// If memory is not accessible, or a number is not exact in single precision.
    pub fn read(&self) -> Result<Vec<f32>, String> {
        self.check()?;
        // SAFETY: checked.
        unsafe {
            match self.tensor.element {
                Element::F32 => Ok(self.gather(|value: f32| value)),
                Element::F16 => Ok(self.gather(f16::to_f32)),
                Element::Bf16 => Ok(self.gather(bf16::to_f32)),
                Element::I32 => {
                    let all = self.gather(|value: i32| value as f32);
                    let exact = all.iter().all(|value| value.is_nan() || value.abs() <= 16_777_216.0);
                    if exact { Ok(all) } else { Err("an integer beyond single precision".to_string()) }
                }
                Element::I64 | Element::Bool => Err("no elements to compute with".to_string()),
            }
        }
    }

    /// # Safety
    /// All existing elements are readable as this type.
    unsafe fn gather<T: Copy>(&self, to: impl Fn(T) -> f32) -> Vec<f32> {
        let (width, stride) = self.last();
        let mut all = vec![NOTHING; self.tensor.count() as usize];
        let from: *const T = std::ptr::with_exposed_provenance(self.address as usize);
        self.rows(|row, start, there| {
            for (index, value) in all[row * width..][..there].iter_mut().enumerate() {
                // SAFETY: within the tensor.
                *value = to(unsafe { from.offset(start as isize + index as isize * stride).read() });
            }
        });
        all
    }

    /// Writes the existing elements of a value, rounded to the tensor's type.
    ///
    /// # Errors
    /// If memory is not accessible.
    pub fn write(&self, all: &[f32]) -> Result<(), String> {
        self.check()?;
        // SAFETY: checked.
        unsafe {
            match self.tensor.element {
                Element::F32 => self.scatter(all, |value| value),
                Element::F16 => self.scatter(all, f16::from_f32),
                Element::Bf16 => self.scatter(all, bf16::from_f32),
                Element::I32 => self.scatter(all, |value| value as i32),
                Element::I64 | Element::Bool => return Err("no elements to compute".to_string()),
            }
        }
        Ok(())
    }

    /// # Safety
    /// All existing elements are writable as this type.
    unsafe fn scatter<T>(&self, all: &[f32], of: impl Fn(f32) -> T) {
        let (width, stride) = self.last();
        let to: *mut T = std::ptr::with_exposed_provenance_mut(self.address as usize);
        self.rows(|row, start, there| {
            for (index, value) in all[row * width..][..there].iter().enumerate() {
                // SAFETY: within the tensor.
                unsafe { to.offset(start as isize + index as isize * stride).write(of(*value)) };
            }
        });
    }

    /// Size and stride of the last dimension.
    fn last(&self) -> (usize, isize) {
        let last = self.tensor.dims.len() - 1;
        (self.tensor.dims[last] as usize, self.tensor.strides[last] as isize)
    }
}

/// Integers of a plain tensor in memory, in order: lengths or offsets.
///
/// # Errors
/// If memory is not accessible.
pub fn integers(tensor: &Tensor, address: u64) -> Result<Vec<i64>, String> {
    View { tensor, address, offsets: None, limits: vec![None; tensor.dims.len()] }.check()?;
    let from = |index: i64| address + (index * tensor.strides[0] * tensor.element.bytes()) as u64;
    let one = |index: i64| {
        let at = from(index) as usize;
        // SAFETY: checked.
        unsafe {
            match tensor.element {
                Element::I32 => i64::from(std::ptr::with_exposed_provenance::<i32>(at).read()),
                _ => std::ptr::with_exposed_provenance::<i64>(at).read(),
            }
        }
    };
    Ok((0..tensor.dims[0]).map(one).collect())
}

/// Reads a host scalar.
///
/// # Safety
/// The address is that of an element.
pub unsafe fn scalar(element: Element, address: u64) -> f32 {
    let at = address as usize;
    // SAFETY: the caller's promise.
    unsafe {
        match element {
            Element::F32 => std::ptr::with_exposed_provenance::<f32>(at).read_unaligned(),
            Element::F16 => std::ptr::with_exposed_provenance::<f16>(at).read_unaligned().to_f32(),
            Element::Bf16 => std::ptr::with_exposed_provenance::<bf16>(at).read_unaligned().to_f32(),
            Element::I32 => std::ptr::with_exposed_provenance::<i32>(at).read_unaligned() as f32,
            Element::I64 => std::ptr::with_exposed_provenance::<i64>(at).read_unaligned() as f32,
            Element::Bool => f32::from(std::ptr::with_exposed_provenance::<u8>(at).read()),
        }
    }
}

/// Rounds values to a tensor's element type.
pub fn round(element: Element, all: &mut [f32]) {
    let to: fn(f32) -> f32 = match element {
        Element::F32 => return,
        Element::F16 => |value| f16::from_f32(value).to_f32(),
        Element::Bf16 => |value| bf16::from_f32(value).to_f32(),
        Element::I32 | Element::I64 => f32::trunc,
        Element::Bool => |value| f32::from(u8::from(value != 0.0)),
    };
    for value in all {
        *value = to(*value);
    }
}
