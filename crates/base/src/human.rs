//! Human-readable formatting of quantities, shared so that all tables and pages agree.

use std::time::Duration;

/// The months in English.
#[rustfmt::skip]
pub const MONTHS: [&str; 12] = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December",
];

/// Bytes with a binary unit and three digits: `512 B`, `1.50 KiB`, `23.4 MiB`, `139 GiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    scaled(n as f64, 1024.0, &UNITS, " ", n < 1024)
}

/// Parses sizes such as `1000`, `24GiB`, `1.5 GB`. `KiB`, `MiB`, `GiB`, `TiB` are powers of 1024, `KB` to `TB` of
/// 1000, and a bare `k`, `m`, `g`, `t` (either case) of 1024.
///
/// # Errors
/// A sentence that describes the expected form.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let unit = unit.trim().to_ascii_lowercase();
    let power = |letter: &str| "kmgt".find(letter).map_or(0, |place| place as u32 + 1);
    let factor = match unit.as_str() {
        "" | "b" => Some(1),
        "k" | "m" | "g" | "t" | "kib" | "mib" | "gib" | "tib" => Some(1024u64.pow(power(&unit[..1]))),
        "kb" | "mb" | "gb" | "tb" => Some(1000u64.pow(power(&unit[..1]))),
        _ => None,
    };
    let number = digits.replace('_', "").parse::<f64>().ok();
    let bytes = number.zip(factor).map(|(number, factor)| number * factor as f64);
    match bytes.filter(|bytes| *bytes < 2f64.powi(63)) {
        Some(bytes) => Ok(bytes as u64),
        None => Err(format!("`{text}` is not a size (write 24GiB, 1.5TB or 1000000)")),
    }
}

/// A count with a decimal suffix and three digits: `999`, `1.23 K`, `45.6 M`, `8.03 B`.
pub fn count(n: u64) -> String {
    const UNITS: [&str; 6] = ["", "K", "M", "B", "T", "Q"];
    scaled(n as f64, 1000.0, &UNITS, " ", n < 1000)
}

/// A number with an SI prefix, for FLOPs or FLOP/s: `1.30 T`; `0.045 T` is written `45.0 G`.
pub fn si(x: f64) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    scaled(x, 1000.0, &UNITS, " ", false)
}

/// A duration: `850 ms`, `12.3 s`, `4 m 05 s`, `2 h 07 m`, `3 d 04 h`.
pub fn duration(time: Duration) -> String {
    seconds(time.as_secs_f64())
}

/// Like [`duration`], from seconds. Negative and non-finite values give `-`.
pub fn seconds(s: f64) -> String {
    if !s.is_finite() || s < 0.0 {
        return "-".into();
    }
    if s < 0.9995 {
        return if s < 0.01 { format!("{:.2} ms", s * 1e3) } else { format!("{:.0} ms", s * 1e3) };
    }
    if s < 59.95 {
        return format!("{s:.1} s");
    }
    let whole = s.round() as u64;
    let (d, h, m, s) = (whole / 86400, whole / 3600 % 24, whole / 60 % 60, whole % 60);
    match (d, h) {
        (0, 0) => format!("{m} m {s:02} s"),
        (0, _) => format!("{h} h {m:02} m"),
        _ => format!("{d} d {h:02} h"),
    }
}

/// A fraction as a percentage: `12.3 %`.
pub fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.1} %", share * 100.0) } else { "-".into() }
}

/// An integer with thin spaces between groups of three digits: `1 234 567`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 2);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(c);
    }
    out
}

/// A count of things with grouped digits: `1 document`, `2 documents`.
pub fn counted(n: u64, one: &str) -> String {
    format!("{} {one}{}", grouped(n), if n == 1 { "" } else { "s" })
}

/// A real number with about four digits, for tables: `0.0003` is `3e-4`, `1234.5` is `1234`.
pub fn number(x: f64) -> String {
    if !x.is_finite() {
        return if x.is_nan() { "NaN".into() } else { format!("{x}") };
    }
    let size = x.abs();
    if x == 0.0 {
        "0".into()
    } else if !(1e-3..1e6).contains(&size) {
        let text = format!("{x:.3e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        format!("{}e{exponent}", trim_zeros(mantissa))
    } else {
        let decimals = (3 - size.log10().floor() as i32).clamp(0, 6) as usize;
        trim_zeros(&format!("{x:.decimals$}")).to_string()
    }
}

fn trim_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

fn scaled(x: f64, base: f64, units: &[&str], gap: &str, exact: bool) -> String {
    if !x.is_finite() {
        return "-".into();
    }
    let (mut x, mut unit) = (x, 0);
    // 999.5 would print four digits, so the next unit starts there.
    while x.abs() >= base * 0.9995 && unit + 1 < units.len() {
        x /= base;
        unit += 1;
    }
    let number = match x.abs() {
        _ if exact => format!("{x:.0}"),
        a if a >= 99.95 => format!("{x:.0}"),
        a if a >= 9.995 => format!("{x:.1}"),
        _ => format!("{x:.2}"),
    };
    if units[unit].is_empty() { number } else { format!("{number}{gap}{}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_written() {
        let read = |text: &str| parse_bytes(text).ok();
        assert_eq!(read("24GiB"), Some(24 << 30));
        assert_eq!(
            (read("1.5 GB"), read("2g"), read("7_000")),
            (Some(1_500_000_000), Some(2 << 30), Some(7000))
        );
        assert!(["", "GiB", "12 parsecs", "-3", "1e99"].into_iter().all(|text| read(text).is_none()));
    }

    #[test]
    fn reads_well() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes(150 << 20), "150 MiB");
        assert_eq!(bytes(1 << 40), "1.00 TiB");
        assert_eq!(count(999), "999");
        assert_eq!(count(1234), "1.23 K");
        assert_eq!(count(8_030_000_000), "8.03 B");
        assert_eq!(si(1.3e12), "1.30 T");
        assert_eq!(seconds(0.0042), "4.20 ms");
        assert_eq!(seconds(12.34), "12.3 s");
        assert_eq!(seconds(245.0), "4 m 05 s");
        assert_eq!(seconds(7620.0), "2 h 07 m");
        assert_eq!(seconds(f64::NAN), "-");
        assert_eq!(percent(0.1234), "12.3 %");
        assert_eq!(grouped(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(number(3e-4), "3e-4");
        assert_eq!(number(0.9), "0.9");
        assert_eq!(number(1234.5), "1234");
        assert_eq!(number(2.34567), "2.346");
        assert_eq!(number(f64::NAN), "NaN");
    }
}
