//! Parts of an address: street, units, towns, states, codes and countries.

use super::tokens::{Gap, Token};
use super::words::{self, Names, name_len};

/// End of the first code after a street, including a following country. Boxes need no street.
pub(super) fn coded(tokens: &[Token], boxed: bool) -> Option<usize> {
    let least = if boxed { 0 } else { 2 };
    let (at, count) = (least..tokens.len()).find_map(|at| code(&tokens[at..]).map(|count| (at, count)))?;
    let parted = tokens[1.min(at)..=at].iter().any(|token| token.gap != Gap::Space);
    let line = tokens[..at].iter().position(|token| token.gap == Gap::Line);
    let street = |tokens: &[Token]| {
        tokens.iter().any(|token| {
            words::is_kind(token.text)
                || words::is_route(token.text)
                || words::is_after_kind(token.text)
                || token.is_ordinal()
        })
    };
    // A state and a code follow a town.
    let town = at > 0 && !tokens[at - 1].has_digit();
    // Across a line end the first line must look like a street, since numbers begin the lines of lists.
    let proper = match line {
        Some(line) => town && street(&tokens[..line]),
        None => town && (parted || street(&tokens[..at])),
    };
    let last = tokens[at + count - 1];
    (boxed || proper).then(|| country(&tokens[at + count..]).unwrap_or(last.end))
}

