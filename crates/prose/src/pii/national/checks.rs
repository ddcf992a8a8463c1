//! Check digits. Numbers come as letters and digits in ASCII without separators; each check is named after its rule or number.

use super::super::numbers::luhn as luhn_rest;

/// Values of the digits; of letters, 0.
fn digits(number: &[u8]) -> Vec<u32> {
    number.iter().map(|byte| char::from(*byte).to_digit(10).unwrap_or(0)).collect()
}

/// Values of digits and letters: `A` is 10.
fn values(number: &[u8]) -> Vec<u32> {
    number.iter().map(|byte| char::from(*byte).to_digit(36).unwrap_or(0)).collect()
}

fn weighted(digits: &[u32], weights: &[u32]) -> u32 {
    digits.iter().zip(weights).map(|(digit, weight)| digit * weight).sum()
}

/// Sum of a number's digits.
fn cross(number: u32) -> u32 {
    number / 10 + number % 10
}

fn number(digits: &[u32]) -> u32 {
    digits.iter().fold(0, |sum, digit| sum * 10 + digit)
}

/// Days of a month; February has 29.
fn is_day(day: u32, month: u32) -> bool {
    let most = match month {
        2 => 29,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return false,
    };
    (1..=most).contains(&day)
}

/// Whether it is not all zeros, which satisfy most sums and are not given out.
fn is_given(number: &[u8]) -> bool {
    number.iter().any(|digit| *digit != b'0')
}

pub(super) fn any(_: &[u8]) -> bool {
    true
}

pub(super) fn luhn(number: &[u8]) -> bool {
    luhn_rest(&digits(number)) == 0
}

/// Verhoeff's check by the dihedral group D5.
fn verhoeff(number: &[u8]) -> bool {
    const PERMUTED: [[u32; 10]; 8] = [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
        [1, 5, 7, 6, 2, 8, 3, 0, 9, 4],
        [5, 8, 0, 3, 7, 9, 6, 1, 4, 2],
        [8, 9, 1, 6, 0, 4, 3, 5, 2, 7],
        [9, 4, 5, 3, 1, 2, 6, 8, 7, 0],
        [4, 2, 8, 6, 5, 7, 3, 9, 0, 1],
        [2, 7, 9, 3, 8, 0, 6, 4, 1, 5],
        [7, 0, 4, 6, 9, 1, 3, 2, 5, 8],
    ];
    // Rotations are 0 to 4, reflections 5 to 9.
    let product = |a: u32, b: u32| match (a < 5, b < 5) {
        (true, true) => (a + b) % 5,
        (true, false) => 5 + (a + b - 5) % 5,
        (false, true) => 5 + (a - 5 + 5 - b) % 5,
        (false, false) => (a + 5 - b) % 5,
    };
    let digits = digits(number);
    let reversed = digits.iter().rev().enumerate();
    reversed.fold(0, |sum, (at, digit)| product(sum, PERMUTED[at % 8][*digit as usize])) == 0
}

/// The check digit of ISO 7064, mod 11, 10.
fn iso_7064(digits: &[u32]) -> u32 {
    let product = digits.iter().fold(10, |product, digit| {
        let sum = (digit + product) % 10;
        (if sum == 0 { 10 } else { sum }) * 2 % 11
    });
    (11 - product) % 10
}

pub(super) fn au_abn(number: &[u8]) -> bool {
    let mut digits = digits(number);
    let Some(first) = digits[0].checked_sub(1) else { return false };
    digits[0] = first;
    weighted(&digits, &[10, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19]).is_multiple_of(89)
}

pub(super) fn au_acn(number: &[u8]) -> bool {
    let digits = digits(number);
    is_given(number) && (weighted(&digits[..8], &[8, 7, 6, 5, 4, 3, 2, 1]) + digits[8]).is_multiple_of(10)
}

pub(super) fn au_medicare(number: &[u8]) -> bool {
    let digits = digits(number);
    weighted(&digits[..8], &[1, 3, 7, 9, 1, 3, 7, 9]) % 10 == digits[8]
}

pub(super) fn au_tfn(number: &[u8]) -> bool {
    is_given(number) && weighted(&digits(number), &[1, 4, 3, 7, 5, 8, 6, 9, 10]).is_multiple_of(11)
}

pub(super) fn de_bsnr(number: &[u8]) -> bool {
    is_given(number)
}

pub(super) fn de_health_insurance(number: &[u8]) -> bool {
    let letter = u32::from(number[0] - b'A') + 1;
    let digits = digits(number);
    let all: Vec<u32> = [letter / 10, letter % 10].into_iter().chain(digits[1..9].iter().copied()).collect();
    let sum: u32 = all.iter().zip([1, 2].iter().cycle()).map(|(digit, weight)| cross(digit * weight)).sum();
    sum % 10 == digits[9]
}

