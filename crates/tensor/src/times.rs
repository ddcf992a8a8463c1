//! Seconds of a step by what they are spent on.

use std::ops::{Add, AddAssign, Mul, Sub};

use crate::tick::TimeKind;

/// Seconds by category.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Times {
    /// Matrix products.
    pub matmul_s: f64,
    /// Attention, both directions.
    pub attention_s: f64,
    /// Operations bound by memory.
    pub memory_s: f64,
    /// The disk's work, overlapped with the compute.
    pub disk_s: f64,
    /// The host link's work, overlapped with the compute.
    pub host_s: f64,
    /// Waits at retire points for the disk or the host link.
    pub stall_s: f64,
    /// Work of the lines within a node, both directions, overlapped with the compute.
    pub node_s: f64,
    /// Work of the lines between nodes.
    pub network_s: f64,
    /// Waits at retire points for other ranks.
    pub exposed_s: f64,
}

impl Times {
    /// Seconds that pass: compute and waiting. The overlapped work of disk, host link and lines is not included.
    pub fn elapsed_s(&self) -> f64 {
        self.matmul_s + self.attention_s + self.memory_s + self.stall_s + self.exposed_s
    }

    pub(crate) fn of(seconds: impl Fn(TimeKind) -> f64) -> Times {
        Times {
            matmul_s: seconds(TimeKind::MatMul),
            attention_s: seconds(TimeKind::Attention),
            memory_s: seconds(TimeKind::Memory),
            disk_s: seconds(TimeKind::Disk),
            host_s: seconds(TimeKind::Host),
            stall_s: seconds(TimeKind::Stall),
            node_s: seconds(TimeKind::Node),
            network_s: seconds(TimeKind::Network),
            exposed_s: seconds(TimeKind::Exposed),
        }
    }

    pub(crate) fn get(&self, part: TimeKind) -> f64 {
        match part {
            TimeKind::MatMul => self.matmul_s,
            TimeKind::Attention => self.attention_s,
            TimeKind::Memory => self.memory_s,
            TimeKind::Disk => self.disk_s,
            TimeKind::Host => self.host_s,
            TimeKind::Stall => self.stall_s,
            TimeKind::Node => self.node_s,
            TimeKind::Network => self.network_s,
            TimeKind::Exposed => self.exposed_s,
        }
    }
}

impl Add for Times {
    type Output = Times;
    fn add(self, other: Times) -> Times {
        Times::of(|part| self.get(part) + other.get(part))
    }
}

impl AddAssign for Times {
    fn add_assign(&mut self, other: Times) {
        *self = *self + other;
    }
}

impl Sub for Times {
    type Output = Times;
    fn sub(self, other: Times) -> Times {
        Times::of(|part| self.get(part) - other.get(part))
    }
}

impl Mul<f64> for Times {
    type Output = Times;
    fn mul(self, factor: f64) -> Times {
        Times::of(|part| self.get(part) * factor)
    }
}
