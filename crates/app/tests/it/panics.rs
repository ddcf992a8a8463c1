//! Panics of operations and allocations reach callers of the crate as errors.

use fathom_app::generate::Request;
use fathom_app::{Error, Machine, Silent, caught, generate, models, train};
use fathom_base::{Flow, Sampling};
use fathom_tensor::{Category, DType};
use fathom_train::recipe::{Machine as Asked, MachineKind};

use crate::small;

#[test]
fn no_memory_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let job = small(folder.path(), &["stage.0.steps=1"]);
    train(&job, &train::Order::default(), &Silent).unwrap();
    let with = |memory_bytes| {
        let asked = Asked { kind: MachineKind::Cpu, memory_bytes: Some(memory_bytes), ..Asked::default() };
        Machine::new(asked, &Silent)
    };
    // Too little memory for the weights, and enough for the weights but not for keys and values.
    let none = models::open(&job.folder, None, &with(1 << 10), &Silent);
    assert!(matches!(none.err(), Some(Error::OutOfMemory(_))));
    let model = models::open(&job.folder, None, &with(1 << 20), &Silent).unwrap();
    let ask = |words: usize| {
        let (prompt, sampling) = ("the old river ".repeat(words), Sampling::default());
        let request = Request { prompt, sampling, max_tokens: Some(2), context_tokens: Some(1 << 20) };
        generate(&model, &request, &mut |_| Flow::Continue)
    };
    assert!(matches!(ask(4000), Err(Error::OutOfMemory(_))));
    // The memory was released: the same model still answers.
    assert!(!ask(1).unwrap().ids.is_empty());
}

#[test]
fn mathematics_that_refuses_is_an_error() {
    let device = Machine::of_kind(MachineKind::Cpu, 1, &Silent).cpu().unwrap();
    let ended = caught(|| {
        let a = device.empty(2, 3, DType::F32, Category::Data);
        let b = device.empty(2, 4, DType::F32, Category::Data);
        device.machine.copy(&a, &b);
        Ok(())
    });
    let Err(Error::Panicked(message)) = ended else { panic!("{ended:?}") };
    assert!(message.contains('3') && message.contains('4'), "{message}");
}
