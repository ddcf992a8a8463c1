//! Attention by cuDNN: graphs of operations that it runs as one kernel, built here and cached by shape.

mod attention;
mod case;
mod desc;
mod dnn;
mod graph;
mod plan;

pub use crate::blas::Element;
pub use case::{Case, Strides, uid};
pub use dnn::{Attend, Call, Cudnn};
pub use plan::{Plan, Target};
