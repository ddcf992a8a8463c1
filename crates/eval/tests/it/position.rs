//! Loss by position of a model whose loss is the position.

use fathom_base::LanguageModel;
use fathom_base::clock::Clock;
use fathom_eval::*;

use crate::Rule;

fn position_is_loss() -> Rule<impl FnMut(&[u32], u32) -> f64> {
    Rule::new(|before, _| before.len() as f64, 2048)
}

#[test]
fn buckets_double_and_end_at_the_full_length() {
    assert_eq!(bucket_bounds(2048), [(0, 256), (256, 512), (512, 1024), (1024, 2048)]);
    assert_eq!(bucket_bounds(1500), [(0, 256), (256, 512), (512, 1024), (1024, 1500)]);
    assert_eq!(bucket_bounds(100), [(0, 100)]);
}

#[test]
fn a_bucket_is_the_mean_over_its_positions() {
    let documents = [vec![7; 2048], vec![7; 5000], vec![7; 600], vec![7; 255]];
    let found = loss_by_position(&position_is_loss(), documents.clone(), 2048, &Limits::default()).unwrap();
    assert_eq!((found.documents, found.too_short), (3, 1));
    let rows: Vec<_> = found.buckets.iter().map(|b| (b.from, b.to, b.loss, b.tokens)).collect();
    let expected = [
        (0, 256, 128.0, 3 * 255),
        (256, 512, 383.5, 3 * 256),
        (512, 1024, 767.5, 2 * 512),
        (1024, 2048, 1535.5, 2 * 1024),
    ];
    assert_eq!(rows, expected);

    let same =
        loss_by_position_same_documents(&position_is_loss(), documents, 2048, &Limits::default()).unwrap();
    assert_eq!((same.documents, same.too_short), (2, 2));
    assert_eq!(same.buckets.iter().map(|b| b.tokens).collect::<Vec<_>>(), [510, 512, 1024, 2048]);
    assert_eq!((same.loss(256, 512), same.loss(0, 512)), (Some(383.5), None));
    let moment = Moment { when: "after_extension".into(), step: 9, trained_tokens: 2048 };
    let event = same.to_event(&moment);
    assert_eq!((event.when.as_str(), event.step, event.buckets.len()), ("after_extension", 9, 4));
}

#[test]
fn limits_and_refusals() {
    let documents = || (0..5).map(|_| vec![1; 300]);
    let model = &position_is_loss();
    let two = Limits { documents: 2, deadline: None };
    assert_eq!(loss_by_position(model, documents(), 300, &two).unwrap().documents, 2);
    let no_time = Limits { deadline: Some(Clock::start().within(0.0)), ..Limits::default() };
    let least = loss_by_position(model, documents(), 300, &no_time).unwrap();
    assert_eq!((least.documents, least.buckets.len()), (1, 1));
    let refused = loss_by_position(model, documents(), 4096, &two).unwrap_err().to_string();
    assert!(refused.contains("4096") && refused.contains("2048"), "{refused}");
    let none = loss_by_position_same_documents(model, documents(), 2048, &two).unwrap();
    assert_eq!((none.buckets.len(), none.documents, none.too_short), (0, 0, 5));
}

/// If few documents fill the length they are concatenated; the result does not depend on their order, and every
/// sequence counts in every bucket.
#[test]
fn short_documents_are_joined() {
    let model = &position_is_loss();
    let mut documents: Vec<Vec<u32>> = (0..9).map(|id| vec![id; 240 + id as usize]).collect();
    let measure = |model: &dyn LanguageModel, documents: &[Vec<u32>]| {
        loss_of_sequences(model, documents, (1024, Some(7)), &Limits::default()).unwrap().unwrap()
    };
    let found = measure(model, &documents);
    assert_eq!((found.documents, found.joined, found.buckets.len()), (1, true, 3));
    // A bucket is measured over all of the text, in pieces that end at the bucket's end.
    let rows: Vec<_> = found.buckets.iter().map(|b| (b.loss, b.tokens)).collect();
    assert_eq!(rows, [(128.0, 4 * 255), (383.5, 2 * 256), (767.5, 512)]);
    documents.reverse();
    assert_eq!(measure(model, &documents).buckets, found.buckets);
    // Eight documents that are long enough are measured separately; too little text is measured as far as it goes.
    let long = measure(model, &vec![vec![1; 1024]; 8]);
    assert_eq!((long.documents, long.joined), (8, false));
    let short = measure(model, &[vec![1; 300], vec![1; 600]]);
    assert_eq!((short.documents, short.joined, short.buckets.len()), (2, false, 2));
    let none = loss_of_sequences(model, &[], (1024, None), &Limits::default()).unwrap();
    assert!(none.is_none());
}
