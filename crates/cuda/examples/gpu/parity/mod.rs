//! Compares every operation on the device with the CPU machine: the same program on both, equal within rounding.

mod attention;
mod experts;
mod narrow;
mod plain;
mod ring;
mod updates;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_cuda::libs::{Search, probe};
use fathom_cuda::{Calls, Cuda};
use fathom_tensor::{Category, DType, Device, Machine, Tensor};

use super::Lines;

/// A machine and test data that does not depend on it.
pub struct Bed {
    /// The machine.
    pub device: Device,
    /// Types of activations and weights.
    pub dtype: DType,
}

/// Memory budget of each machine.
const BUDGET: u64 = 2 << 30;

impl Bed {
    /// The machine.
    pub fn machine(&self) -> &dyn Machine {
        self.device.machine.as_ref()
    }

    /// Pseudorandom numbers between -1 and 1.
    pub fn numbers(seed: u64, count: usize) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// A tensor of such numbers.
    pub fn random(&self, seed: u64, [rows, cols]: [usize; 2], dtype: DType) -> Tensor {
        let wide = self.device.from_f32(rows, cols, &Bed::numbers(seed, rows * cols), Category::Data);
        if dtype == DType::F32 {
            return wide;
        }
        let narrow = self.empty([rows, cols], dtype);
        self.machine().copy(&wide, &narrow);
        narrow
    }

    /// A random tensor of the bed's type.
    pub fn data(&self, seed: u64, shape: [usize; 2]) -> Tensor {
        self.random(seed, shape, self.dtype)
    }

    /// A random f32 tensor.
    pub fn wide(&self, seed: u64, shape: [usize; 2]) -> Tensor {
        self.random(seed, shape, DType::F32)
    }

    /// An uninitialised tensor.
    pub fn empty(&self, [rows, cols]: [usize; 2], dtype: DType) -> Tensor {
        self.device.empty(rows, cols, dtype, Category::Data)
    }

    /// An f32 tensor of zeros.
    pub fn zeros(&self, [rows, cols]: [usize; 2]) -> Tensor {
        self.device.zeros(rows, cols, DType::F32, Category::Data)
    }

    /// An i32 tensor.
    pub fn ints(&self, [rows, cols]: [usize; 2], value: impl Fn(usize) -> i32) -> Tensor {
        let values: Vec<i32> = (0..rows * cols).map(value).collect();
        self.device.from_i32(&values, Category::Data).reshape(rows, cols)
    }

    /// Scratch for an operation.
    pub fn scratch(&self, op: &fathom_tensor::OpDesc) -> Tensor {
        let bytes = self.machine().profile().workspace(op).max(1);
        self.device.empty(1, bytes as usize, DType::U8, Category::Workspace)
    }

    /// The elements of any type as f64.
    fn values(&self, tensor: &Tensor) -> Vec<f64> {
        match tensor.dtype() {
            DType::I32 => {
                let bytes = self.machine().read(tensor).wait();
                bytes.as_chunks::<4>().0.iter().map(|b| f64::from(i32::from_le_bytes(*b))).collect()
            }
            _ => self.device.to_f32(tensor).into_iter().map(f64::from).collect(),
        }
    }
}

/// Results of an operation.
pub type Made = Vec<(&'static str, Tensor)>;

/// One operation to compare.
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// Largest difference allowed, relative to the largest number; in f32 and in bf16.
    pub bounds: [f64; 2],
    /// The same program for both machines.
    pub run: fn(&Bed) -> Made,
}

/// f32 sums in a different order, and results rounded to bf16.
pub const ROUNDED: [f64; 2] = [2e-5, 1e-2];
/// The same operations in the same order.
pub const EXACT: [f64; 2] = [1e-6, 4e-3];

