//! Load tests, as in `fathom bench serve`.

use fathom_serve::bench::{Arrival, Load, Target, run, run_at_once};

#[test]
fn a_load_is_answered_and_counted() {
    let load = Load { arrival: Arrival::Clients(4), requests: 20, answer_tokens: 5, ..Load::default() };
    let row = run_at_once(&load).unwrap();
    assert_eq!((row["answered"].as_u64(), row["failed"].as_u64()), (Some(20), Some(0)), "{row}");
    let poisson = Load { arrival: Arrival::PerSecond(500.0), shared_share: 0.5, ..load };
    let row = run_at_once(&poisson).unwrap();
    assert_eq!(row["answered"].as_u64(), Some(20), "{row}");
    assert!(row["output_tokens_per_s"].as_f64().unwrap() > 0.0);
    assert!(run(&Target::at("127.0.0.1:1"), &Load::default()).is_err());
}
