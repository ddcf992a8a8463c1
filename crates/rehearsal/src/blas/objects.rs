//! Handles and descriptors. They are unique numbers, so that destroyed objects and those of another kind are detected.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::cublaslt::sys::{
    cublasComputeType_t as Compute, cublasLtHandle_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t as Attribute, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t as Wish, cublasLtMatrixLayout_t, cublasStatus_t as Status,
};

use super::{Outcome, answer, give, invalid, refuse, unsupported};
use crate::device::{drive_all, state};
use crate::driver::current;

/// Upper bound of a product's attribute numbers.
const ATTRIBUTES: usize = 41;

/// Description of a product: the values of its attributes by number, zero-extended.
#[derive(Clone, Debug)]
pub struct Operation {
    values: [u64; ATTRIBUTES],
}

impl Operation {
    /// An attribute's value.
    pub fn get(&self, attribute: Attribute) -> u64 {
        self.values[attribute as usize]
    }

    /// Distances between the factors of adjacent groups: `CUBLASLT_MATMUL_DESC_ALPHA_BATCH_STRIDE` and `..._BETA_...`.
    pub fn factor_strides(&self) -> [u64; 2] {
        [self.values[39], self.values[40]]
    }
}

/// A column-major matrix in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The header's number of the element type.
    pub kind: u32,
    pub rows: u64,
    pub cols: u64,
    /// Elements from one column to the next.
    pub ld: i64,
}

/// Matrices whose sizes are in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLayout {
    /// The header's number of the element type.
    pub kind: u32,
    pub count: i32,
    /// Addresses of the tables of rows, columns and leading dimensions.
    pub tables: [u64; 3],
}

/// Constraints on algorithms.
#[derive(Clone, Copy, Debug)]
pub struct Preference {
    pub search: u64,
    pub workspace: u64,
    /// Allowed reduction schemes, as bits.
    pub reductions: u64,
    /// Alignments of A, B, C and D in bytes.
    pub alignments: [u64; 4],
    /// Bits of a float.
    pub waves: u64,
    pub implementations: u64,
}

/// The header's defaults.
pub const PREFERENCE: Preference = Preference {
    search: 0,
    workspace: 0,
    reductions: 7,
    alignments: [256; 4],
    waves: 0,
    implementations: u64::MAX,
};

enum Object {
    /// Made for this device.
    Handle(Option<usize>),
    Operation(Box<Operation>),
    Layout(Layout),
    Groups(GroupLayout),
    Preference(Preference),
}

static OBJECTS: Mutex<BTreeMap<u64, Object>> = Mutex::new(BTreeMap::new());

fn objects() -> MutexGuard<'static, BTreeMap<u64, Object>> {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// # Safety
/// The address is null or that of a handle.
unsafe fn create<T>(to: *mut *mut T, object: Object) -> Outcome<()> {
    let number = state().handle();
    // SAFETY: the caller's promise.
    unsafe { give(to, std::ptr::without_provenance_mut(number as usize)) }?;
    objects().insert(number, object);
    Ok(())
}

fn destroy<T>(handle: *mut T, is: fn(&Object) -> bool) -> Outcome<()> {
    let number = handle.addr() as u64;
    let mut objects = objects();
    if !objects.get(&number).is_some_and(is) {
        return invalid("no such object, or it was destroyed");
    }
    objects.remove(&number);
    Ok(())
}

/// Accesses an object of the expected kind.
fn with<T, R>(handle: *mut T, what: &str, take: impl FnOnce(&mut Object) -> Option<R>) -> Outcome<R> {
    let found = objects().get_mut(&(handle.addr() as u64)).and_then(take);
    found.map_or_else(|| invalid(format!("{what}: none, or it was destroyed")), Ok)
}

/// Checks a library handle: it belongs to the device that was current when it was made, which must be current whenever
/// it is used.
pub fn check_handle(handle: cublasLtHandle_t) -> Outcome<()> {
    let made = objects().get(&(handle.addr() as u64)).and_then(|object| match object {
        Object::Handle(device) => Some(*device),
        _ => None,
    });
    match made {
        None => {
            refuse(Status::CUBLAS_STATUS_NOT_INITIALIZED, "no handle of the library, or it was destroyed")
        }
        Some(device) if device != current() => {
            invalid(format!("the handle is of device {device:?}, current is {:?}", current()))
        }
        Some(_) => Ok(()),
    }
}

