//! Telephone numbers: international ones by their `+` and the length required by their country, North American ones
//! by their grouping, others by a word before them, or by the format of a country named before them or in an option.

use super::Entity;
use super::detection::{Detection, has_context};
use super::digits::{Group, Join, join};
use super::plans::Plans;

const PHONE_WORDS: [&str; 45] = [
    "phone",
    "telephone",
    "tel",
    "call",
    "fax",
    "mobile",
    "cell",
    "whatsapp",
    "text",
    "sms",
    "dial",
    "ring",
    "reach",
    "contact",
    "hotline",
    "ph",
    "telefon",
    "telefono",
    "telefone",
    "telefoon",
    "telefonnummer",
    "telefoonnummer",
    "rufnummer",
    "mobil",
    "mobilnummer",
    "mobiel",
    "handynummer",
    "anrufen",
    "teléfono",
    "téléphone",
    "tél.",
    "tél:",
    "móvil",
    "celular",
    "cellulare",
    "whats app",
    "tlf",
    "puhelin",
    "тел.",
    "тел:",
    "телефон",
    "電話",
    "电话",
    "手机",
    "전화",
];

/// Maximum digits of an international number (E.164).
const MOST_DIGITS: usize = 15;
/// Maximum number of groups in a number.
const MOST_GROUPS: usize = 8;

/// Finds all telephone numbers; `groups` are the digit groups of `text`.
pub(super) fn find(text: &str, groups: &[Group], plans: &Plans, found: &mut Vec<Detection>) {
    let line = Line { text, groups, plans };
    let mut at = 0;
    // Groups of the preceding phone number.
    let mut last: Option<(usize, usize)> = None;
    while at < groups.len() {
        let led = last.is_some_and(|last| line.leads(last, at));
        match line.phone(at, led) {
            Ok((start, count)) => {
                found.push(Detection { entity: Entity::Phone, start, end: groups[at + count - 1].end });
                last = Some((at, count));
                at += count;
            }
            Err(count) => at += count,
        }
    }
}

/// A text with its digit groups.
struct Line<'a> {
    text: &'a str,
    groups: &'a [Group],
    plans: &'a Plans,
}

