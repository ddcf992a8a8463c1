//! Folders of OLMo-hybrid as Transformers 5.23 saves them: a norm of attention layers has the name of one of linear
//! layers, and the convolution is cut into three even parts in place of those of queries, keys and values.

use std::collections::BTreeMap;
use std::ops::Range;

use fathom_grad::ParamId;

use super::area::{Area, matrix};
use super::header::TensorEntry;
use super::parts::{TensorPart, TensorParts};
use super::table::{SafeTensors, StoredTensor};
use crate::error::Result;
use crate::spec::Spec;
use crate::weight::InFiles;

/// The norm's name in such folders, and in published ones.
const NORM: [&str; 2] = [".feedforward_layer_norm.", ".post_attention_layernorm."];

impl SafeTensors {
    /// Gives such a folder's tensors the names and cuts that the model has; changes no other folder's.
    ///
    /// # Errors
    /// If two tensors would have the same name.
    pub(super) fn as_published(&mut self, spec: &Spec) -> Result<()> {
        let attends = |name: &str| {
            let at = name.find(NORM[0]).map(|end| &name[..end]);
            at.is_some_and(|at| self.tensors.contains_key(&format!("{at}.self_attn.q_proj.weight")))
        };
        let resaved: Vec<String> = self.tensors.keys().filter(|name| attends(name)).cloned().collect();
        if !resaved.is_empty() {
            let published = |name: &str| {
                let is_one = resaved.iter().any(|other| other == name);
                if is_one { name.replace(NORM[0], NORM[1]) } else { name.to_string() }
            };
            self.rename(&|name| Some(published(name)))?;
        }
        let mut stacks = Vec::new();
        spec.walk(&mut |layer, weight| {
            if let InFiles::Whole(tensors) = &weight.stored
                && tensors.len() > 1
            {
                let at = spec.prefix(layer, weight.module);
                let named = |(name, shape): &(_, Vec<usize>)| (format!("{at}{name}"), shape.clone());
                stacks.push(tensors.iter().map(named).collect::<Vec<_>>());
            }
            ParamId(0)
        });
        stacks.iter().for_each(|stack| self.recut(stack));
        Ok(())
    }

    /// Cuts tensors that are stacked on each other at the ends of these, if they have as many rows together.
    fn recut(&mut self, stack: &[(String, Vec<usize>)]) {
        let Some(held) = stack.iter().map(|(name, _)| self.tensors.get(name)).collect::<Option<Vec<_>>>()
        else {
            return;
        };
        let same = |held: &StoredTensor, shape: &[usize]| held.stored.shape.get(1..) == shape.get(1..);
        let rows = |shape: &[usize]| matrix(shape).map_or(0, |[rows, _]| rows);
        let there: usize = held.iter().map(|held| rows(&held.stored.shape)).sum();
        let wanted: usize = stack.iter().map(|(_, shape)| rows(shape)).sum();
        if there != wanted || held.iter().zip(stack).any(|(held, (_, shape))| !same(held, shape)) {
            return;
        }
        let (mut parts, mut first) = (Vec::<TensorPart>::new(), 0);
        for tensor in &held {
            parts.extend(tensor.parts.all().iter().map(|part| part.moved(first, 0)));
            first += tensor.parts.size()[0];
        }
        let (mut cut, mut first) = (BTreeMap::new(), 0);
        for (tensor, (name, shape)) in held.iter().zip(stack) {
            let end = first + rows(shape);
            let element_bytes = tensor.stored.element_bytes;
            let bytes = (shape.iter().product::<usize>() * element_bytes) as u64;
            let mut stored = TensorEntry { shape: shape.clone(), bytes, ..tensor.stored.clone() };
            let own = parts.iter().filter_map(|part| part.within(first..end, element_bytes));
            let mut own = own.map(|part| part.moved(0, first));
            let Some(part) = own.next() else { return };
            stored.start = part.start;
            let mut held = TensorParts::new(&stored, part);
            own.for_each(|part| held.push(part));
            cut.insert(name.clone(), StoredTensor { stored, parts: held });
            first = end;
        }
        self.tensors.extend(cut);
    }
}

impl TensorPart {
    /// The same elements, counted from row `to` in place of row `from` of the tensor.
    fn moved(&self, to: usize, from: usize) -> TensorPart {
        let mut part = self.clone();
        part.area.rows = part.area.rows.start + to - from..part.area.rows.end + to - from;
        part
    }

    /// Its elements in some rows of the tensor.
    fn within(&self, rows: Range<usize>, element_bytes: usize) -> Option<TensorPart> {
        let area = self.area.meet(&Area { rows, cols: self.area.cols.clone() })?;
        let before = (area.rows.start - self.area.rows.start) * self.area.cols.len() * element_bytes;
        Some(TensorPart { start: self.start + before as u64, area, ..*self })
    }
}