/// A copy of a product's description.
pub fn operation(handle: cublasLtMatmulDesc_t) -> Outcome<Operation> {
    with(handle, "the descriptor of the product", |object| match object {
        Object::Operation(found) => Some((**found).clone()),
        _ => None,
    })
}

/// A copy of a matrix layout.
pub fn layout(handle: cublasLtMatrixLayout_t, what: &str) -> Outcome<Layout> {
    with(handle, &format!("the layout of {what}"), |object| match object {
        Object::Layout(found) => Some(*found),
        _ => None,
    })
}

/// A copy of a grouped layout; `None` if it is of another kind.
pub fn groups(handle: cublasLtMatrixLayout_t) -> Option<GroupLayout> {
    match objects().get(&(handle.addr() as u64)) {
        Some(Object::Groups(found)) => Some(*found),
        _ => None,
    }
}

/// A copy of a preference.
pub fn preference(handle: cublasLtMatmulPreference_t) -> Outcome<Preference> {
    with(handle, "the preference", |object| match object {
        Object::Preference(found) => Some(*found),
        _ => None,
    })
}

/// Reads an attribute's value, which must have exactly the header's size.
///
/// # Safety
/// The address is null or that of `given` bytes.
unsafe fn read(buffer: *const c_void, given: usize, bytes: usize) -> Outcome<u64> {
    if buffer.is_null() || given != bytes {
        return invalid(format!("{given} bytes at {buffer:?}, where the header has {bytes}"));
    }
    let mut value = [0u8; 8];
    // SAFETY: at most eight bytes, which the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(buffer.cast::<u8>(), value.as_mut_ptr(), bytes) };
    Ok(u64::from_le_bytes(value))
}