impl Line<'_> {
    /// Returns true if the phone number of `count` groups from `last` on indicates that another begins at group `at`:
    /// in a list, or if only a space separates them and the groups have the same lengths and separators.
    fn leads(&self, (last, count): (usize, usize), at: usize) -> bool {
        let between = &self.text[self.groups[last + count - 1].end..self.groups[at].start];
        if between.len() > 8 {
            return false;
        }
        match between.trim_matches([' ', '(', ')', '+', '\u{a0}']) {
            "" => {
                let lens = |from: usize| self.groups[from..].iter().take(count).map(|group| group.len());
                let joins = |from: usize| (from..from + count - 1).map(|at| self.join(at));
                lens(last).eq(lens(at)) && joins(last).eq(joins(at))
            }
            mark => matches!(
                mark,
                "," | ";" | "/" | "|" | "-" | "\u{2013}" | "&" | "or" | "and" | ", or" | ", and"
            ),
        }
    }

    /// Number that begins at group `at`: its first byte and its number of groups; otherwise the number of groups to
    /// skip.
    fn phone(&self, at: usize, led: bool) -> Result<(usize, usize), usize> {
        let before = &self.text[..self.groups[at].start];
        if let Some(before) = before.strip_suffix('+') {
            let lone = stands_behind(before.strip_suffix('(').unwrap_or(before), &['=']);
            let count = if lone { self.international(at) } else { None };
            return count.map(|count| (self.start(at, before.len(), count), count)).ok_or(1);
        }
        let first = at == 0 || self.join(at - 1) == Join::Nothing;
        let lone = if first {
            stands_behind(before.strip_suffix('(').unwrap_or(before), &[])
        } else {
            led || self.join(at - 1) == Join::Loose
        };
        if !lone {
            return Err(1);
        }
        let start = self.groups[at].start;
        let nanp = self.nanp(at).filter(|count| self.may_end(at + count - 1));
        if let Some(count) = nanp.filter(|count| self.stands_apart(at, *count, first)) {
            return Ok((self.start(at, start, count), count));
        }
        let date = self.date(at);
        let count = nanp.or_else(|| if date == 0 { self.national(at) } else { None });
        // Context words are searched last, since that is the most expensive check.
        let context = || led || first && has_context(self.text, start, 28, &PHONE_WORDS);
        let planned = || if date == 0 && first { self.planned(at) } else { None };
        let count = count.filter(|_| context()).or_else(planned);
        count.map(|count| (self.start(at, start, count), count)).ok_or(date.max(1))
    }

    /// Number of groups of a number in the national format of a named country.
    fn planned(&self, at: usize) -> Option<usize> {
        // Fractions, ISBNs and rows of digits begin with a single digit; so does "8 (495)".
        let tight = matches!(self.join(at), Join::Tight(mark) if mark != '(');
        if self.digits(at).len() == 1 && (tight || !matches!(self.digits(at), "0" | "8")) {
            return None;
        }
        let mut ends = [0; MOST_GROUPS];
        let (mut total, mut count) = (0, 0);
        for here in at..self.groups.len().min(at + MOST_GROUPS) {
            total += self.groups[here].len();
            if total > 13 {
                break;
            }
            if total >= 7 && self.may_end(here) {
                (ends[count], count) = (here + 1 - at, count + 1);
            }
            if self.join(here) == Join::Nothing {
                break;
            }
        }
        if count == 0 {
            return None;
        }
        let countries = self.plans.countries(self.text, self.groups[at].start)?;
        let fits = |groups: &usize| {
            let groups = &self.groups[at..at + groups];
            self.plans.fits(&countries, groups.iter().map(|group| &self.text[group.start..group.end]))
        };
        ends[..count].iter().rev().copied().find(fits)
    }

    /// Start of the number, including a preceding bracket that is closed inside.
    fn start(&self, at: usize, start: usize, count: usize) -> usize {
        let closed = self.text[start..self.groups[at + count - 1].end].contains(')');
        start - usize::from(closed && self.text[..start].ends_with('('))
    }

    /// Separator between group `at` and the next one.
    fn join(&self, at: usize) -> Join {
        self.groups
            .get(at + 1)
            .map_or(Join::Nothing, |next| join(&self.text[self.groups[at].end..next.start]))
    }

    fn digits(&self, at: usize) -> &str {
        &self.text[self.groups[at].start..self.groups[at].end]
    }

    /// Returns true if a number may end with group `at`.
    fn may_end(&self, at: usize) -> bool {
        let after = &self.text[self.groups[at].end..];
        !after.starts_with(|c: char| c.is_alphanumeric() || "%$€°@".contains(c))
            && matches!(self.join(at), Join::Nothing | Join::Loose | Join::Tight('/'))
    }

    /// Returns true if a number with enough digits ends with group `at` although another one follows a space: numbers
    /// do not continue across a space after many digits in a row, after a punctuation mark, or to a single digit.
    fn closes(&self, first: usize, at: usize) -> bool {
        let marked = at > first && matches!(self.join(at - 1), Join::Tight(mark) if mark != '(');
        let single = self.groups.get(at + 1).is_some_and(|next| next.len() == 1);
        self.join(at) == Join::Loose && (self.groups[at].len() >= 6 || marked || single)
    }

    /// Groups after a `+`: as many as the country's numbers have digits.
    fn international(&self, at: usize) -> Option<usize> {
        if self.digits(at).starts_with('0') {
            return None;
        }
        let mut code = self.digits(at).to_owned();
        if code.len() < 3 && self.join(at) != Join::Nothing {
            code.push_str(self.digits(at + 1));
        }
        let trunk = self.text[self.groups[at].end..].trim_start().starts_with("(0)");
        let most = most_digits(&code) + usize::from(trunk);
        let (mut total, mut best) = (0, None);
        for here in at..self.groups.len().min(at + MOST_GROUPS) {
            total += self.groups[here].len();
            if total > MOST_DIGITS + usize::from(trunk) {
                break;
            }
            if total >= 8 && self.may_end(here) && (total <= most || best.is_none()) {
                best = Some(here + 1 - at);
            }
            let ends = total >= most || total >= 8 && self.closes(at, here);
            if ends || self.join(here) == Join::Nothing {
                break;
            }
        }
        best
    }

    /// Number of groups, three or four, of a complete North American number from `at`.
    fn nanp(&self, at: usize) -> Option<usize> {
        let one = usize::from(self.digits(at) == "1");
        let all = self.groups.get(at..at + one + 3)?;
        let joined = (at..at + one + 2).all(|at| self.join(at) != Join::Nothing);
        let lens = all[one..].iter().map(|group| group.len()).eq([3, 3, 4]);
        let codes = (at + one..at + one + 2).all(|at| self.digits(at).as_bytes()[0] >= b'2');
        (joined && lens && codes).then_some(one + 3)
    }

    /// Returns true if a North American number counts without a context word: it is joined by marks that do not join
    /// it to its surroundings, or there is nothing else.
    fn stands_apart(&self, at: usize, count: usize, first: bool) -> bool {
        let inner = self.join(at + count - 2);
        let marked = matches!(inner, Join::Tight(_));
        let apart = self.join(at + count - 1) != inner && (first || self.join(at - 1) != inner);
        marked && apart || first && self.only_nanp(at)
    }

    /// Returns true if only North American numbers follow from `at` on, until the next non-joining separator.
    fn only_nanp(&self, mut at: usize) -> bool {
        while let Some(count) = self.nanp(at) {
            at += count;
            if self.join(at - 1) == Join::Nothing {
                return true;
            }
        }
        false
    }

    /// Number that counts only after a context word: as many groups as any country allows.
    fn national(&self, at: usize) -> Option<usize> {
        let digits = self.digits(at);
        let (enough, most) = match digits {
            _ if digits.starts_with("00") || digits == "011" => (9, MOST_DIGITS),
            _ if digits.starts_with('0') => (9, 12),
            _ => (7, 13),
        };
        let (mut total, mut best) = (0, None);
        for here in at..self.groups.len().min(at + 6) {
            let len = self.groups[here].len();
            total += len;
            if len > 11 || total > most {
                break;
            }
            let quad = here == at + 3 && (at..here).all(|at| self.join(at) == Join::Tight('.'));
            if total >= 7 && !quad && self.may_end(here) {
                best = Some(here + 1 - at);
            }
            let ends = total >= enough && self.closes(at, here);
            if ends || self.join(here) == Join::Nothing {
                break;
            }
        }
        best
    }

    /// Number of groups from `at` that form a date or a range of years; 0 if they do not.
    fn date(&self, at: usize) -> usize {
        let joined = (at..at + 2).take_while(|&at| self.join(at) != Join::Nothing).count();
        let part = |n: usize| {
            let digits = self.digits(at + n);
            (digits.len(), digits.parse::<u32>().unwrap_or(u32::MAX))
        };
        let year = |(len, value): (usize, u32)| len == 4 && (1900..2100).contains(&value);
        let small = |(len, value): (usize, u32), most: u32| len <= 2 && (1..=most).contains(&value);
        if joined == 2 {
            let even = self.join(at) == self.join(at + 1);
            let marked = even && self.join(at) != Join::Loose || self.join(at + 2) == Join::Nothing;
            let iso = year(part(0)) && small(part(1), 12) && small(part(2), 31);
            if marked && (iso || small(part(0), 31) && small(part(1), 31) && year(part(2))) {
                return 3;
            }
        }
        let years =
            |a: (usize, u32), b: (usize, u32)| a.0 == 4 && b.0 == 4 && a.1 >= 1000 && a.1 < b.1 && b.1 < 2100;
        if joined > 0 && years(part(0), part(1)) { 2 } else { 0 }
    }
}

