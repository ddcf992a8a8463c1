//! Floating-point numbers as Python prints them.

/// Python's text form of a float: with an exponent of at least two digits below 1e-4 and from 1e16 on.
pub fn float(number: f64) -> String {
    let text = format!("{number:?}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
            format!("{}e{sign}{digits:0>2}", mantissa.strip_suffix(".0").unwrap_or(mantissa))
        }
        None => text,
    }
}
