//! Templates for numbers and dates, and language variants.

/// Arguments of a template, named and positional.
pub(super) struct Arguments<'a>(Vec<&'a str>);

impl<'a> Arguments<'a> {
    /// Parses the text between the braces.
    pub(super) fn of(inner: &'a str) -> Arguments<'a> {
        Arguments(inner.split(BAR).skip(1).collect())
    }

    fn named(&self, name: &str) -> Option<&'a str> {
        let pairs = self.0.iter().filter_map(|part| part.split_once('='));
        pairs
            .filter(|(key, value)| key.trim() == name && !value.trim().is_empty())
            .map(|(_, v)| v.trim())
            .next_back()
    }

    fn plain(&self, index: usize) -> &'a str {
        let mut plain = self.0.iter().filter(|part| !part.contains('='));
        plain.nth(index).map_or("", |part| part.trim())
    }

    /// `{{val|number|error|minus error|e=exponent|u=unit}}`.
    pub(super) fn value(&self) -> String {
        let number = match (self.plain(0), self.plain(1), self.plain(2)) {
            (number, "", _) => number.to_string(),
            (number, error, "") => format!("{number}±{error}"),
            (number, plus, minus) => format!("{number}+{plus}−{minus}"),
        };
        let (prefix, suffix) = (self.named("p").unwrap_or(""), self.named("s").unwrap_or(""));
        let exponent = self.named("e").map(|e| format!("10^{e}")).unwrap_or_default();
        let number = match (number.is_empty(), exponent.is_empty()) {
            (true, _) => exponent,
            (false, true) => number,
            (false, false) if self.plain(1).is_empty() => format!("{number}×{exponent}"),
            (false, false) => format!("({number})×{exponent}"),
        };
        let unit = self.named("u").or(self.named("ul")).unwrap_or("");
        let per = self.named("up").or(self.named("upl")).map(|per| format!("/{per}")).unwrap_or_default();
        format!("{prefix}{number}{suffix} {unit}{per}").trim_end().to_string()
    }

    /// `{{as of|year|month|day}}`.
    pub(super) fn as_of(&self) -> String {
        if let Some(text) = self.named("alt") {
            return text.to_string();
        }
        let lead = match (self.named("since"), self.named("lc")) {
            (Some(_), Some(_)) => "since",
            (Some(_), None) => "Since",
            (None, Some(_)) => "as of",
            (None, None) => "As of",
        };
        let month = self.plain(1);
        let number = month.parse::<usize>().ok().and_then(|month| month.checked_sub(1));
        let month = number.and_then(|month| fathom_base::human::MONTHS.get(month)).copied().unwrap_or(month);
        let parts = [lead, self.plain(2), month, self.plain(0)];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    }
}

/// Text of `-{zh-hans:one;zh-hant:other}-`: its first variant, or the text itself if there are no variants.
pub(super) fn variant(inner: &str) -> String {
    let (flags, rules) = inner.split_once(BAR).unwrap_or(("", inner));
    let hides = flags.split(';').any(|flag| matches!(flag.trim(), "H" | "T" | "-"));
    if hides {
        return String::new();
    }
    let is_code = |code: &str| {
        code.len() >= 2 && code.len() <= 16 && code.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
    };
    let of_rule = |rule: &str| {
        let rule = rule.split_once("=>").map_or(rule, |(_, to)| to);
        let (code, text) = rule.split_once(':')?;
        is_code(code.trim()).then(|| text.trim().to_string())
    };
    rules.split(';').filter_map(of_rule).find(|text| !text.is_empty()).unwrap_or_else(|| rules.to_string())
}

/// Replaces a `|` that separates arguments, to distinguish it from one inside an argument's text.
pub(super) const BAR: char = '\u{f8fe}';