/// Returns true if a number may begin after this text; `fine` are marks to be ignored.
fn stands_behind(before: &str, fine: &[char]) -> bool {
    let last = before.chars().next_back();
    last.is_none_or(|c| fine.contains(&c) || !(c.is_alphanumeric() || "$€£#./-_=@".contains(c)))
}

/// Maximum digits of a number including its country code (ITU E.164 national plans); for unlisted countries the
/// maximum of E.164.
fn most_digits(digits: &str) -> usize {
    // Lengths exclude the country code.
    const LENGTHS: [(usize, &str); 6] = [
        (8, "45 47 65 216 370 371 372 386 506 507 852 853 965 968 973 974"),
        (9, "27 31 32 33 34 36 40 41 48 51 56 61 66 93 94 212 213 351 353 380 420 421 886 966 971 972"),
        (10, "1 7 20 30 44 46 52 57 58 60 63 64 81 82 84 90 91 92 95 98 234 254 880"),
        (11, "39 54 55 86 358"),
        (12, "49 62"),
        (13, "43"),
    ];
    let known = LENGTHS.iter().find_map(|(most, codes)| {
        codes.split(' ').find(|code| digits.starts_with(code)).map(|code| code.len() + most)
    });
    known.unwrap_or(MOST_DIGITS)
}

