//! Attention by cuDNN: graphs of operations that it runs as one kernel, built here and cached by shape.

mod attention;
mod call;
mod case;
mod desc;
mod dnn;
mod graph;
mod plan;

pub use crate::blas::Element;
pub use call::Call;
pub use case::{Case, Strides, uid};
pub use dnn::{Attend, Cudnn};
pub use plan::{Plan, Target};
