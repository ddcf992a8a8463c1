//! Languages, quality models, and the stochastic selection rule.

use fathom_prose::Error;
use fathom_prose::language::{
    LanguageDetector, LanguageOptions, ParetoKeep, QualityModel, QualityOptions, QualityTraining,
    train_quality,
};

const ENGLISH: &str =
    "The committee met on a rainy evening and spoke about the roads that lead out of the city.";
const GERMAN: &str =
    "Der Ausschuss traf sich an einem regnerischen Abend und sprach über die Straßen aus der Stadt.";
const RUSSIAN: &str = "Комитет собрался дождливым вечером и говорил о дорогах, которые ведут из города.";
const JAPANESE: &str = "委員会は雨の夜に集まり、町から出る道について話しました。とても長い会議でした。";

#[test]
fn languages_and_scripts_are_found() {
    let detector = LanguageDetector::new(&LanguageOptions::default()).unwrap();
    for (text, label) in
        [(ENGLISH, "en_Latn"), (GERMAN, "de_Latn"), (RUSSIAN, "ru_Cyrl"), (JAPANESE, "ja_Jpan")]
    {
        assert_eq!(detector.detect(text).unwrap().label(), label);
    }
    assert_eq!(detector.detect("12 34"), None);
    let options = LanguageOptions { languages: vec!["ENG_latn".into(), "de".into()], ..Default::default() };
    let detector = LanguageDetector::new(&options).unwrap();
    assert!(detector.check(ENGLISH).is_ok() && detector.check(GERMAN).is_ok());
    assert_eq!(detector.check(RUSSIAN).unwrap_err().reason, "language");
    assert_eq!(detector.check("...").unwrap_err().reason, "language_unknown");
}

#[test]
fn models_that_cannot_be_read_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, bytes: &[u8], part: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let options = LanguageOptions { model: Some(path), ..Default::default() };
        let Err(error) = LanguageDetector::new(&options) else { panic!("{name} was read") };
        assert!(error.to_string().contains(part) && error.to_string().contains(name), "{error}");
    };
    check("short.ftz", b"12", "too few");
    check("other.bin", &[7; 200], "not fastText's");
    // The header of a model with one word and one label, followed by its dictionary and the matrix headers.
    let file = |bucket: i32, words: i32, rest: &[u8]| {
        let mut bytes = [0u8; 92];
        for (at, value) in
            [(0, 793_712_314), (4, 12), (8, 100), (40, bucket), (64, words + 1), (68, words), (72, 1)]
        {
            bytes[at..at + 4].copy_from_slice(&i32::to_le_bytes(value));
        }
        bytes[84..92].copy_from_slice(&(-1i64).to_le_bytes());
        let dictionary = ["word", "__label__en"].map(|word| [word.as_bytes(), &[0; 10]].concat());
        [&bytes[..], &dictionary.concat(), rest].concat()
    };
    let matrix = |rows: i64| [rows.to_le_bytes(), 100i64.to_le_bytes()].concat();
    check("words.bin", &file(0, i32::MAX - 1, &[]), "do not fit into the 35 bytes");
    check("rows.bin", &file(0, 1, &[&[0][..], &matrix(7)].concat()), "the header says 1 of 100");
    check("huge.bin", &file(i32::MAX, 1, &[&[0][..], &matrix(1 << 31)].concat()), "do not fit");
    let codes = [&[1, 0][..], &matrix(1), &i32::MAX.to_le_bytes()].concat();
    check("codes.ftz", &file(0, 1, &codes), "ends too early");
    let one_code = [&[1, 0][..], &matrix(1), &1i32.to_le_bytes(), &[0]].concat();
    let quantiser = [100, 1, 7, 7].map(i32::to_le_bytes).concat();
    check("parts.ftz", &file(0, 1, &[one_code, quantiser].concat()), "does not fit 100 numbers");
}

