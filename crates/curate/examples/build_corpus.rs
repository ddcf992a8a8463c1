//! Builds the default corpus of this machine, then prints a summary and the build rate:
//! `cargo run --release -p fathom-curate --example build_corpus -- OUT [MEGABYTES] [PATH...]`.

use std::path::PathBuf;

use fathom_curate::{CorpusSpec, Error, Input, build, default_roots};

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let out = PathBuf::from(arguments.next().unwrap_or_else(|| "corpus".to_owned()));
    let megabytes = arguments.next().and_then(|text| text.parse::<u64>().ok()).unwrap_or(48);
    let paths: Vec<PathBuf> = arguments.map(PathBuf::from).collect();
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo"))).unwrap_or_default();
    let input = if paths.is_empty() {
        Input::Default { roots: default_roots(&home), fallback: Some(PathBuf::from(".")) }
    } else {
        Input::Paths(paths)
    };
    let spec = CorpusSpec { max_bytes: Some(megabytes * 1_000_000), ..CorpusSpec::new(input, out) };
    let report = build(&spec, &mut |_| ())?;
    println!("training    {:?}", report.train);
    println!("synthetic   {:?}, {:.3} of the tokens", report.synthetic, report.synthetic_share());
    println!("held out    {:?}, real {:?}", report.held_out, report.held_out_real);
    println!("longest     {} tokens; vocabulary {}", report.longest_tokens, report.vocabulary);
    println!("dropped     {}", report.dropped.summary());
    for source in report.to_event().sources {
        println!("    {:>5} documents {:>9} bytes  {}", source.documents, source.bytes, source.name);
    }
    println!("{:?}, {:.1} MB/s", report.seconds, report.bytes_per_s() / 1e6);
    Ok(())
}
