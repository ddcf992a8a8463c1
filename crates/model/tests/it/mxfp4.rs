//! Experts in MXFP4 against Transformers' values (`oracle/mxfp4.py`).

use std::path::Path;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_model::{Model, Portion, SafeTensors, SaveOptions, Source, load, open, save};
use fathom_tensor::mesh::{CountingLink, Grid, Mesh};
use fathom_tensor::{DType, Device};

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/mxfp4")
}

fn bytes(source: &SafeTensors, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    source.read_rows(name, 0..source.shape(name).unwrap()[0], &mut bytes).unwrap();
    bytes
}

#[test]
fn blocks_become_what_transformers_reads() {
    let (opened, expected) =
        (open(&folder()).unwrap(), SafeTensors::open_file(&folder().join("expected.safetensors")));
    let expected = expected.unwrap();
    assert_eq!(expected.names().len(), 2);
    for name in expected.names() {
        assert_eq!(opened.source.shape(name), expected.shape(name), "{name}");
        assert_eq!(opened.source.dtype(name), Some(DType::Bf16));
        assert_eq!(bytes(&opened.source, name), bytes(&expected, name), "{name}");
        assert!(opened.source.names().contains(&name));
    }
    assert!(
        opened.source.names().iter().all(|name| !name.ends_with("_scales") && !name.ends_with("_blocks"))
    );
    // Pieces at arbitrary offsets, as threads request them.
    let name = expected.names()[0];
    let whole = bytes(&expected, name);
    for (start, len) in [(0, 3), (7, 1000), (whole.len() / 3 - 5, 77), (whole.len() - 9, 9)] {
        let mut out = vec![0; len];
        opened.source.stream().read(name, start as u64, &mut out).unwrap();
        assert_eq!(out, whole[start..start + len]);
    }
}

/// Rows for products: each expert's [out, in], while elements are read as [in, out].
#[test]
fn rows_in_few_bits_are_the_turned_elements() {
    let (source, expected) = (open(&folder()).unwrap().source, folder().join("expected.safetensors"));
    let expected = SafeTensors::open_file(&expected).unwrap();
    for name in expected.names() {
        let [experts, inner, out] = *expected.shape(name).unwrap() else { panic!("{name} is no stack") };
        let format = source.blocks(name).unwrap();
        let (wide, all) = (format.row_bytes(inner), bytes(&expected, name));
        let mut rows = vec![0; experts * out * wide];
        // In parts that do not end with an expert.
        let (first, later) = rows.split_at_mut((out + 7) * wide);
        source.read_blocks(name, 0..out + 7, first).unwrap();
        source.read_blocks(name, out + 7..experts * out, later).unwrap();
        let mut found = vec![0.0; inner];
        for (row, packed) in rows.chunks(wide).enumerate() {
            format.unpack_row(packed, &mut found);
            for (input, x) in found.iter().enumerate() {
                let at = 2 * ((row / out * inner + input) * out + row % out);
                let bits = u32::from(u16::from_le_bytes([all[at], all[at + 1]])) << 16;
                assert_eq!(x.to_bits(), bits, "{name}, row {row}, {input}");
            }
        }
    }
}

#[test]
fn a_loaded_model_is_exported_as_bf16() {
    let opened = open(&folder()).unwrap();
    let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 26);
    let (model, mut params) = Model::declare(&device, &opened.spec, DType::Bf16);
    load(&device, &model, &mut params, &opened.source).unwrap();
    let out = tempfile::tempdir().unwrap();
    save(&device, &model, &params, out.path(), SaveOptions::new(DType::Bf16)).unwrap();
    let saved = SafeTensors::open_folder(out.path()).unwrap();
    let expected = SafeTensors::open_file(&folder().join("expected.safetensors")).unwrap();
    for name in expected.names() {
        assert_eq!(
            (saved.dtype(name), bytes(&saved, name)),
            (Some(DType::Bf16), bytes(&expected, name)),
            "{name}"
        );
    }
}

/// Ranks with some experts, and some columns of each, read only theirs.
#[test]
fn ranks_read_their_experts() {
    let opened = open(&folder()).unwrap();
    let device = |mesh| Device::on_mesh(Arc::new(Cpu::new(1, None)), 1 << 26, mesh);
    let load_part = |mesh: Mesh| {
        let device = device(mesh);
        let portion = Portion::of(&opened.spec, &device.mesh, 1);
        let (model, mut params) = Model::declare_part(&device, &opened.spec, DType::F32, None, portion);
        load(&device, &model, &mut params, &opened.source).unwrap();
        let values = params.iter().map(|(_, param)| device.to_f32(&param.value.tensor()));
        (values.collect::<Vec<_>>(), model)
    };
    let (whole, _) = load_part(Mesh::alone());
    let grid = Grid { dp: 6, ep: 3, etp: 2, ..Grid::default() };
    for rank in 0..6 {
        let (part, model) = load_part(Mesh::new(grid, Box::new(CountingLink::new(rank, 6))));
        for (index, held) in model.holdings.iter().enumerate() {
            let runs = held.shard.runs().into_iter();
            let expected: Vec<f32> =
                runs.flat_map(|(_, at, len)| whole[held.number as usize][at..at + len].to_vec()).collect();
            assert_eq!(part[index], expected, "weight {} of rank {rank}", held.number);
        }
    }
}