/// Bytes of an attribute according to the header's comments; `None` if there is no such attribute.
fn size_of(attribute: u32) -> Option<usize> {
    match attribute {
        0..=7 | 15 | 22 | 26 | 31..=35 | 37 => Some(4),
        8 | 10..=14 | 17..=21 | 23 | 24 | 36 | 38..=40 => Some(8),
        25 => Some(1),
        _ => None,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtCreate(handle: *mut cublasLtHandle_t) -> Status {
    // SAFETY: the header's contract.
    answer("cublasLtCreate", unsafe { create(handle, Object::Handle(current())) })
}

/// Waits for the device, like the library.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtDestroy(handle: cublasLtHandle_t) -> Status {
    drive_all();
    answer("cublasLtDestroy", destroy(handle, |object| matches!(object, Object::Handle(_))))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescCreate(
    made: *mut cublasLtMatmulDesc_t,
    compute: u32,
    scale: u32,
) -> Status {
    let mut values = [0; ATTRIBUTES];
    values[Attribute::CUBLASLT_MATMUL_DESC_COMPUTE_TYPE as usize] = u64::from(compute);
    values[Attribute::CUBLASLT_MATMUL_DESC_SCALE_TYPE as usize] = u64::from(scale);
    // Nonzero defaults: CUBLAS_FILL_MODE_FULL, CUBLASLT_EPILOGUE_DEFAULT, and the type of absent data.
    values[Attribute::CUBLASLT_MATMUL_DESC_FILL_MODE as usize] = 2;
    values[Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE as usize] = 1;
    values[Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE as usize] = u64::from(u32::MAX);
    values[Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE as usize] = u64::from(u32::MAX);
    let known = Compute::CUBLAS_COMPUTE_16F as u32..=Compute::CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT as u32;
    let result = if known.contains(&compute) {
        // SAFETY: the header's contract.
        unsafe { create(made, Object::Operation(Box::new(Operation { values }))) }
    } else {
        invalid(format!("{compute} is no compute type (arguments in another order?)"))
    };
    answer("cublasLtMatmulDescCreate", result)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulDescDestroy(descriptor: cublasLtMatmulDesc_t) -> Status {
    let result = destroy(descriptor, |object| matches!(object, Object::Operation(_)));
    answer("cublasLtMatmulDescDestroy", result)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescSetAttribute(
    descriptor: cublasLtMatmulDesc_t,
    attribute: u32,
    buffer: *const c_void,
    bytes: usize,
) -> Status {
    let set = || {
        let Some(size) = size_of(attribute) else {
            return invalid(format!("the header has no attribute {attribute}"));
        };
        // SAFETY: the header's contract.
        let value = unsafe { read(buffer, bytes, size) }?;
        with(descriptor, "the descriptor", |object| match object {
            Object::Operation(found) => {
                found.values[attribute as usize] = value;
                Some(())
            }
            _ => None,
        })
    };
    let result = set().map_err(|mut refusal| {
        refusal.why = format!("attribute {attribute}: {}", refusal.why);
        refusal
    });
    answer("cublasLtMatmulDescSetAttribute", result)
}

/// Errors in a layout are detected when it is used, since this call has no status for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatrixLayoutCreate(
    made: *mut cublasLtMatrixLayout_t,
    kind: u32,
    rows: u64,
    cols: u64,
    ld: i64,
) -> Status {
    // SAFETY: the header's contract.
    let result = unsafe { create(made, Object::Layout(Layout { kind, rows, cols, ld })) };
    answer("cublasLtMatrixLayoutCreate", result)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatrixLayoutDestroy(layout: cublasLtMatrixLayout_t) -> Status {
    let is = |object: &Object| matches!(object, Object::Layout(_) | Object::Groups(_));
    answer("cublasLtMatrixLayoutDestroy", destroy(layout, is))
}

/// The addresses are checked when the layout is used: the library itself accepts any here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtGroupedMatrixLayoutCreate(
    made: *mut cublasLtMatrixLayout_t,
    kind: u32,
    count: c_int,
    rows: *const c_void,
    cols: *const c_void,
    ld: *const c_void,
) -> Status {
    let tables = [rows, cols, ld].map(|table| table.expose_provenance() as u64);
    // SAFETY: the header's contract.
    let result = unsafe { create(made, Object::Groups(GroupLayout { kind, count, tables })) };
    answer("cublasLtGroupedMatrixLayoutCreate", result)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulPreferenceCreate(made: *mut cublasLtMatmulPreference_t) -> Status {
    // SAFETY: the header's contract.
    answer("cublasLtMatmulPreferenceCreate", unsafe { create(made, Object::Preference(PREFERENCE)) })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulPreferenceDestroy(preference: cublasLtMatmulPreference_t) -> Status {
    let result = destroy(preference, |object| matches!(object, Object::Preference(_)));
    answer("cublasLtMatmulPreferenceDestroy", result)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    preference: cublasLtMatmulPreference_t,
    attribute: u32,
    buffer: *const c_void,
    bytes: usize,
) -> Status {
    let first = Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES as u32;
    let set = || {
        let size = match attribute {
            0 | 3 | 5..=9 => 4,
            // Averages of groups have eight bytes, as the library itself reports, not four as in its header's comment.
            1 | 12..=15 => 8,
            _ => return invalid("the header has no such attribute"),
        };
        // SAFETY: the header's contract.
        let value = unsafe { read(buffer, bytes, size) }?;
        if (5..=8).contains(&attribute) && !value.is_power_of_two() {
            return invalid(format!("an alignment of {value} bytes (the documents are silent)"));
        }
        if attribute == 9 && value != 0 {
            return unsupported("the rehearsal does not know waves");
        }
        with(preference, "the preference", |object| {
            let Object::Preference(found) = object else { return None };
            match attribute {
                0 => found.search = value,
                1 => found.workspace = value,
                3 => found.reductions = value,
                9 => found.waves = value,
                12 => found.implementations = value,
                13..=15 => {}
                side => found.alignments[(side - first) as usize] = value,
            }
            Some(())
        })
    };
    let result = set().map_err(|mut refusal| {
        refusal.why = format!("attribute {attribute}: {}", refusal.why);
        refusal
    });
    answer("cublasLtMatmulPreferenceSetAttribute", result)
}