/// A serial number of nine characters, or one with the check digit of machine-readable documents (ICAO 9303: weights 7, 3, 1).
pub(super) fn de_document(number: &[u8]) -> bool {
    let values = values(number);
    match values.split_at_checked(9) {
        Some((serial, [check])) => weighted(serial, &[7, 3, 1, 7, 3, 1, 7, 3, 1]) % 10 == *check,
        _ => number.iter().any(u8::is_ascii_digit),
    }
}

pub(super) fn de_lanr(number: &[u8]) -> bool {
    let digits = digits(number);
    (weighted(&digits[..6], &[4, 9, 4, 9, 4, 9]) + digits[6]).is_multiple_of(10)
}

pub(super) fn de_plz(number: &[u8]) -> bool {
    number != b"01000" && number != b"99999"
}

pub(super) fn de_social_security(number: &[u8]) -> bool {
    let digits = digits(number);
    let (day, month) = (digits[2] * 10 + digits[3], digits[4] * 10 + digits[5]);
    let letter = u32::from(number[8].saturating_sub(b'A')) + 1;
    let all = [&digits[..8], &[letter / 10, letter % 10], &digits[9..11]].concat();
    let weights = [2, 1, 2, 5, 7, 1, 2, 1, 2, 1, 2, 1];
    let sum: u32 = all.iter().zip(weights).map(|(digit, weight)| cross(digit * weight)).sum();
    // Numbers of people who share a birthday have 50 added to the day.
    matches!(day, 1..=31 | 51..=81) && (1..=12).contains(&month) && sum % 10 == digits[11]
}

pub(super) fn de_tax_id(number: &[u8]) -> bool {
    let digits = digits(number);
    // One of the first ten digits occurs twice or three times, and the others once or not at all.
    let counts = (0..10).map(|digit| digits[..10].iter().filter(|it| **it == digit).count());
    let repeated: Vec<usize> = counts.filter(|count| *count > 1).collect();
    matches!(repeated[..], [2 | 3]) && iso_7064(&digits[..10]) == digits[10]
}

pub(super) fn es_nie(number: &[u8]) -> bool {
    let first = number[0].wrapping_sub(b'X');
    first < 3 && es_letter(u32::from(first), &number[1..])
}

pub(super) fn es_nif(number: &[u8]) -> bool {
    es_letter(0, number)
}

/// Returns whether the last letter is that of the number before it, to which `first` is the leading digit.
fn es_letter(first: u32, number: &[u8]) -> bool {
    let Some((letter, rest)) = number.split_last() else { return false };
    let rest = digits(rest).iter().fold(first, |sum, digit| sum * 10 + digit);
    b"TRWAGMYFPDXBNJZSQVHLCKE"[rest as usize % 23] == *letter
}

pub(super) fn fi_personal_identity_code(code: &[u8]) -> bool {
    let all = digits(code);
    // The century's sign is a letter or a mark, which is no longer there.
    let serial = code.len() - 4;
    let born = number(&all[..2]);
    let checked = u64::from(number(&all[..6])) * 1000 + u64::from(number(&all[serial..serial + 3]));
    is_day(born, number(&all[2..4]))
        && b"0123456789ABCDEFHJKLMNPRSTUVWXY"[(checked % 31) as usize] == code[serial + 3]
}

pub(super) fn in_aadhaar(number: &[u8]) -> bool {
    number[0] >= b'2' && verhoeff(number) && !number.iter().eq(number.iter().rev())
}

pub(super) fn in_gstin(number: &[u8]) -> bool {
    let state = digits(&number[..2]);
    // States and union territories; then other territory and the centre.
    matches!(state[0] * 10 + state[1], 1..=38 | 97 | 99)
}

pub(super) fn it_fiscal_code(code: &[u8]) -> bool {
    const ODD: [u32; 26] =
        [1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23];
    let value = |(at, byte): (usize, &u8)| {
        let index = if byte.is_ascii_digit() { byte - b'0' } else { byte - b'A' };
        if at % 2 == 0 { ODD[usize::from(index)] } else { u32::from(index) }
    };
    let sum: u32 = code[..15].iter().enumerate().map(value).sum();
    u32::from(code[15] - b'A') == sum % 26
}

pub(super) fn it_vat_code(number: &[u8]) -> bool {
    is_given(number) && luhn(number)
}

pub(super) fn kr_brn(number: &[u8]) -> bool {
    let digits = digits(number);
    let sum = weighted(&digits[..9], &[1, 3, 7, 1, 3, 7, 1, 3, 5]) + digits[8] * 5 / 10;
    (sum + digits[9]).is_multiple_of(10)
}

pub(super) fn kr_driver_license(number: &[u8]) -> bool {
    let digits = digits(number);
    matches!(digits[0] * 10 + digits[1], 11..=26 | 28)
}

pub(super) fn ng_nin(number: &[u8]) -> bool {
    verhoeff(number)
}

