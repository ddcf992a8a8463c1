//! Machines with data and no operations: what spilling needs from a CPU, and a machine whose tensors the host cannot
//! reach.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::attend::{Attention, AttentionBackward, SinksBackward};
use crate::experts::*;
use crate::in_flight::InFlight;
use crate::machine::*;
use crate::narrow_matmul::NarrowMatMul;
use crate::scan::*;
use crate::share::{Reader, Share};
use crate::spill::{Copies, HostMemory, Options, PAGE, Region};
use crate::{Arena, Device, Dropout, MatMul, Meta, Profile, Tensor};

/// Memory of this process.
struct Plain {
    profile: Profile,
    copies: Arc<FencedMachine>,
}

/// Copies of a machine whose pool the host can reach up to some distance from its base.
pub struct FencedMachine {
    host: HostMemory,
    base: AtomicU64,
    reach: u64,
    /// Copies so far.
    pub count: AtomicU64,
    /// Message that copies panic with.
    pub fault: Mutex<Option<String>>,
}

/// The CPU's granule, so that tensors begin at pages.
pub fn profile() -> Profile {
    Profile { granule: PAGE, ..Profile::portable(1) }
}

/// A device with data, reachable up to `reach` bytes from the pool's base.
pub fn reaching(reach: u64, budget: u64) -> (Device, Arc<FencedMachine>) {
    // SAFETY: addresses of the machine below are pointers into its arena.
    let host = unsafe { HostMemory::new() };
    let (base, count, fault) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(None));
    let copies = Arc::new(FencedMachine { host, base, reach, count, fault });
    let machine = Plain { profile: profile(), copies: copies.clone() };
    (Device::new(Arc::new(machine), budget), copies)
}

/// A device with data.
pub fn plain(budget: u64) -> Device {
    reaching(u64::MAX, budget).0
}

/// A device of whose memory the host can reach only the staging buffers.
pub fn fenced(options: &Options, budget: u64) -> (Device, Arc<FencedMachine>) {
    let (count, bytes) = options.staging();
    reaching(count as u64 * bytes, budget)
}

/// A device without data.
pub fn meta(budget: u64) -> Device {
    Device::new(Arc::new(Meta::new(profile())), budget)
}

struct Memory {
    _words: Vec<u64>,
    base: u64,
}

impl Arena for Memory {
    fn base(&self) -> u64 {
        self.base
    }
}

// SAFETY: addresses are pointers into the arena, which lives as long as the pool and so as long as any of its tensors.
unsafe impl Copies for FencedMachine {
    fn host(&self, address: u64) -> Option<*mut u8> {
        let distance = address - self.base.load(Ordering::Relaxed);
        self.host.host(address).filter(|_| distance < self.reach)
    }

    unsafe fn fetch(&self, from: &Region, at: usize, into: &mut [u8]) {
        self.counted();
        // SAFETY: the caller's promise.
        unsafe { self.host.fetch(from, at, into) }
    }

    unsafe fn store(&self, into: &Region, at: usize, from: &[u8]) {
        self.counted();
        // SAFETY: the caller's promise.
        unsafe { self.host.store(into, at, from) }
    }
}

impl FencedMachine {
    fn counted(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let fault = self.fault.lock().unwrap().clone();
        if let Some(message) = fault {
            panic!("{message}");
        }
    }
}

