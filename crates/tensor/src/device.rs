//! The resources of a rank: a machine with its pool and its place in the mesh.

use std::sync::Arc;

use crate::mesh::Mesh;
use crate::pool::Pool;
use crate::tensor::{Tensor, floats};
use crate::usage::Category;
use crate::{DType, Machine};

/// A machine with its pool and its place in the mesh: the resources of a rank. Cheap to clone.
#[derive(Clone)]
pub struct Device {
    /// Machine that runs the work.
    pub machine: Arc<dyn Machine>,
    /// Pool that memory comes from.
    pub pool: Pool,
    /// Mesh of all ranks.
    pub mesh: Mesh,
}

impl Device {
    /// A rank's device with a memory budget in bytes; address space is reserved, nothing is touched.
    pub fn new(machine: Arc<dyn Machine>, budget_bytes: u64) -> Device {
        Device::on_mesh(machine, budget_bytes, Mesh::alone())
    }

    /// Like [`Device::new`], as one rank of a mesh.
    pub fn on_mesh(machine: Arc<dyn Machine>, budget_bytes: u64, mesh: Mesh) -> Device {
        let pool = Pool::new(machine.reserve(budget_bytes), machine.profile().granule, budget_bytes);
        Device { machine, pool, mesh }
    }

    /// An uninitialised tensor.
    #[track_caller]
    pub fn empty(&self, rows: usize, cols: usize, dtype: DType, category: Category) -> Tensor {
        self.pool.alloc(rows, cols, dtype, category)
    }

    /// A tensor of zeros.
    #[track_caller]
    pub fn zeros(&self, rows: usize, cols: usize, dtype: DType, category: Category) -> Tensor {
        let tensor = self.empty(rows, cols, dtype, category);
        self.machine.zero(&tensor);
        tensor
    }

    /// A tensor with the given f32 elements, row by row (on a machine with data).
    #[track_caller]
    pub fn from_f32(&self, rows: usize, cols: usize, data: &[f32], category: Category) -> Tensor {
        assert_eq!(data.len(), rows * cols, "from_f32: {rows} x {cols}");
        let tensor = self.empty(rows, cols, DType::F32, category);
        let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.machine.write(&tensor, &bytes);
        tensor
    }

    /// A one-row tensor with the given i32 elements.
    #[track_caller]
    pub fn from_i32(&self, data: &[i32], category: Category) -> Tensor {
        let tensor = self.empty(1, data.len(), DType::I32, category);
        // Without data there is nothing to convert: plans request a million tokens a thousand times.
        let data = if self.machine.has_data() { data } else { &[] };
        let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.machine.write(&tensor, &bytes);
        tensor
    }

    /// The elements as f32, row by row; converts from bf16. Empty on a machine without data.
    #[track_caller]
    pub fn to_f32(&self, tensor: &Tensor) -> Vec<f32> {
        floats(tensor.dtype(), &self.machine.read(tensor).wait())
    }
}
