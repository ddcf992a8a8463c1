//! One text through everything that works on texts: repair in one pass and in steps, filters with and without an early end,
//! personal data, languages.
#![no_main]

use std::sync::LazyLock;

use fathom_prose::clean::{CleanOptions, Cleaner};
use fathom_prose::filter::{FilterOptions, Filters, Scratch, Set, WordRule};
use fathom_prose::language::{LanguageDetector, LanguageOptions};
use fathom_prose::pii::{Entity, Pii, PiiOptions};

struct Pieces {
    cleaner: Cleaner,
    filters: Vec<Filters>,
    pii: Pii,
    languages: LanguageDetector,
}

static PIECES: LazyLock<Option<Pieces>> = LazyLock::new(|| {
    let (quotation, boilerplate, urls, markdown) = (true, true, true, true);
    let cleaner = Cleaner::new(&CleanOptions { quotation, boilerplate, urls, markdown, ..CleanOptions::default() });
    let sets = [Set::English, Set::NonEnglish, Set::GopherRepetition, Set::GopherQuality, Set::FineWeb, Set::C4Paragraphs];
    let filters = [WordRule::Spaces, WordRule::Unicode, WordRule::Dictionary].map(|words| {
        Filters::new(&FilterOptions { sets: sets.to_vec(), words, ..FilterOptions::default() })
    });
    Some(Pieces {
        cleaner,
        filters: filters.into_iter().collect::<Result<_, _>>().ok()?,
        pii: Pii::new(&PiiOptions { entities: Entity::ALL.to_vec(), ..PiiOptions::default() }).ok()?,
        languages: LanguageDetector::new(&LanguageOptions::default()).ok()?,
    })
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let Some(pieces) = &*PIECES else { panic!("the defaults are refused") };
    assert_eq!(pieces.cleaner.clean(&text), pieces.cleaner.clean_in_steps(&text));
    let (mut scratch, mut scores) = (Scratch::default(), Vec::new());
    for filters in &pieces.filters {
        let verdict = filters.check(&text, &mut scratch);
        assert_eq!(filters.scores(&text, &mut scratch, &mut scores), verdict);
        assert!(scores.iter().all(|score| score.value.is_finite()));
    }
    let _ = pieces.pii.apply(&text);
    let _ = pieces.languages.detect(&text);
});
