//! Pieces cover every weight and every tensor exactly once, and match Transformers' files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fathom_model::{Model, Piece, SafeTensors, Source, open};
use fathom_tensor::{DType, Device, Meta, Profile};

use crate::golden_files::{cases, name};

/// A device without data: these tests only need shapes.
pub fn meta() -> Device {
    Device::new(Arc::new(Meta::new(Profile::portable(1))), 1 << 40)
}

#[test]
fn pieces_are_the_tensors_of_the_files() {
    for case in cases() {
        let folder = open(&case).unwrap();
        let (model, params) = Model::declare(&meta(), &folder.spec, DType::F32);
        let mut rows: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        for ((id, param), pieces) in params.iter().zip(model.pieces()) {
            let mut covered = 0;
            for piece in &pieces {
                check_piece(&folder.source, piece);
                covered += piece.rows.len() * piece.row_len();
                for row in piece.rows.clone() {
                    assert!(
                        rows.entry(piece.name.clone()).or_default().insert(row),
                        "{} row {row}",
                        piece.name
                    );
                }
            }
            assert_eq!(covered, param.value.len(), "{}: {} of {}", name(&case), id.0, param.name);
            check_disjoint(&pieces);
        }
        let stored: BTreeSet<String> = folder.source.names().into_iter().map(str::to_string).collect();
        assert_eq!(rows.keys().cloned().collect::<BTreeSet<_>>(), stored, "{}", name(&case));
        for (tensor, rows) in rows {
            let shape = folder.source.shape(&tensor).unwrap();
            let all: usize = shape[..shape.len().max(2) - 1].iter().product();
            assert_eq!(rows.len(), all, "{}: {tensor}", name(&case));
        }
    }
}

fn check_piece(source: &SafeTensors, piece: &Piece) {
    assert_eq!(source.shape(&piece.name), Some(piece.shape.as_slice()), "{}", piece.name);
}

/// Checks that rows of the weight are covered once.
fn check_disjoint(pieces: &[Piece]) {
    let mut starts: Vec<_> = pieces.iter().filter(|piece| !piece.transpose).collect();
    starts.sort_by_key(|piece| piece.param_row);
    for pair in starts.windows(2) {
        assert_eq!(pair[0].param_row + pair[0].rows.len(), pair[1].param_row, "{}", pair[1].name);
    }
}
