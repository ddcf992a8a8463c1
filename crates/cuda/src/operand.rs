//! Addresses of tensors that are read or written.

use fathom_tensor::Tensor;

/// Address of a tensor to read.
#[track_caller]
pub fn input(tensor: &Tensor) -> u64 {
    tensor.address()
}

/// Address of a tensor to write.
///
/// # Panics
/// If another thread is reading the tensor.
#[track_caller]
pub fn output(tensor: &Tensor) -> u64 {
    assert!(
        !tensor.is_shared(),
        "{tensor:?} would be written while another thread reads it; end its share first"
    );
    tensor.address()
}
