//! Personal data and languages for rails, as `prose` finds them.

use fathom_base::{Error, Result};
use fathom_guard::Finding;
use fathom_guard::needs::{Languages, PersonalData, PersonalDataFinder, PersonalDataOptions};
use fathom_prose::language::{LanguageDetector, LanguageOptions};
use fathom_prose::pii::{Action, Entity, Pii, PiiOptions};

/// Personal data of the kinds of `prose`.
pub struct Detectors;

impl PersonalData for Detectors {
    fn kinds(&self) -> Vec<&'static str> {
        Entity::ALL.iter().map(|entity| entity.name()).collect()
    }

    fn finder(&self, options: &PersonalDataOptions) -> Result<Box<dyn PersonalDataFinder>> {
        let entity = |name: &String| {
            let found = Entity::ALL.iter().copied().find(|entity| entity.name() == name);
            found.ok_or_else(|| Error::product(format!("`{name}` is no kind of personal data")))
        };
        let options = PiiOptions {
            entities: options.kinds.iter().map(entity).collect::<Result<_>>()?,
            action: Action::Redact,
            without_context: options.without_context,
            phone_countries: options.phone_countries.clone(),
            ..PiiOptions::default()
        };
        Ok(Box::new(Finder(Pii::new(&options).map_err(Error::product)?)))
    }
}

struct Finder(Pii);

impl PersonalDataFinder for Finder {
    fn find(&self, text: &str) -> Vec<Finding> {
        let found = self.0.find(text).into_iter();
        found.map(|it| Finding::new(it.start..it.end, it.entity.name())).collect()
    }

    fn first_open(&self, text: &str) -> usize {
        self.0.first_open(text)
    }
}

/// Languages of the built-in detector, which reads whole texts.
pub struct Detector(LanguageDetector);

impl Default for Detector {
    /// A detector that keeps every language, however uncertain.
    fn default() -> Detector {
        let options = LanguageOptions { min_score: 0.0, max_bytes: 0, ..LanguageOptions::default() };
        // Only a model's file and a list of languages can be refused, and there is neither.
        Detector(LanguageDetector::new(&options).unwrap_or_else(|error| unreachable!("{error}")))
    }
}

impl Languages for Detector {
    fn identify(&self, text: &str) -> Option<(String, f64)> {
        self.0.detect(text).map(|found| (found.code, f64::from(found.score)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use fathom_base::clock::Clock;
    use fathom_guard::{
        AnswerStart, AnswerStream, Config, Context, Direction, Engine, Metrics, Needs, Subject,
    };

    use super::{Detectors, Entity};

    /// Numbers of a fixed sequence.
    struct Random(u64);

    impl Random {
        fn below(&mut self, most: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            ((self.0 >> 11) as usize) % most
        }

        fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
            of[self.below(of.len())]
        }
    }

    const VALUES: [&str; 22] = [
        "4111 1111 1111 1111",
        "378282246310005",
        "GB82 WEST 1234 5698 7654 32",
        "DE89370400440532013000",
        "jane.doe@example.org",
        "jörg@bücher.de",
        "078-05-1120",
        "192.168.17.4/24",
        "2001:db8::8a2e:370:7334",
        "+44 20 7946 0958",
        "(212) 555-2368",
        "call 555-1234",
        "Tel 555-223-4567 / 555-987-6543",
        "+33 1 23 45 67 89 12",
        "https://example.org/a?b=c.",
        "passport 123456789",
        "ab 12 34 56 C",
        "Kennzeichen B-MW 1234",
        "DE 136 695 976",
        "123 456 782",
        "00:1A:2b:3C:4d:5E",
        "900101-1234567입니다",
    ];
    const WORDS: [&str; 14] = [
        "the",
        "in",
        "2024-01-15",
        "12",
        "of 1914-1918",
        "x@",
        "a.b",
        "+",
        "(",
        "SSN",
        "-",
        "number:",
        "電話",
        "e\u{301}",
    ];

    /// With `FATHOM_TEST_STREAMS` a thousand texts in a hundred chunkings each.
    #[test]
    fn a_stream_is_the_masked_whole_for_every_chunking() {
        let (texts, chunkings) =
            if std::env::var_os("FATHOM_TEST_STREAMS").is_some() { (1000, 100) } else { (60, 8) };
        let common = ["email", "card", "iban", "ssn", "ip", "phone", "url", "us_passport"];
        let national: Vec<&str> = Entity::ALL[Entity::COMMON.len()..].iter().map(|it| it.name()).collect();
        for (kinds, more) in [(&common[..], ""), (&national, ""), (&national, "without_context = true")] {
            let rail =
                format!("[[rail]]\nuse = \"personal_data\"\non = [\"output\"]\nkinds = {kinds:?}\n{more}\n");
            streams_equal_wholes(&rail, texts, chunkings);
        }
    }

    fn streams_equal_wholes(rail: &str, texts: usize, chunkings: usize) {
        let needs = Needs { personal_data: Some(Arc::new(Detectors)), ..Needs::default() };
        let config = Arc::new(Config::parse(rail, Path::new("guard.toml"), &needs).unwrap());
        let engine = Arc::new(Engine::new(config, Clock::start(), Arc::new(Metrics::default())));
        let subject = || Subject::new(Direction::Output, Arc::new(Context::default()));
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for _ in 0..texts {
            let mut text = String::new();
            for _ in 0..random.below(60) + 3 {
                let is_value = random.below(4) == 0;
                text.push_str(if is_value { random.one(&VALUES) } else { random.one(&WORDS) });
                text.push_str(random.one(&[" ", " ", " ", ", ", "\n", ""]));
            }
            let whole = engine.judge(&text, &subject()).text;
            for _ in 0..chunkings {
                let mut stream = AnswerStream::new(engine.clone(), subject(), &AnswerStart::default());
                let (mut out, mut at) = (String::new(), 0);
                let most = [1, 4, 16, 100][random.below(4)];
                while at < text.len() {
                    let end = text.ceil_char_boundary((at + 1 + random.below(most)).min(text.len()));
                    let tokens = random.below((end - at) / 3 + 2);
                    out.push_str(
                        &stream
                            .push(&text[at..end], tokens)
                            .unwrap_or_else(|it| panic!("{it:?} of {text:?}")),
                    );
                    at = end;
                }
                out.push_str(
                    &stream.finish().unwrap_or_else(|it| panic!("{it:?} of {text:?}\nwhole {whole:?}")),
                );
                assert_eq!(out, whole, "of {text:?}");
            }
        }
    }
}