#[test]
fn languages_that_are_never_found_are_refused() {
    let check = |wanted: &str, part: &str| {
        let options = LanguageOptions { languages: vec!["de".into(), wanted.into()], ..Default::default() };
        let Err(error) = LanguageDetector::new(&options) else { panic!("{wanted} was taken") };
        let text = error.to_string();
        assert!(text.contains("`languages`") && text.contains(wanted) && text.contains(part), "{text}");
    };
    check("English", "write `en` for it");
    check("xx", "finds af, ak, am");
    check("en_Cyrl", "in the scripts Latn");
    for wanted in ["nb", "nob", "ja_Jpan", "zh_Hani", "sr_Cyrl", "ARB"] {
        let options = LanguageOptions { languages: vec![wanted.into()], ..Default::default() };
        assert!(LanguageDetector::new(&options).is_ok(), "{wanted}");
    }
}

#[test]
fn a_quality_model_is_trained_and_judges() {
    let folder = tempfile::tempdir().unwrap();
    let good = [
        "the theorem follows from the lemma",
        "we measure the effect in two samples",
        "a proof is given here",
    ];
    let other = ["click here to win a prize", "cheap pills buy now", "subscribe and share this now"];
    let examples: Vec<(&str, String)> = (0..600)
        .map(|i| match i % 2 {
            0 => ("__label__hq", format!("{} {}", good[i / 2 % 3], good[i / 6 % 3])),
            _ => ("__label__cc", format!("{} {}", other[i / 2 % 3], other[i / 6 % 3])),
        })
        .collect();
    let train = |name: &str| {
        let path = folder.path().join(name);
        let options =
            QualityTraining { buckets: 1000, dim: 8, learning_rate: 0.5, hold_out: 7, ..Default::default() };
        let each = examples.iter().map(|(label, text)| Ok::<_, Error>((*label, text)));
        let report = train_quality(&options, each, &path).unwrap();
        assert!(report.accuracy > 0.95 && report.held_out == 86, "{report:?}");
        path
    };
    let path = train("a.bin");
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(train("b.bin")).unwrap());
    let model =
        QualityModel::new(&QualityOptions { model: path.clone(), pareto: None, ..Default::default() })
            .unwrap();
    assert!(model.score("the proof follows\nfrom the lemma") > 0.5);
    assert_eq!(model.check("x", "buy cheap pills now").unwrap_err().reason, "quality");
    // A minimum score applies in addition to the stochastic rule, which alone keeps some texts of every score.
    let kept = |min_score| {
        let options = QualityOptions { model: path.clone(), min_score, ..Default::default() };
        let model = QualityModel::new(&options).unwrap();
        (0..200).filter(|i| model.check(&format!("f#{i}"), "buy cheap pills now").is_ok()).count()
    };
    assert!(kept(None) > 5 && kept(Some(0.9)) == 0, "{} {}", kept(None), kept(Some(0.9)));
    let over = QualityOptions { model: path.clone(), min_score: Some(90.0), ..Default::default() };
    assert!(QualityModel::new(&over).err().unwrap().to_string().contains("`min_score` is 90"));
    let wrong = QualityOptions { model: path, label: "__label__good".into(), ..Default::default() };
    assert!(QualityModel::new(&wrong).err().unwrap().to_string().contains("__label__cc"));
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn the_pareto_rule_is_a_function_of_the_id_with_the_right_shares() {
    let rule = ParetoKeep::default();
    for score in [0.0, 0.3, 0.7, 0.95] {
        let kept = (0..20_000).filter(|i| rule.keep(&format!("file#{i}"), score)).count() as f64 / 20_000.0;
        // P(X > 1-s) = (2-s)^-alpha
        let expected = (2.0f64 - score).powi(-3);
        assert!((kept - expected).abs() < 0.012, "{score}: {kept} {expected}");
    }
    assert_eq!(rule.draw("a#1"), rule.draw("a#1"));
    assert_ne!(rule.draw("a#1"), ParetoKeep { seed: 7, ..rule }.draw("a#1"));
}