impl Machine for Plain {
    fn profile(&self) -> &Profile {
        &self.profile
    }
    fn reserve(&self, bytes: u64) -> Box<dyn Arena> {
        let mut words = vec![0u64; ((bytes + PAGE) / 8) as usize];
        let base = (words.as_mut_ptr().expose_provenance() as u64).next_multiple_of(PAGE);
        self.copies.base.store(base, Ordering::Relaxed);
        Box::new(Memory { _words: words, base })
    }
    fn has_data(&self) -> bool {
        true
    }
    fn copies(&self) -> Option<Arc<dyn Copies>> {
        Some(self.copies.clone())
    }
    fn write(&self, dst: &Tensor, bytes: &[u8]) {
        assert_eq!(bytes.len() as u64, dst.bytes());
        // SAFETY: the tensor lives and this thread alone uses it: it is not in flight, or `address` panics.
        unsafe { self.copies.host.store(&Region::of(dst), 0, bytes) }
    }
    fn read(&self, src: &Tensor) -> InFlight {
        let mut bytes = vec![0; src.bytes() as usize];
        // SAFETY: as in `write`.
        unsafe { self.copies.host.fetch(&Region::of(src), 0, &mut bytes) }
        InFlight::new(src, move || bytes)
    }
    fn zero(&self, dst: &Tensor) {
        self.write(dst, &vec![0; dst.bytes() as usize]);
    }
    fn fill(&self, _: &[Vec<Tensor>], _: &(dyn Fn(usize, &mut [&mut [u8]]) + Sync)) {}
    fn share(&self, src: &Tensor) -> (Share, Reader) {
        let (share, pass) = Share::begin(src);
        (share, Reader::new(src, pass, |_, _, _| {}))
    }
    fn copy(&self, _: &Tensor, _: &Tensor) {}
    fn add(&self, _: &Tensor, _: &Tensor, _: &Tensor) {}
    fn multiply(&self, _: &Tensor, _: &Tensor, _: &Tensor) {}
    fn rsqrt(&self, _: &Tensor, _: &Tensor) {}
    fn scale(&self, _: &Tensor, _: f32, _: &Tensor) {}
    fn softcap(&self, _: &Tensor, _: f32) {}
    fn add_bias(&self, _: &Tensor, _: &Tensor) {}
    fn bias_backward(&self, _: &Tensor, _: &Tensor) {}
    fn matmul(&self, _: &MatMul<'_>, _: &Tensor) {}
    fn narrow_matmul(&self, _: &NarrowMatMul<'_>, _: &Tensor) {}
    fn largest(&self, _: &Tensor, _: &Tensor) {}
    fn norm(&self, _: &Norm<'_>) {}
    fn norm_backward_input(&self, _: &NormBackward<'_>, _: &Tensor, _: bool) {}
    fn norm_backward_weight(&self, _: &NormBackward<'_>, _: &Tensor, _: Option<&Tensor>) {}
    fn activate(&self, _: &Activate<'_>) {}
    fn activate_backward(&self, _: &ActivateBackward<'_>) {}
    fn rope_table(&self, _: &RopeTable<'_>) {}
    fn rope(&self, _: &Rope<'_>) {}
    fn embed(&self, _: &Embed<'_>) {}
    fn embed_backward(&self, _: &Tensor, _: &Tensor, _: f32, _: &Tensor, _: Option<usize>) {}
    fn route(&self, _: &Route<'_>) {}
    fn route_backward(&self, _: &RouteBackward<'_>) {}
    fn router_losses(&self, _: &RouterLosses<'_>) {}
    fn count_experts(&self, _: &Tensor, _: &Tensor) {}
    fn limit_experts(&self, _: &LimitExperts<'_>) {}
    fn balance_bias(&self, _: &BalanceBias<'_>) {}
    fn dispatch(&self, _: &Dispatch<'_>) {}
    fn grouped_matmul(&self, _: &GroupedMatMul<'_>, _: &Tensor) {}
    fn grouped_weight(&self, _: &GroupedWeight<'_>, _: &Tensor) {}
    fn combine(&self, _: &Combine<'_>) {}
    fn combine_backward(&self, _: &CombineBackward<'_>) {}
    fn attention(&self, _: &Attention<'_>, _: &Tensor) {}
    fn attention_backward(&self, _: &AttentionBackward<'_>, _: &Tensor) {}
    fn sinks_backward(&self, _: &SinksBackward<'_>) {}
    fn conv(&self, _: &Conv<'_>) {}
    fn conv_backward(&self, _: &ConvBackward<'_>) {}
    fn gated_norm(&self, _: &GatedNorm<'_>) {}
    fn gated_norm_backward(&self, _: &GatedNormBackward<'_>, _: &Tensor) {}
    fn ssd(&self, _: &Ssd<'_>, _: &Tensor) {}
    fn ssd_backward(&self, _: &SsdBackward<'_>, _: &Tensor) {}
    fn ssd_ends(&self, _: &SsdEnds<'_>, _: &Tensor) {}
    fn ssd_begins(&self, _: &SsdBegins<'_>, _: &Tensor) {}
    fn ssd_advance(&self, _: &Tensor, _: &Tensor, _: &Tensor) {}
    fn delta_ends(&self, _: &DeltaEnds<'_>, _: &Tensor) {}
    fn delta_begins(&self, _: &DeltaBegins<'_>, _: &Tensor) {}
    fn delta_advance(&self, _: &DeltaAdvance<'_>) {}
    fn delta(&self, _: &Delta<'_>, _: &Tensor) {}
    fn delta_backward(&self, _: &DeltaBackward<'_>, _: &Tensor) {}
    fn jitter(&self, _: &Tensor, _: &Tensor, _: &Tensor) {}
    fn dropout(&self, _: &Tensor, _: &Tensor, _: Dropout) {}
    fn cross_entropy(&self, _: &CrossEntropy<'_>) {}
    fn divergence(&self, _: &crate::Divergence<'_>) {}
    fn row_distance(&self, _: &crate::RowDistance<'_>) {}
    fn sum(&self, _: &Tensor, _: &Tensor) {}
    fn sum_squares(&self, _: &Tensor, _: &Tensor) {}
    fn step_scale(&self, _: &StepScale<'_>) {}
    fn adamw(&self, _: &AdamW<'_>) {}
    fn pack(&self, _: &crate::Pack<'_>) {}
    fn unpack(&self, _: &crate::Unpack<'_>) {}
}
