//! An engine on ranks of a mesh that each have a part of the model: tensor parallel ranks some heads and columns, and
//! some experts or some columns of each; pipeline stages some layers. Keys and values are those of the rank's heads and
//! layers. All of these ranks take the same steps for the same requests, and each has the logits of every answer, so
//! all choose the same tokens. Since the ranks' clocks differ and would order sequences differently, time decides
//! nothing unless one rank sends it to the others ([`crate::ranks`]). Replicas of the model are independent here.

use std::time::Duration;

use fathom_grad::{Eval, Memory, Scope};
use fathom_tensor::mesh::{Among, Axis, Flight, Grid, Link, LinkError, Mesh, Traffic, What};
use fathom_tensor::{Category, CrossEntropy, DType, Device, Tensor, VocabularyShare};

use crate::engine::Engine;
use crate::pages::FeedMemory;
use crate::store::Part;

impl Engine<'_> {
    /// The hidden states of a batch after all pipeline stages; on stages other than the last they are meaningless.
    pub(crate) fn through(&self, scope: &Scope<'_>, memory: &mut FeedMemory<'_>) -> Tensor {
        if self.model.spec.source > 0 {
            return self.answers_of_sources(scope, memory);
        }
        self.view().forward_stages(scope.batch.tokens, &mut |chunk, x| {
            self.model.forward_chunk(&mut Eval::new(scope.clone(), None, Some(&mut *memory)), chunk, x)
        })
    }

    /// The same of an encoder-decoder, whose first stack reads the sources that the batch sees first.
    fn answers_of_sources(&self, scope: &Scope<'_>, memory: &mut FeedMemory<'_>) -> Tensor {
        let (device, model) = (self.device, self.model);
        let value = match memory.sources.batch(device, model) {
            Some(batch) => {
                let scope = Scope { batch: (&batch).into(), ..scope.clone() };
                model.source(&mut Eval::new(scope, None, None))
            }
            // Its keys and values are not used.
            None => device.zeros(1, model.spec.hidden, model.dtype(self.params), Category::Activations),
        };
        model
            .target(&mut Eval::new(scope.clone(), None, Some(&mut *memory)), Memory { value, gradient: None })
    }

    /// f32 logits of some rows of hidden states, [rows, vocab], on every rank.
    pub(crate) fn logits(&self, scope: &Scope<'_>, picked: &Tensor) -> Tensor {
        let (device, model) = (self.device, self.model);
        let own = || model.head(0.0).at(self.temperature()).logits(scope, picked);
        let [tp, pp] = [Axis::Tp, Axis::Pp].map(|axis| device.mesh.group(&[axis]));
        if tp.size() * pp.size() == 1 {
            return own();
        }
        device.pool.enter("logits", -1);
        let rows = picked.rows();
        let empty = |rows: usize, cols: usize| device.empty(rows, cols, DType::F32, Category::Comm);
        let whole = empty(rows, model.spec.vocab);
        if model.portion.last {
            let columns: Vec<_> = (0..tp.size()).map(|rank| self.columns(rank)).collect();
            let widest = columns.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
            // Shares of a vocabulary differ by one, and messages have one size.
            let (mine, all) =
                (device.zeros(rows, widest, DType::F32, Category::Comm), empty(tp.size() * rows, widest));
            let own = own();
            device.pool.enter("logits", -1);
            device.machine.copy(&own, &mine.view_cols(0..own.cols()));
            let parts: Vec<Tensor> =
                (0..tp.size()).map(|rank| all.view_rows(rank * rows..(rank + 1) * rows)).collect();
            tp.all_gather(device, &mine, &parts).wait();
            for (part, columns) in parts.iter().zip(columns) {
                device.machine.copy(&part.view_cols(0..columns.len()), &whole.view_cols(columns));
            }
        }
        device.pool.enter("logits", -1);
        pp.broadcast(device, pp.size() - 1, &whole);
        whole
    }

    /// The part of the model that the rank has.
    pub(crate) fn part(&self) -> Part {
        let mesh = &self.device.mesh;
        let [tp, pp] = [Axis::Tp, Axis::Pp].map(|axis| [mesh.index(axis), mesh.size(axis)]);
        let [ep, etp] = [Axis::Ep, Axis::Etp].map(|axis| mesh.size(axis));
        (!self.is_whole()).then_some([tp[0], tp[1], pp[0], pp[1], ep, etp])
    }

    /// True if the rank has the whole model.
    pub(crate) fn is_whole(&self) -> bool {
        self.device.mesh.size(Axis::Tp) * self.device.mesh.size(Axis::Pp) == 1
    }

    /// The columns of the logits that a tensor parallel rank computes.
    fn columns(&self, rank: usize) -> std::ops::Range<usize> {
        let (vocab, ranks) = (self.model.spec.vocab, self.model.portion.tp);
        vocab * rank / ranks..vocab * (rank + 1) / ranks
    }

    /// Negative log-probabilities of labels, i32 [1, labels], from their logits, [labels, vocab], into f32 [1, labels]:
    /// computed with the same sums over the ranks' columns as in training, in the same order.
    pub(crate) fn entropy(&self, logits: &Tensor, labels: &Tensor, loss: &Tensor) {
        let device = self.device;
        let ask = |logits: &Tensor, spread: Option<VocabularyShare<'_>>| {
            let op = CrossEntropy::losses(logits, labels, loss);
            device.machine.cross_entropy(&CrossEntropy { spread, ..op });
        };
        let ranks = self.model.portion.tp;
        if ranks == 1 {
            return ask(logits, None);
        }
        let all = device.empty(2 * ranks, labels.cols(), DType::F32, Category::Data);
        for rank in 0..ranks {
            let (columns, stats) = (self.columns(rank), all.view_rows(2 * rank..2 * rank + 2));
            let first = columns.start;
            ask(&logits.view_cols(columns), Some(VocabularyShare { first, stats: Some(&stats), all: None }));
        }
        ask(
            &logits.view_cols(self.columns(0)),
            Some(VocabularyShare { first: 0, stats: None, all: Some(&all) }),
        );
    }
}

