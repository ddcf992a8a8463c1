//! Where tensors lie, for those who read and those who write.

use fathom_tensor::Tensor;

/// Where a tensor that is read begins.
#[track_caller]
pub fn input(tensor: &Tensor) -> u64 {
    tensor.address()
}

/// Where a tensor that is written begins.
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
