//! Numbers as text. A number is an integer of 64 bits, and longer ones wrap around.

/// The value of a number in a script: digits, or `0x` and hexadecimal digits.
pub(crate) fn parse_literal(text: &[u8]) -> Option<i64> {
    match text {
        [b'0', b'x' | b'X', digits @ ..] => parse_hexadecimal(digits),
        // As in OpenZFS, a zero in front makes the number octal.
        [b'0', _, ..] => parse_digits(text, 8),
        digits => parse_digits(digits, 10),
    }
}

/// A hexadecimal number. As in OpenZFS, it may have a fraction and a binary exponent, and is cut to an integer.
fn parse_hexadecimal(text: &[u8]) -> Option<i64> {
    let is_exponent = |byte: &u8| matches!(byte, b'p' | b'P');
    let (digits, exponent) = match text.iter().position(is_exponent) {
        Some(place) => (&text[..place], exponent(&text[place + 1..])?),
        None => (text, 0),
    };
    let (whole, fraction) = match digits.iter().position(|byte| *byte == b'.') {
        Some(place) => (&digits[..place], &digits[place + 1..]),
        None => (digits, &digits[digits.len()..]),
    };
    let number = parse_digits(&[whole, fraction].concat(), 16)?;
    let shift = exponent.saturating_sub(4 * fraction.len() as i64);
    let places = shift.unsigned_abs() as u32;
    Some(if shift >= 0 {
        number.wrapping_shl(places)
    } else {
        number.wrapping_shr(places)
    })
}

fn exponent(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text {
        [b'-', digits @ ..] => (-1, digits),
        [b'+', digits @ ..] => (1, digits),
        digits => (1, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let value = digits.iter().try_fold(0i64, |value, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        Some(value.saturating_mul(10).saturating_add(digit.into()))
    });
    Some(sign * value?)
}

/// The value of a string where a number is needed: with white space around it, and a sign.
///
/// As in OpenZFS, only a hexadecimal number may have a plus sign.
pub(crate) fn parse(text: &[u8]) -> Option<i64> {
    match trim(text) {
        [b'+', digit, rest @ ..] if *digit != b'0' || !matches!(rest, [b'x' | b'X', ..]) => None,
        text => with_sign(text, parse_literal),
    }
}

/// The value of a string of digits in a base of 2 to 36.
pub(crate) fn parse_in_base(text: &[u8], base: u32) -> Option<i64> {
    with_sign(text, |digits| parse_digits(digits, base))
}

fn with_sign(text: &[u8], parse: impl Fn(&[u8]) -> Option<i64>) -> Option<i64> {
    match trim(text) {
        [b'-', rest @ ..] => parse(rest).map(i64::wrapping_neg),
        [b'+', rest @ ..] => parse(rest),
        rest => parse(rest),
    }
}

fn parse_digits(digits: &[u8], base: u32) -> Option<i64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0i64, |value, digit| {
        let digit = char::from(*digit).to_digit(base)?;
        Some(
            value
                .wrapping_mul(i64::from(base))
                .wrapping_add(i64::from(digit)),
        )
    })
}

fn trim(text: &[u8]) -> &[u8] {
    let begin = text.iter().position(|byte| !is_space(*byte));
    let end = text.iter().rposition(|byte| !is_space(*byte));
    match (begin, end) {
        (Some(begin), Some(end)) => &text[begin..=end],
        _ => &[],
    }
}

/// White space of the C locale.
pub(crate) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | 9..=13)
}

/// `base` to the power of `exponent`. As in OpenZFS, it is 0 for every negative exponent.
pub(crate) fn power(base: i64, exponent: i64) -> i64 {
    let Ok(mut exponent) = u64::try_from(exponent) else {
        return 0;
    };
    let (mut result, mut square) = (1i64, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_around_and_nothing_else_is_a_number() {
        assert_eq!(parse(b" 12 "), Some(12));
        assert_eq!(parse(b"-0xaA"), Some(-170));
        assert_eq!(parse(b"+0x2"), Some(2));
        assert_eq!(
            (parse(b"010"), parse(b"-0777"), parse(b"0")),
            (Some(8), Some(-511), Some(0))
        );
        assert_eq!(parse(b"01777777777777777777777"), Some(-1));
        assert_eq!(parse(b"18446744073709551615"), Some(-1));
        assert_eq!(parse(b"0xffffffffffffffffffffffff"), Some(-1));
        for text in [
            "", " ", "0x", "- 1", "1.5", "1e1", "1 a", "1\0", "inf", "--1", "+5", "08", "+",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse_in_base(b" +1Z ", 36), Some(71));
        assert_eq!(parse_in_base(b"0xf", 10), None);
    }

    #[test]
    fn powers_wrap_around() {
        assert_eq!(power(2, 10), 1024);
        assert_eq!(power(2, 64), 0);
        assert_eq!(power(-3, 3), -27);
        assert_eq!(
            [power(2, -1), power(-1, -3), power(0, -1), power(0, 0)],
            [0, 0, 0, 1]
        );
    }

    #[test]
    fn hexadecimal_numbers_may_have_fractions_which_are_lost() {
        assert_eq!(parse(b"0x1p4"), Some(16));
        assert_eq!(parse(b"0x10P-2"), Some(4));
        assert_eq!(parse(b"0x.1"), Some(0));
        assert_eq!(parse(b"0x1.8p+1"), Some(3));
        assert_eq!(parse(b"0x1p64"), Some(1));
        assert!(parse(b"0x1p9999999999999999999").is_some());
        for text in ["0x.", "0xp1", "0x1p", "0x1p+", "0x1.1.1", "0x1pa"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }
}