/// The largest difference relative to the largest number; `None` unless both have the same non-finite elements.
fn difference(found: &[f64], expected: &[f64]) -> Option<f64> {
    let most = expected.iter().filter(|x| x.is_finite()).fold(1e-30f64, |most, x| most.max(x.abs()));
    let mut worst = 0f64;
    for (x, y) in found.iter().zip(expected) {
        if !x.is_finite() || !y.is_finite() {
            let same = x == y || (x.is_nan() && y.is_nan());
            if !same {
                return None;
            }
            continue;
        }
        worst = worst.max((x - y).abs() / most);
    }
    (found.len() == expected.len()).then_some(worst)
}

/// Libraries that calls are counted for, in the order of [`Watch::counts`].
const LIBRARIES: [&str; 4] = ["cuBLASLt", "cuDNN", "FP8 units", "cuBLASLt's groups"];

/// Cases that a library must have computed on Hopper, regardless of results; attention and experts only in bf16, and
/// experts only if cuBLAS is new enough.
const BY: [(&str, &str); 24] = [
    ("matmul", "cuBLASLt"),
    ("grouped products", "cuBLASLt's groups"),
    ("grouped products, uneven", "cuBLASLt's groups"),
    ("grouped products in parts", "cuBLASLt's groups"),
    ("FP8 by tensor, current", "FP8 units"),
    ("FP8 by tensor, delayed", "FP8 units"),
    ("FP8 by blocks of 128", "FP8 units"),
    ("attention, one document", "cuDNN"),
    ("attention, 1024 tokens", "cuDNN"),
    ("attention, 1024 tokens by groups of heads", "cuDNN"),
    ("attention, heads of 96", "cuDNN"),
    ("attention, heads of 64", "cuDNN"),
    ("attention, window", "cuDNN"),
    ("attention, documents", "cuDNN"),
    ("ring of four", "cuDNN"),
    ("ring of four, documents", "cuDNN"),
    ("gathered keys", "cuDNN"),
    ("gathered keys, documents", "cuDNN"),
    ("ring of four, window of less than a chunk", "cuDNN"),
    ("ring of four, window of more, heads of 64", "cuDNN"),
    ("ring of four, documents and window", "cuDNN"),
    ("ring of four, small chunks and window", "cuDNN"),
    ("gathered keys, window", "cuDNN"),
    ("gathered keys, documents and window", "cuDNN"),
];

/// Counts the calls that each library has computed on a device.
struct Watch {
    cuda: Arc<Cuda>,
    before: [Calls; 4],
}

impl Watch {
    fn counts(cuda: &Cuda) -> [Calls; 4] {
        let [products, attention] = cuda.calls();
        [products, attention, cuda.narrow_calls(), cuda.grouped_calls()]
    }

    fn begin(cuda: &Arc<Cuda>) -> Watch {
        Watch { cuda: cuda.clone(), before: Watch::counts(cuda) }
    }

    /// Prints a line if a particular library must compute the case.
    fn end(&self, bed: &Bed, case: &Case, lines: &mut Lines) {
        let Some((_, library)) = BY.iter().find(|(name, _)| *name == case.name) else { return };
        let Some(index) = LIBRARIES.iter().position(|name| name == library) else { return };
        let of_experts = *library == "cuBLASLt's groups";
        if (*library == "cuDNN" || of_experts) && bed.dtype == DType::F32 {
            return;
        }
        if of_experts && !self.cuda.has_groups() {
            return;
        }
        let by = Watch::counts(&self.cuda)[index].since(self.before[index], library);
        let ok = by == *library || self.cuda.driver().facts().capability != (9, 0);
        lines.say(format!("{} {:?}, by whom", case.name, bed.dtype), ok, by);
    }
}

/// Runs every operation on the GPU and on the CPU.
pub fn run(lines: &mut Lines) {
    let found = probe(&Search::from_environment(), true);
    match Cuda::open_alone(&found, 0) {
        Ok(cuda) => {
            let cuda = Arc::new(cuda);
            let types = &[DType::F32, DType::Bf16];
            compare([cuda.clone(), Arc::new(Cpu::new(0, None))], types, Some(&cuda), lines);
            cuda.refusals().into_iter().for_each(|line| lines.say("refused", true, line));
        }
        Err(error) => lines.say("device", false, error.to_string()),
    }
}

