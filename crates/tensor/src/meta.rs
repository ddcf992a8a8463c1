//! The machine without data: it accepts every call and does nothing, so a program run on it is its own plan.

use crate::machine::*;
use crate::share::{Reader, Share};
use crate::{Profile, Tensor};

/// Shapes and no data, with another machine's profile.
pub struct Meta {
    profile: Profile,
}

impl Meta {
    /// Stands in for the machine with this profile.
    pub fn new(profile: Profile) -> Meta {
        Meta { profile }
    }
}

struct Nowhere;

impl Arena for Nowhere {
    fn base(&self) -> u64 {
        0
    }
}

impl Machine for Meta {
    fn profile(&self) -> &Profile {
        &self.profile
    }
    fn reserve(&self, _: u64) -> Box<dyn Arena> {
        Box::new(Nowhere)
    }
    fn has_data(&self) -> bool {
        false
    }
    fn read(&self, src: &Tensor) -> InFlight {
        InFlight::new(src, Vec::new)
    }
    fn share(&self, src: &Tensor) -> (Share, Reader) {
        let (share, pass) = Share::begin(src);
        (share, Reader::new(src, pass, |_, _, _| {}))
    }
    fn matmul(&self, op: &MatMul<'_>, _: &Tensor) {
        op.sizes();
    }
    fn write(&self, _: &Tensor, _: &[u8]) {}
    fn fill(&self, _: &[Vec<Tensor>], _: &(dyn Fn(usize, &mut [&mut [u8]]) + Sync)) {}
    fn zero(&self, _: &Tensor) {}
    fn copy(&self, _: &Tensor, _: &Tensor) {}
    fn add(&self, _: &Tensor, _: &Tensor, _: &Tensor) {}
    fn scale(&self, _: &Tensor, _: f32, _: &Tensor) {}
    fn softcap(&self, _: &Tensor, _: f32) {}
    fn add_bias(&self, _: &Tensor, _: &Tensor) {}
    fn bias_backward(&self, _: &Tensor, _: &Tensor) {}
    fn norm(&self, _: &Norm<'_>) {}
    fn norm_backward_input(&self, _: &NormBackward<'_>, _: &Tensor, _: bool) {}
    fn norm_backward_weight(&self, _: &NormBackward<'_>, _: &Tensor, _: Option<&Tensor>) {}
    fn activate(&self, _: &Activate<'_>) {}
    fn activate_backward(&self, _: &ActivateBackward<'_>) {}
    fn rope_table(&self, _: &RopeTable<'_>) {}
    fn rope(&self, _: &Rope<'_>) {}
    fn embed(&self, _: &Embed<'_>) {}
    fn embed_backward(&self, _: &Tensor, _: &Tensor, _: f32, _: &Tensor) {}
    fn attention(&self, _: &Attention<'_>, _: &Tensor) {}
    fn attention_backward(&self, _: &AttentionBackward<'_>, _: &Tensor) {}
    fn cross_entropy(&self, _: &CrossEntropy<'_>) {}
    fn sum(&self, _: &Tensor, _: &Tensor) {}
    fn sum_squares(&self, _: &Tensor, _: &Tensor) {}
    fn step_scale(&self, _: &StepScale<'_>) {}
    fn adamw(&self, _: &AdamW<'_>) {}
}
