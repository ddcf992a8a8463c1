//! A weight sharded over ranks, each of which keeps a part (ZeRO-3): gathered when a segment needs it.

use std::cell::{OnceCell, RefCell};
use std::ops::Range;

use fathom_tensor::mesh::{Group, Transfers};
use fathom_tensor::{Category, DType, Device, Tensor};

use crate::visit::Visit;

/// This rank's part, and the whole while it is used.
pub(crate) struct ShardedValue {
    device: Device,
    place: OnceCell<Place>,
    pub visit: RefCell<Visit>,
}

/// Distribution of the elements.
struct Place {
    /// [1, n].
    own: Tensor,
    ranges: Vec<Range<usize>>,
    group: Group,
}

impl ShardedValue {
    /// A weight without assigned parts.
    pub fn new(device: &Device) -> ShardedValue {
        ShardedValue { device: device.clone(), place: OnceCell::new(), visit: RefCell::default() }
    }

    /// Assigns the members' elements, once: models over the same base assign them in the same way.
    pub fn place(&self, device: &Device, dtype: DType, group: &Group, ranges: Vec<Range<usize>>) {
        self.place.get_or_init(|| {
            let own = device.empty(1, ranges[group.index()].len(), dtype, Category::Params);
            Place { own, ranges, group: group.clone() }
        });
    }

    #[track_caller]
    fn at(&self) -> &Place {
        match self.place.get() {
            Some(place) => place,
            None => panic!("a weight of several ranks that none has a part of"),
        }
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// This rank's elements.
    pub fn own(&self) -> Range<usize> {
        let Place { ranges, group, .. } = self.at();
        ranges[group.index()].clone()
    }

    /// Their values, [1, n].
    pub fn tensor(&self) -> &Tensor {
        &self.at().own
    }

    /// Starts to gather all elements into one row.
    pub fn gather(&self, device: &Device, flat: &Tensor) -> Transfers {
        let Place { own, ranges, group } = self.at();
        let me = group.index();
        device.pool.enter("gather weights", -1);
        let parts: Vec<Tensor> = ranges.iter().map(|range| flat.view_cols(range.clone())).collect();
        if !own.is_empty() {
            device.machine.copy(own, &parts[me]);
        }
        group.begin_gather(device, "gather weights", std::slice::from_ref(own), &[parts])
    }
}