#[cfg(test)]
mod tests {
    use super::super::digits::groups;
    use super::*;

    fn phones(text: &str) -> Vec<&str> {
        let mut found = Vec::new();
        find(text, &groups(text), &Plans::new(&[]).unwrap(), &mut found);
        found.iter().map(|f| &text[f.start..f.end]).collect()
    }

    #[test]
    fn neighbours_do_not_hide_phones() {
        for (text, wanted) in [
            ("Tel 555-223-4567 / 555-987-6543", &["555-223-4567", "555-987-6543"][..]),
            ("555-223-4567 555-987-6543", &["555-223-4567", "555-987-6543"]),
            ("555-223-4567/555-987-6543.", &["555-223-4567", "555-987-6543"]),
            ("212 555 2368 646 555 1234", &["212 555 2368", "646 555 1234"]),
            ("(212) 555-2368 (646) 555-1234", &["(212) 555-2368", "(646) 555-1234"]),
            ("phone +44 20 7946 0958 2024 report", &["+44 20 7946 0958"]),
            ("phone +44 20 7946 0958 202 report", &["+44 20 7946 0958"]),
            ("+44 (0)20 7946 0958 12", &["+44 (0)20 7946 0958"]),
            ("+49 30 12345678 10 am", &["+49 30 12345678"]),
            ("+33 1 23 45 67 89 12", &["+33 1 23 45 67 89"]),
            ("+1 212 555 2368 +49 30 12345678", &["+1 212 555 2368", "+49 30 12345678"]),
            ("call 212-555-2368 10 am", &["212-555-2368"]),
            ("call 0171-1234567 10 am", &["0171-1234567"]),
            ("call 555-1234 10 am", &["555-1234"]),
            ("call 212-555-2368 10 12 2024 500", &["212-555-2368"]),
            ("555-223-4567 200 300 4000 12", &["555-223-4567"]),
            ("tel 020 7946 0958 5", &["020 7946 0958"]),
            ("Tel 020 7946 0958 or 020 7946 0959", &["020 7946 0958", "020 7946 0959"]),
            ("fax 020 7946 0958 020 7946 0959", &["020 7946 0958", "020 7946 0959"]),
            ("2024-01-15 212-555-2368", &["212-555-2368"]),
            ("1. 212-555-2368", &["212-555-2368"]),
            ("(call 1 800 555 0199)", &["1 800 555 0199"]),
            ("phone=+493012345678&x", &["+493012345678"]),
            ("tel 044-123 45 67, tel 0171 1234 567", &["044-123 45 67", "0171 1234 567"]),
            ("tel 1.212.555.2368", &["1.212.555.2368"]),
        ] {
            assert_eq!(phones(text), wanted, "{text}");
        }
    }

    #[test]
    fn other_numbers_are_left() {
        for text in [
            "200 300 4000 500 600",
            "rows 200-300-4000-5000",
            "call 2024-01-15 10:30, contact 2024-01-15 2024-02-16",
            "contact 192.168.1.1 or 10.0.0.1",
            "text 1914-1918 1939-1945",
            "200 300 4000 646 555 1234 12",
            "$212-555-2368 and 212-555-2368%",
            "a+1 212 555 2368",
        ] {
            assert!(phones(text).is_empty(), "{text}: {:?}", phones(text));
        }
    }
}