pub(super) fn ph_tin(number: &[u8]) -> bool {
    let digits = digits(number);
    weighted(&digits[..8], &[9, 8, 7, 6, 5, 4, 3, 2]) % 11 == digits[8]
}

pub(super) fn pl_pesel(number: &[u8]) -> bool {
    let digits = digits(number);
    // The century is added to the month in steps of 20.
    let (month, day) = ((digits[2] * 10 + digits[3]) % 20, digits[4] * 10 + digits[5]);
    let sum = weighted(&digits[..10], &[1, 3, 7, 9, 1, 3, 7, 9, 1, 3]);
    (1..=12).contains(&month) && (1..=31).contains(&day) && (sum + digits[10]).is_multiple_of(10)
}

pub(super) fn se_organisationsnummer(number: &[u8]) -> bool {
    number[2] >= b'2' && luhn(number)
}

pub(super) fn se_personnummer(number: &[u8]) -> bool {
    let number = &number[number.len() - 10..];
    let digits = digits(number);
    // A coordination number has 60 added to the day.
    let (month, day) = (digits[2] * 10 + digits[3], (digits[4] * 10 + digits[5]) % 60);
    (1..=12).contains(&month) && (1..=31).contains(&day) && luhn(number)
}

/// A number of a company in Singapore: a local one, a business, or another body.
pub(super) fn sg_uen(number: &[u8]) -> bool {
    let (last, rest) = (number[number.len() - 1], &number[..number.len() - 1]);
    if number[0].is_ascii_alphabetic() {
        let alphabet = b"ABCDEFGHJKLMNPQRSTUVWX0123456789";
        let value = |byte: &u8| alphabet.iter().position(|it| it == byte).map(|at| at as u32);
        let Some(values) = rest.iter().map(value).collect::<Option<Vec<u32>>>() else { return false };
        let sum = weighted(&values, &[4, 3, 5, 3, 10, 2, 2, 5, 7]) + 11 - 5;
        return alphabet[(sum % 11) as usize] == last;
    }
    let digits = digits(rest);
    match number.len() {
        9 => b"XMKECAWLJDB"[(weighted(&digits, &[10, 4, 9, 3, 8, 2, 7, 1]) % 11) as usize] == last,
        _ => b"ZKCMDNERGWH"[(weighted(&digits, &[10, 8, 6, 4, 9, 7, 5, 3, 1]) % 11) as usize] == last,
    }
}

pub(super) fn th_tnin(number: &[u8]) -> bool {
    let digits = digits(number);
    let sum = weighted(&digits[..12], &[13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2]);
    (11 - sum % 11) % 10 == digits[12]
}

pub(super) fn tr_national_id(number: &[u8]) -> bool {
    let digits = digits(number);
    let odd: u32 = digits[..9].iter().step_by(2).sum();
    let even: u32 = digits[1..8].iter().step_by(2).sum();
    (odd * 7 + 100 - even) % 10 == digits[9] && digits[..10].iter().sum::<u32>() % 10 == digits[10]
}

/// A surname's five letters are filled with nines.
pub(super) fn uk_driving_licence(number: &[u8]) -> bool {
    let letters = number[..5].iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    letters > 0 && number[letters..5].iter().all(|byte| *byte == b'9')
}

pub(super) fn uk_nhs(number: &[u8]) -> bool {
    is_given(number) && weighted(&digits(number), &[10, 9, 8, 7, 6, 5, 4, 3, 2, 1]).is_multiple_of(11)
}

pub(super) fn uk_nino(number: &[u8]) -> bool {
    !matches!(&number[..2], b"BG" | b"GB" | b"NK" | b"KN" | b"NT" | b"TN" | b"ZZ")
}

pub(super) fn us_aba(number: &[u8]) -> bool {
    is_given(number) && weighted(&digits(number), &[3, 7, 1, 3, 7, 1, 3, 7, 1]).is_multiple_of(10)
}

/// A number of the Drug Enforcement Administration.
pub(super) fn us_dea(number: &[u8]) -> bool {
    let digits = digits(&number[2..]);
    weighted(&digits[..6], &[1, 2, 1, 2, 1, 2]) % 10 == digits[6]
}

pub(super) fn us_npi(number: &[u8]) -> bool {
    let is_constant = number[..9].iter().all(|digit| *digit == number[0]);
    !is_constant && luhn(&[b"80840", number].concat())
}

pub(super) fn za_id(number: &[u8]) -> bool {
    let digits = digits(number);
    is_day(digits[4] * 10 + digits[5], digits[2] * 10 + digits[3]) && luhn(number)
}

/// A hardware address, not that of all machines or of none.
pub(super) fn mac(number: &[u8]) -> bool {
    let is_constant = |value: u8| number.iter().all(|byte| byte.to_ascii_uppercase() == value);
    !is_constant(b'F') && !is_constant(b'0')
}
