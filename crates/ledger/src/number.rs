//! Formats numbers as ECMAScript does, which is what canonical JSON requires.

use std::fmt::Write;

/// Appends a finite number as `Number.prototype.toString` formats it; minus zero becomes `0`.
pub(crate) fn write_number(out: &mut String, number: f64) {
    if number == 0.0 {
        out.push('0');
        return;
    }
    if number < 0.0 {
        out.push('-');
    }
    // `serde_json` produces the digits that ECMAScript requires: the shortest that round-trip, of those the
    // closest, and on a tie the even one. The standard library's `{:e}` rounds ties up. Only the layout
    // differs.
    let shortest = serde_json::Value::from(number.abs()).to_string();
    let Decimal { digits, point } = Decimal::parse(&shortest);
    write_digits(out, &digits, point);
}

/// A decimal number without its sign, normalized so that different spellings of one number compare equal.
#[derive(PartialEq, Eq)]
pub(crate) struct Decimal {
    /// The significant digits, without leading and trailing zeros.
    digits: String,
    /// Position of the decimal point, counted from the first digit.
    point: i32,
}

impl Decimal {
    /// Parses an unsigned JSON number.
    pub(crate) fn parse(text: &str) -> Self {
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = [whole, fraction].concat();
        let digits = all.trim_start_matches('0');
        let leading = all.len() - digits.len();
        let places =
            i32::try_from(whole.len()).unwrap_or_default() - i32::try_from(leading).unwrap_or_default();
        let point = exponent.parse::<i32>().unwrap_or_default().saturating_add(places);
        Self { digits: digits.trim_end_matches('0').to_owned(), point }
    }
}

/// Writes the digits in ECMAScript's layout. `point` is the position of the decimal point, counted from the
/// first digit.
fn write_digits(out: &mut String, digits: &str, point: i32) {
    let places = usize::try_from(point).unwrap_or_default();
    match point {
        1..=21 if places >= digits.len() => {
            out.push_str(digits);
            out.extend(std::iter::repeat_n('0', places - digits.len()));
        }
        1..=21 => {
            out.push_str(&digits[..places]);
            out.push('.');
            out.push_str(&digits[places..]);
        }
        -5..=0 => {
            out.push_str("0.");
            out.extend((point..0).map(|_| '0'));
            out.push_str(digits);
        }
        _ => {
            let (first, rest) = digits.split_at(1);
            let dot = if rest.is_empty() { "" } else { "." };
            // Writing into a string cannot fail.
            let _ = write!(out, "{first}{dot}{rest}e{:+}", point - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    fn text(number: f64) -> String {
        let mut out = String::new();
        write_number(&mut out, number);
        out
    }

    #[test]
    fn matches_rfc_8785_number_samples() {
        for (bits, expected) in [
            (0x0000_0000_0000_0000, "0"),
            (0x8000_0000_0000_0000, "0"),
            (0x0000_0000_0000_0001, "5e-324"),
            (0x8000_0000_0000_0001, "-5e-324"),
            (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
            (0x4340_0000_0000_0000, "9007199254740992"),
            (0xc340_0000_0000_0000, "-9007199254740992"),
            (0x4430_0000_0000_0000, "295147905179352830000"),
            (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
            (0x44b5_2d02_c7e1_4af6, "1e+23"),
            (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
            (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
            (0x444b_1ae4_d6e2_ef50, "1e+21"),
            (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
            (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
            (0x41b3_de43_5555_5553, "333333333.3333332"),
            (0x41b3_de43_5555_5557, "333333333.33333343"),
            (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
            (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
        ] {
            assert_eq!(text(f64::from_bits(bits)), expected, "{bits:x}");
        }
    }

    /// The number sequence published with RFC 8785: hand-picked values, a range of consecutive bit patterns,
    /// then doubles taken from a chain of SHA-256 hashes. The expected hashes of its prefixes are published
    /// with it.
    fn published_sequence() -> impl Iterator<Item = f64> {
        let chosen = include_str!("../tests/fixtures/numbers.txt");
        let chosen: Vec<u64> =
            chosen.split_whitespace().map(|bits| u64::from_str_radix(bits, 16).unwrap()).collect();
        assert_eq!(chosen.len(), 168);
        let consecutive = (0..2000).map(|step| (1 << 52) + step);
        let mut block = [0; 32];
        let random = std::iter::repeat_with(move || {
            block = Sha256::digest(block).into();
            block
        });
        let random = random.flat_map(|block| {
            let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| block[at * 8 + byte]));
            [word(0), word(1), word(2), word(3)]
        });
        let random = random.map(f64::from_bits).filter(|number| number.is_finite() && *number != 0.0);
        chosen.into_iter().chain(consecutive).map(f64::from_bits).chain(random)
    }

    #[test]
    fn matches_published_hashes_of_100_000_numbers() {
        let mut hash = Sha256::new();
        let mut seen = Vec::new();
        for (line, number) in (1..=100_000).zip(published_sequence()) {
            hash.update(format!("{:x},{}\n", number.to_bits(), text(number)));
            if matches!(line, 1_000 | 10_000 | 100_000) {
                seen.push(hex::encode(hash.clone().finalize()));
            }
        }
        let hashes_of_the_rfc = [
            "be18b62b6f69cdab33a7e0dae0d9cfa869fda80ddc712221570f9f40a5878687",
            "b9f7a8e75ef22a835685a52ccba7f7d6bdc99e34b010992cbc5864cd12be6892",
            "22776e6d4b49fa294a0d0f349268e5c28808fe7e0cb2bcbe28f63894e494d4c7",
        ];
        assert_eq!(seen, hashes_of_the_rfc);
    }

    #[test]
    fn numbers_round_trip() {
        for number in published_sequence().take(20_000) {
            let read: f64 = serde_json::from_str(&text(number)).unwrap();
            assert_eq!(read.to_bits(), if number == 0.0 { 0 } else { number.to_bits() }, "{}", text(number));
        }
    }
}
