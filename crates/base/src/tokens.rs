//! Token counts as people write them: `2048`, `16k`, `1m`. `k` is 1024, `m` is 1024 squared and `g` 1024 cubed,
//! because context lengths are usually powers of two.

/// Reads a count with an optional suffix `k`, `m` or `g` (either case) and optional `_` between digits. A fraction is
/// allowed if the result is whole: `1.5k` is 1536.
///
/// # Errors
/// Returns a sentence that describes the expected form.
pub fn parse(text: &str) -> Result<i64, String> {
    let clean: String = text.trim().chars().filter(|c| *c != '_').collect();
    let unit = match clean.chars().last().map(|c| c.to_ascii_lowercase()) {
        Some('k') => 1i64 << 10,
        Some('m') => 1 << 20,
        Some('g') => 1 << 30,
        _ => 1,
    };
    let digits = if unit == 1 { &clean[..] } else { &clean[..clean.len() - 1] };
    let wrong = || format!("`{text}` is not a whole number (write 2048, 16k or 1m; k is 1024)");
    let sign_and_digits = digits.strip_prefix(['-', '+']).unwrap_or(digits);
    if sign_and_digits.is_empty() || !sign_and_digits.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return Err(wrong());
    }
    if let Ok(n) = digits.parse::<i64>() {
        return n.checked_mul(unit).ok_or_else(|| format!("`{text}` is too large"));
    }
    let n = digits.parse::<f64>().map_err(|_| wrong())? * unit as f64;
    if n.fract() != 0.0 || n.abs() > 2f64.powi(53) {
        return Err(wrong());
    }
    Ok(n as i64)
}

/// Writes a count in the shortest exact form: 2048 is `2k`, 131072 is `128k`, 1048576 is `1m`, 1000 is `1000`.
pub fn format(tokens: u64) -> String {
    for (unit, suffix) in [(1u64 << 30, "g"), (1 << 20, "m"), (1 << 10, "k")] {
        if tokens >= unit && tokens.is_multiple_of(unit) {
            return format!("{}{suffix}", tokens / unit);
        }
    }
    tokens.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes() {
        for (text, value) in [
            ("2048", 2048),
            ("16k", 16384),
            ("128K", 131_072),
            ("1m", 1 << 20),
            ("1.5k", 1536),
            ("1_000", 1000),
            ("-3", -3),
            (" 2g ", 2 << 30),
        ] {
            assert_eq!(parse(text), Ok(value), "{text}");
        }
        for text in
            ["", "k", "-", "x", "1.5", "1e3", "16kk", "0x10", "99999999999999m", "9999999999999999999", "é"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        for n in [0, 1, 1000, 2048, 131_072, 1 << 20, 3 << 30, 1025] {
            assert_eq!(parse(&format(n)), Ok(n as i64));
        }
        assert_eq!(format(131_072), "128k");
    }
}