/// Number of tokens that form a state with its code, or a post code.
fn code(tokens: &[Token]) -> Option<usize> {
    let (first, second) = (tokens.first()?, tokens.get(1));
    let near = |token: &&Token| token.gap != Gap::Line;
    let zip =
        |at: usize, short: bool| tokens.get(at).filter(near).is_some_and(|token| is_zip(token.text, short));
    // Check codes first, since they are recognized faster than names.
    if zip(1, true) && words::is_state(first.text) {
        return Some(2);
    }
    if zip(1, false) || zip(2, false) {
        let texts = tokens.iter().map(|token| token.text);
        if let Some(count) = name_len(Names::States, texts).filter(|count| zip(*count, false)) {
            return Some(count + 1);
        }
    }
    if second.is_some_and(|t| t.text.len() == 4 && is_digits(t.text)) && words::is_australian(first.text) {
        return Some(2);
    }
    let halves = first.text.split_at_checked(first.text.len().saturating_sub(3));
    if halves.is_some_and(|(out, inner)| is_post_code(out, inner)) {
        return Some(1);
    }
    let pair = second.filter(|second| second.gap == Gap::Space && !first.dot);
    pair.is_some_and(|second| is_post_code(first.text, second.text)).then_some(2)
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

/// Five digits, or nine with a hyphen; four if a table has lost the leading zero.
fn is_zip(text: &str, short: bool) -> bool {
    match text.split_once('-') {
        Some((zip, more)) => zip.len() == 5 && more.len() == 4 && is_digits(zip) && is_digits(more),
        None => is_digits(text) && (text.len() == 5 || short && text.len() == 4),
    }
}

/// Matches Britain's "SW1A 2AA" and Canada's "K1A 0B1".
fn is_post_code(out: &str, inner: &str) -> bool {
    let [a, b, c] = inner.as_bytes() else { return false };
    let digits = (a.is_ascii_digit(), c.is_ascii_digit());
    match digits {
        (true, false) => {
            let unit = |b: &u8| b.is_ascii_uppercase() && !b"CIKMOV".contains(b);
            unit(b) && unit(c) && is_district(out)
        }
        (true, true) => {
            let area = |out: &[u8]| matches!(out, [a, b, c] if a.is_ascii_uppercase() && b.is_ascii_digit() && c.is_ascii_uppercase());
            b.is_ascii_uppercase() && area(out.as_bytes())
        }
        _ => false,
    }
}

/// Matches the first half of a British post code.
fn is_district(text: &str) -> bool {
    let letters = text.bytes().take_while(u8::is_ascii_uppercase).count();
    let rest = text.as_bytes().get(letters..).unwrap_or_default();
    let end = |b: u8| b.is_ascii_digit() || b.is_ascii_uppercase();
    (1..=2).contains(&letters)
        && matches!(rest, [a, ..] if a.is_ascii_digit())
        && (rest.len() == 1 || rest.len() == 2 && end(rest[1]))
}

/// End of a country name at the beginning of the tokens.
fn country(tokens: &[Token]) -> Option<usize> {
    let first = tokens.first()?;
    let count = name_len(Names::Countries, tokens.iter().map(|token| token.text))?;
    let short = first.text.bytes().all(|b| b.is_ascii_uppercase() || b == b'.');
    let last = tokens[count - 1];
    let dot = usize::from(last.dot && last.text.contains('.'));
    (first.gap != Gap::Space || short).then_some(last.end + dot)
}

/// Number of tokens that form a street: a name with its kind, or a road with a number.
pub(super) fn street(tokens: &[Token]) -> Option<usize> {
    // Returns true if the token continues the same part.
    let joined = |at: usize| tokens.get(at).is_some_and(|token| at == 0 || token.gap == Gap::Space);
    let from = usize::from(tokens.len() > 1 && words::is_after_kind(tokens[0].text));
    let from = from + usize::from(tokens.len() > from + 1 && words::is_route_kind(tokens[from].text));
    let road = tokens
        .get(from)
        .is_some_and(|token| words::is_route(token.text) || from > 0 && matches!(token.text, "Road" | "Rd"));
    let number = |at: usize| {
        joined(at) && tokens[at].text.len() <= 4 && tokens[at].text.starts_with(|c: char| c.is_ascii_digit())
    };
    let mut end = if road && joined(from) && number(from + 1) {
        from + 2
    } else {
        let named = |at: &usize| {
            joined(*at)
                && (tokens[*at].is_word() || tokens[*at].is_ordinal() || words::is_article(tokens[*at].text))
        };
        let names = (0..6).take_while(named).count();
        (1..names).find(|at| words::is_kind(tokens[*at].text) && !words::is_no_name(tokens[at - 1].text))? + 1
    };
    let goes_on = |token: &Token| {
        words::is_kind(token.text) || words::is_after_kind(token.text) || words::is_route(token.text)
    };
    while joined(end) && goes_on(&tokens[end]) {
        end += 1;
        if words::is_route(tokens[end - 1].text) && number(end) {
            end += 1;
        }
    }
    Some(end)
}

/// Number of tokens of an address whose street has `count`: units, a town, a county or state, a code, a country.
pub(super) fn towns(tokens: &[Token], count: usize) -> Option<usize> {
    let mut end = count;
    while let Some(more) = unit(&tokens[end..]) {
        end += more;
    }
    let town = town(&tokens[end..]).filter(|_| tokens[end].gap == Gap::Comma);
    end += town.unwrap_or(0);
    let state = |token: &Token| token.gap != Gap::Line && words::is_state(token.text);
    if tokens.get(end).is_some_and(state) {
        end += 1;
    }
    for names in [Names::Counties, Names::States, Names::Countries] {
        let part = tokens.get(end).filter(|token| token.gap == Gap::Comma);
        let len = || name_len(names, tokens[end..].iter().map(|token| token.text));
        end += part.and_then(|_| len()).unwrap_or(0);
    }
    // Remainder of a code without its state, or of a partial one.
    let left =
        |token: &&Token| token.gap == Gap::Space && (is_zip(token.text, false) || is_district(token.text));
    end += usize::from(tokens.get(end).filter(left).is_some());
    (end > count).then_some(end)
}

/// Number of tokens that form a part of a building.
fn unit(tokens: &[Token]) -> Option<usize> {
    let first = tokens.first().filter(|token| token.gap != Gap::Line)?;
    if first.text.starts_with('#') && first.text.len() > 1 {
        return Some(1);
    }
    let second = tokens.get(1).filter(|token| token.gap == Gap::Space)?;
    let number = second.text.trim_start_matches('#');
    let named = number.len() == 1 || number.contains(|c: char| c.is_ascii_digit()) && number.len() <= 6;
    let behind = first.is_ordinal() && matches!(second.text, "Floor" | "Fl");
    ((first.text == "#" || words::is_unit(first.text)) && named || behind).then_some(2)
}

/// Number of tokens that form a town name: at most three, and not a state.
fn town(tokens: &[Token]) -> Option<usize> {
    let mut count = 0;
    while count < 3 {
        let Some(token) = tokens.get(count).filter(|token| count == 0 || token.gap == Gap::Space) else {
            break;
        };
        let state = count > 0 && words::is_state(token.text);
        let ended = count > 0 && tokens[count - 1].dot && !tokens[count - 1].is_abbreviation();
        if !token.is_word() || state || ended || words::is_no_town(token.text) {
            break;
        }
        count += 1;
    }
    (count > 0).then_some(count)
}
