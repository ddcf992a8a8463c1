//! An in-memory reference model for a step's micro-batches, and the pass over them before the step learns.
//!
//! The reference is a frozen copy of the run's initial weights, or the base of an adapter, which takes no memory. Its
//! log-probabilities have the form of a column stored with the tokens, so objectives do not depend on their origin. A
//! copy may follow the policy (TR-DPO: Gorbatovski and others, 2024).

use std::rc::Rc;

use fathom_grad::Params;
use fathom_model::Model;

/// The reference model that a step runs, for plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refers {
    /// None: micro-batches have everything already.
    #[default]
    Not,
    /// A frozen copy of the initial weights.
    Copy,
    /// The policy without its adapter.
    AdapterOff,
}

/// Update of a copy: every `steps` steps, `reference <- alpha policy + (1 - alpha) reference`; with alpha 1 it becomes
/// the policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sync {
    /// Weight of the policy.
    pub alpha: f32,
    /// Steps between two updates.
    pub steps: u64,
}

/// The model that answers are compared with.
pub struct Reference {
    pub(crate) model: Model,
    /// Its own weights, which policies over one base share; `None` uses the policy's.
    pub(crate) params: Option<Rc<Params>>,
    pub(crate) sync: Option<Sync>,
}

impl Reference {
    /// A copy, with the same parts of weights as the policy's.
    pub fn copy(model: Model, params: Params, sync: Option<Sync>) -> Reference {
        Reference { model, params: Some(Rc::new(params)), sync }
    }

    /// The policy's own weights without its adapter.
    pub fn adapter_off(policy: &Model) -> Reference {
        Reference { model: policy.without_adapter(), params: None, sync: None }
    }

    /// The same reference for another policy over the same base: a copy is shared, and that policy without its adapter
    /// is the base too.
    pub(crate) fn of_other(&self, policy: &Model) -> Reference {
        match &self.params {
            Some(_) => Reference { model: self.model.clone(), params: self.params.clone(), sync: self.sync },
            None => Reference::adapter_off(policy),
        }
    }

    /// Its weights, if it has its own and they are updated.
    pub(crate) fn moving(&self) -> Option<&Params> {
        self.params.as_deref().filter(|_| self.sync.is_some())
    }
}