/// Runs every operation on both machines in these types; the first machine may be watched. A case that panics is a
/// failed line; a device that has failed permanently ends the run.
fn compare(machines: [Arc<dyn Machine>; 2], types: &[DType], watched: Option<&Arc<Cuda>>, lines: &mut Lines) {
    for dtype in types.iter().copied() {
        let index = usize::from(dtype != DType::F32);
        let [ours, theirs] =
            machines.each_ref().map(|machine| Bed { device: Device::new(machine.clone(), BUDGET), dtype });
        let cases =
            [plain::CASES, updates::CASES, narrow::CASES, experts::CASES, attention::CASES, ring::CASES];
        for case in cases.into_iter().flatten() {
            let watch = watched.map(Watch::begin);
            let ran = attempt(|| one(case, index, [&ours, &theirs], lines));
            watch.iter().for_each(|watch| watch.end(&ours, case, lines));
            if let Err(why) = ran {
                lines.say(format!("{} {dtype:?}", case.name), false, why);
                let answers = || ours.device.to_f32(&ours.zeros([1, 1]));
                if let Err(why) = attempt(answers) {
                    return lines.say("the device", false, format!("it answers no more: {why}"));
                }
            }
        }
    }
}

/// The result of a call, or its panic message.
fn attempt<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    // Values made before a panic are not used again.
    std::panic::catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or("a panic".into())
    })
}

/// Runs one operation on both machines.
fn one(case: &Case, index: usize, [ours, theirs]: [&Bed; 2], lines: &mut Lines) {
    let (made, expected) = ((case.run)(ours), (case.run)(theirs));
    for ((what, tensor), (_, other)) in made.iter().zip(&expected) {
        let worst = difference(&ours.values(tensor), &theirs.values(other));
        let bound = case.bounds[index];
        let ok = worst.is_some_and(|worst| worst <= bound);
        let text = worst.map_or("not finite where the other is".into(), |worst| {
            format!("{worst:.1e} of the largest, bound {bound:.0e}")
        });
        lines.say(format!("{} {what} {:?}", case.name, ours.dtype), ok, text);
    }
}

#[cfg(test)]
mod tests {
    use fathom_cpu::isa::Isa;

    use super::*;

    #[test]
    fn panics_are_words() {
        assert_eq!(attempt(|| 3), Ok(3));
        let found: Result<(), String> = attempt(|| panic!("norm: {} rows", 3));
        assert_eq!(found, Err("norm: 3 rows".into()));
    }

    /// Checks that the program runs on a machine, and that machines that compute correctly pass.
    #[test]
    fn two_instruction_sets_of_a_processor_agree() {
        let mut lines = Lines::default();
        let machines: [Arc<dyn Machine>; 2] =
            [Arc::new(Cpu::new(2, None)), Arc::new(Cpu::new(1, Some(Isa::Portable)))];
        compare(machines, &[DType::F32, DType::Bf16], None, &mut lines);
        assert_eq!(lines.failed, 0);
    }

    /// The real machine with its calls of the driver, cuBLASLt and cuDNN, on the simulated GPU.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_pretended_gpu_and_the_processor_agree() {
        if !fathom_rehearsal::is_possible() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        fathom_rehearsal::install(folder.path()).unwrap();
        let search = Search { named: vec![folder.path().to_path_buf()], ..Search::default() };
        let found = probe(&search, true);
        assert_eq!(found.why_not, None);
        let cuda = Arc::new(Cuda::open_alone(&found, 0).unwrap());
        let mut lines = Lines::default();
        compare([cuda.clone(), Arc::new(Cpu::new(1, None))], &[DType::Bf16], Some(&cuda), &mut lines);
        assert_eq!(lines.failed, 0);
        let refusals = cuda.refusals();
        assert!(refusals.iter().all(|line| line.contains("sm_100")), "{refusals:?}");
    }
}
