//! Buffers of a product, as they are given.

use std::ffi::c_void;

use super::heuristic::Algorithm;
use super::operands::Matrix;
use super::product::Scalar;
use super::{Outcome, invalid};
use crate::device::{check_memory, state};

/// Bytes of memory: pieces of one length at equal distances.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) piece: u64,
    pub(super) distance: u64,
    pub(super) count: u64,
}

impl Span {
    pub(super) fn of(matrix: &Matrix, start: u64) -> Span {
        let size = matrix.kind.size();
        let [rows, ld, cols] = [matrix.rows, matrix.ld, matrix.cols].map(|number| number as u64);
        Span { start, piece: rows * size, distance: ld * size, count: cols }
    }

    pub(super) fn bytes(start: u64, bytes: u64) -> Span {
        Span { start, piece: bytes, distance: bytes, count: 1 }
    }

    /// True if the spans share a byte; pieces of one may lie between those of the other.
    pub(super) fn overlaps(&self, other: &Span) -> bool {
        let (mut one, mut two) = (0, 0);
        while one < self.count && two < other.count {
            let left = self.start + one * self.distance;
            let right = other.start + two * other.distance;
            if left + self.piece <= right {
                one += ((right - left - self.piece) / self.distance).max(1);
            } else if right + other.piece <= left {
                two += ((left - right - other.piece) / other.distance).max(1);
            } else {
                return true;
            }
        }
        false
    }
}

/// Arguments of a call in addition to descriptors.
#[derive(Clone, Copy)]
pub(super) struct BufferArgs {
    /// Addresses of A, B, C and D.
    pub addresses: [u64; 4],
    pub workspace: u64,
    pub workspace_bytes: u64,
}

/// Reads a host scalar, or keeps a device scalar's address.
///
/// # Safety
/// The address is null, or that of an f32 on the side given by the product's pointer mode.
pub(super) unsafe fn scalar(name: &str, from: *const c_void, on_device: bool) -> Outcome<Scalar> {
    let address = from.expose_provenance() as u64;
    if address == 0 {
        return invalid(format!("{name} is null"));
    }
    let device = check_memory(address, 4);
    if on_device {
        return match device {
            Ok(()) if address.is_multiple_of(4) => Ok(Scalar::Device(address)),
            Ok(()) => invalid(format!("{name} at {address:#x} is not aligned")),
            Err(why) => invalid(format!("{name}, in pointer mode device: {why}")),
        };
    }
    let pinned = state().pinned.range(..=address).next_back().is_some_and(|(at, has)| address < at + has);
    if device.is_ok() && !pinned {
        return invalid(format!("{name} is a device's memory, and the pointer mode is host"));
    }
    // SAFETY: the caller's promise.
    Ok(Scalar::Host(unsafe { from.cast::<f32>().read_unaligned() }))
}

impl BufferArgs {
    /// Checks that the workspace is accessible and as large as the algorithm requires.
    pub(super) fn check_workspace(&self, chosen: &Algorithm) -> Outcome<()> {
        let BufferArgs { workspace, workspace_bytes, .. } = *self;
        if workspace_bytes < chosen.workspace {
            let why = format!(
                "a workspace of {workspace_bytes} bytes, and the algorithm wants {}",
                chosen.workspace
            );
            return invalid(why);
        }
        if workspace == 0 && workspace_bytes > 0 {
            return invalid(format!("a workspace of {workspace_bytes} bytes at null"));
        }
        if !workspace.is_multiple_of(256) {
            return invalid(format!("the workspace at {workspace:#x} must be 256-byte aligned"));
        }
        if workspace_bytes > 0 {
            check_memory(workspace, workspace_bytes)
                .or_else(|why| invalid(format!("the workspace: {why}")))?;
        }
        Ok(())
    }
}
