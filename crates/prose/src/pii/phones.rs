//! Telephone numbers: international ones by their `+` and the length that their country has, North American ones by their
//! groups, others with a word before them, or in the format of a country that is named before them or by an option.

use super::digits::{Group, Join, join};
use super::plans::Plans;
use super::{Entity, Found, has_context};

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

/// Digits of an international number at most (E.164).
const MOST_DIGITS: usize = 15;
/// Groups of a number at most.
const MOST_GROUPS: usize = 8;

/// Finds all telephone numbers; `groups` are those of `text`.
pub(super) fn find(text: &str, groups: &[Group], plans: &Plans, found: &mut Vec<Found>) {
    let line = Line { text, groups, plans };
    let mut at = 0;
    // The groups of the phone before.
    let mut last: Option<(usize, usize)> = None;
    while at < groups.len() {
        let led = last.is_some_and(|last| line.leads(last, at));
        match line.phone(at, led) {
            Ok((start, count)) => {
                found.push(Found { entity: Entity::Phone, start, end: groups[at + count - 1].end });
                last = Some((at, count));
                at += count;
            }
            Err(count) => at += count,
        }
    }
}

/// A text with its groups of digits.
struct Line<'a> {
    text: &'a str,
    groups: &'a [Group],
    plans: &'a Plans,
}

impl Line<'_> {
    /// Whether a phone, of so many groups from `last` on, makes one of what begins at group `at`: where a list goes on,
    /// or only a space is between and the groups are as long and joined alike.
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

    /// A number that begins at group `at`: its first byte and its groups; else how many groups to pass over.
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
        // Words are looked for last: they cost the most.
        let context = || led || first && has_context(self.text, start, 28, &PHONE_WORDS);
        let planned = || if date == 0 && first { self.planned(at) } else { None };
        let count = count.filter(|_| context()).or_else(planned);
        count.map(|count| (self.start(at, start, count), count)).ok_or(date.max(1))
    }

    /// The groups of a number in the national format of a country that is named.
    fn planned(&self, at: usize) -> Option<usize> {
        // Fractions, ISBNs and rows of digits begin with a single one; so does "8 (495)".
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

    /// Where the number begins: with a bracket before it that is closed inside.
    fn start(&self, at: usize, start: usize, count: usize) -> usize {
        let closed = self.text[start..self.groups[at + count - 1].end].contains(')');
        start - usize::from(closed && self.text[..start].ends_with('('))
    }

    /// What joins group `at` to the next one.
    fn join(&self, at: usize) -> Join {
        self.groups
            .get(at + 1)
            .map_or(Join::Nothing, |next| join(&self.text[self.groups[at].end..next.start]))
    }

    fn digits(&self, at: usize) -> &str {
        &self.text[self.groups[at].start..self.groups[at].end]
    }

    /// Whether a number may end with group `at`.
    fn may_end(&self, at: usize) -> bool {
        let after = &self.text[self.groups[at].end..];
        !after.starts_with(|c: char| c.is_alphanumeric() || "%$€°@".contains(c))
            && matches!(self.join(at), Join::Nothing | Join::Loose | Join::Tight('/'))
    }

    /// Whether a number that has enough digits ends with group `at` though another follows behind a space: a space does
    /// not go on behind many digits in a row, behind a mark, or to a single digit.
    fn closes(&self, first: usize, at: usize) -> bool {
        let marked = at > first && matches!(self.join(at - 1), Join::Tight(mark) if mark != '(');
        let single = self.groups.get(at + 1).is_some_and(|next| next.len() == 1);
        self.join(at) == Join::Loose && (self.groups[at].len() >= 6 || marked || single)
    }

    /// The groups behind a `+`: as many as the country's numbers have digits.
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

    /// The groups of a complete North American number from `at`, three or four.
    fn nanp(&self, at: usize) -> Option<usize> {
        let one = usize::from(self.digits(at) == "1");
        let all = self.groups.get(at..at + one + 3)?;
        let joined = (at..at + one + 2).all(|at| self.join(at) != Join::Nothing);
        let lens = all[one..].iter().map(|group| group.len()).eq([3, 3, 4]);
        let codes = (at + one..at + one + 2).all(|at| self.digits(at).as_bytes()[0] >= b'2');
        (joined && lens && codes).then_some(one + 3)
    }

    /// Whether a North American number is one without a word: marks join it and not what is around it, or there is
    /// nothing else.
    fn stands_apart(&self, at: usize, count: usize, first: bool) -> bool {
        let inner = self.join(at + count - 2);
        let marked = matches!(inner, Join::Tight(_));
        let apart = self.join(at + count - 1) != inner && (first || self.join(at - 1) != inner);
        marked && apart || first && self.only_nanp(at)
    }

    /// Whether from `at` on there are only North American numbers, until something else than a join comes.
    fn only_nanp(&self, mut at: usize) -> bool {
        while let Some(count) = self.nanp(at) {
            at += count;
            if self.join(at - 1) == Join::Nothing {
                return true;
            }
        }
        false
    }

    /// A number that only a word makes one: the most groups that countries have.
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

    /// How many groups from `at` are a date or a range of years; 0 when they are none.
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

/// Whether a number may begin behind this text; `fine` are marks that do not matter here.
fn stands_behind(before: &str, fine: &[char]) -> bool {
    let last = before.chars().next_back();
    last.is_none_or(|c| fine.contains(&c) || !(c.is_alphanumeric() || "$€£#./-_=@".contains(c)))
}

/// The most digits that a number has, its country code included (ITU E.164 national plans); of a country that is not
/// listed what E.164 allows.
fn most_digits(digits: &str) -> usize {
    // Without the country code.
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