/// A device whose tensor parallel ranks have all rows between sub-layers: a step of generation has few rows, which need
/// not divide. Messages of its ranks are not counted among those of steps.
pub(crate) fn with_all_rows(device: &Device) -> Device {
    let grid = *device.mesh.grid();
    if grid.tp * grid.pp == 1 {
        return device.clone();
    }
    let link = Through(device.mesh.clone());
    Device { mesh: Mesh::new(Grid { sequence_parallel: false, ..grid }, Box::new(link)), ..device.clone() }
}

/// The link of another mesh of the same ranks.
struct Through(Mesh);

impl Through {
    fn link(&self) -> &dyn Link {
        self.0.link().unwrap_or_else(|| panic!("mesh: several ranks have a link"))
    }
}

impl Link for Through {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn ranks(&self) -> usize {
        self.0.grid().ranks()
    }

    fn among(&self, device: &Device, among: Among<'_>) {
        self.link().among(device, among);
    }

    fn send(&self, device: &Device, to: usize, src: &Tensor, what: What) -> Box<dyn Flight> {
        self.link().send(device, to, src, what)
    }

    fn receive(&self, device: &Device, from: usize, dst: &Tensor, what: What) -> Box<dyn Flight> {
        self.link().receive(device, from, dst, what)
    }

    fn check(&self) -> Result<(), LinkError> {
        self.link().check()
    }

    fn abort(&self, reason: &str) {
        self.link().abort(reason);
    }

    fn traffic(&self) -> Traffic {
        self.link().traffic()
    }

    fn section(&self, name: &'static str, deadline: Option<Duration>) {
        self.link().section(name, deadline);
    }

    fn rejoin(&self) -> Result<(), LinkError> {
        self.link().rejoin()
    }
}
