//! Addresses with passwords and signatures: refused before anything is written, and never shown in full.

use std::path::Path;

use fathom_base::recipe::{Layers, Loaded};
use fathom_curate::pipeline::{Pipeline, Recipe};
use fathom_curate::{
    CorpusSpec, Curation, Error, Input, RawOptions, RemoteOptions, curation, input_files, open,
};

use crate::folder;
use crate::pipeline::{options, run};
use crate::server::{Answer, serve};

/// Addresses of one file, each with a secret that contains `hunter2`, and their redacted forms.
const SECRETS: [(&str, &str); 6] = [
    ("https://ann:hunter2@host/a.jsonl", "https://***@host/a.jsonl"),
    ("https://hunter2@host/a.jsonl", "https://***@host/a.jsonl"),
    ("https://host/a.jsonl?X-Amz-Credential=k&X-Amz-Signature=hunter2", "https://host/a.jsonl?***"),
    ("https://host/a.jsonl?sv=2024&sig=hunter2", "https://host/a.jsonl?***"),
    ("https://host/a.jsonl#token=hunter2", "https://host/a.jsonl#***"),
    ("s3://key:hunter2@bucket/data/", "s3://***@bucket/data/"),
];

fn load(out: &Path, key: &str, location: &str) -> Result<Pipeline, Error> {
    let layers = Layers::new()
        .text("test", "")
        .set(&format!("out={}", out.display()))
        .set(&format!("{key}={location}"));
    Pipeline::new(&Loaded::<Recipe>::load(layers)?)
}

#[test]
fn an_address_with_a_secret_is_refused_whatever_it_is() {
    for (location, shown) in SECRETS {
        let out = tempfile::tempdir().unwrap();
        for (key, written) in [
            ("input.paths", format!("[\"{location}\"]")),
            ("input.paths", format!("[\"web={location}\"]")),
            ("input.snapshot.base", location.to_owned()),
        ] {
            let said = load(out.path(), key, &written).err().unwrap().to_string();
            assert!(said.contains(shown) && said.contains(&format!("`{key}`")), "{said}");
            assert!(said.contains("download the file") && !said.contains("hunter2"), "{said}");
        }
        assert!(std::fs::read_dir(out.path()).unwrap().next().is_none(), "something was written");
        let said = input_files(&[location.to_owned()], &RawOptions::default()).unwrap_err().to_string();
        assert!(said.contains(shown) && !said.contains("hunter2"), "{said}");
        // An address given as a path is a path that does not exist.
        let said = open(&[location.into()], &Default::default()).err().unwrap().to_string();
        assert!(!said.contains("hunter2"), "{said}");
    }
    // A mistyped setting is quoted, with the secret redacted.
    let said = load(Path::new("out"), "input.pths", SECRETS[0].0).err().unwrap().to_string();
    assert!(said.contains("https://***@host") && !said.contains("hunter2"), "{said}");
}

#[test]
fn a_run_that_is_trained_on_refuses_them_too() {
    let out = tempfile::tempdir().unwrap();
    let spec = CorpusSpec::new(Input::Paths(vec![SECRETS[2].0.into()]), out.path().to_owned());
    let layers = Layers::new().text("test", "");
    let said = curation(&spec, layers, None, RemoteOptions::default()).err().unwrap().to_string();
    assert!(said.contains(SECRETS[2].1) && !said.contains("hunter2"), "{said}");
    let named = Layers::new().text("test", "").set(&format!("input.paths=[\"{}\"]", SECRETS[0].0));
    let said = Curation::of(Loaded::<Recipe>::load(named).unwrap()).unwrap_err().to_string();
    assert!(said.contains(SECRETS[0].1) && !said.contains("hunter2"), "{said}");
}

#[test]
fn a_folder_with_secrets_of_an_older_version_does_not_tell_them() {
    let (input, out) = (folder(&[("a.txt", b"A text.")]), tempfile::tempdir().unwrap());
    let old = format!("input.paths = [\"{}\"]\n", SECRETS[0].0);
    std::fs::write(out.path().join("recipe.toml"), old).unwrap();
    let pipeline = load(out.path(), "input.paths", &input.path().display().to_string()).unwrap();
    let said = run(&pipeline, &options(1)).unwrap_err().to_string();
    assert!(said.contains("other inputs (https://***@host/a.jsonl)"), "{said}");
}

#[test]
fn an_address_without_a_secret_is_read() {
    let base = serve(&[("a.jsonl", b"{\"text\":\"one\"}\n".to_vec())], |_, _, _| Answer::Whole);
    let remote = RemoteOptions { allow_http: true, ..RemoteOptions::default() };
    let options = RawOptions { remote, ..RawOptions::default() };
    let (files, _) = input_files(&[format!("{base}/a.jsonl")], &options).unwrap();
    assert_eq!(files[0].open(&options).unwrap().count(), 1);
}
