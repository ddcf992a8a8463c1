//! Calls of the driver, cuBLASLt and cuDNN, looked up by name in the very file that [`crate::libs::probe`] opened and
//! checked. Types and constants come from the bindings below, whose own functions would open a library by its bare
//! name: a different copy, if the system has one.
#![allow(unsafe_code)]
// Names are those of the libraries' headers.
#![allow(non_snake_case)]

pub mod blas;
pub mod dnn;
pub mod driver;
pub mod groups;

use std::ffi::c_void;

use crate::libs::{Library, symbol};

/// Defines functions of a library, each looked up once.
macro_rules! calls {
    ($library:ident: $(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            #[allow(clippy::too_many_arguments)]
            pub unsafe fn $name($($argument: $type),*) -> $result {
                type Call = unsafe extern "C" fn($($type),*) -> $result;
                static CALL: std::sync::OnceLock<Call> = std::sync::OnceLock::new();
                let call = CALL.get_or_init(|| {
                    let address = super::address(crate::libs::Library::$library, stringify!($name));
                    // SAFETY: the library has a function of this name, whose signature is that of its headers.
                    unsafe { std::mem::transmute::<*mut std::ffi::c_void, Call>(address) }
                });
                // SAFETY: the caller's promise.
                unsafe { call($($argument),*) }
            }
        )*
    };
}
use calls;

/// # Panics
/// If the library is not open, or lacks this function.
fn address(library: Library, name: &str) -> *mut c_void {
    symbol(library, name).unwrap_or_else(|why| panic!("{}: {name}: {why}", library.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "cuBLASLt: cublasLtCreate: not opened")]
    fn nothing_is_called_that_was_not_looked_for() {
        address(Library::CublasLt, "cublasLtCreate");
    }
}
