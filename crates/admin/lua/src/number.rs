//! Numbers as text. A number is an integer of 64 bits, and longer ones wrap around.

/// The value of a number in a script: digits, or `0x` and hexadecimal digits.
pub(crate) fn parse_literal(text: &[u8]) -> Option<i64> {
    let (digits, base) = match text {
        [b'0', b'x' | b'X', digits @ ..] => (digits, 16),
        digits => (digits, 10),
    };
    parse_digits(digits, base)
}

/// The value of a string where a number is needed: with white space around it, and a sign.
pub(crate) fn parse(text: &[u8]) -> Option<i64> {
    with_sign(text, parse_literal)
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

/// `base` to the power of `exponent`. A fraction becomes 0; `None` if it were infinite.
pub(crate) fn power(base: i64, exponent: i64) -> Option<i64> {
    let Ok(mut exponent) = u64::try_from(exponent) else {
        return match base {
            0 => None,
            1 => Some(1),
            -1 => Some(if exponent % 2 == 0 { 1 } else { -1 }),
            _ => Some(0),
        };
    };
    let (mut result, mut square) = (1i64, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        exponent >>= 1;
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_around_and_nothing_else_is_a_number() {
        assert_eq!(parse(b" 12 "), Some(12));
        assert_eq!(parse(b"-0xaA"), Some(-170));
        assert_eq!(parse(b"18446744073709551615"), Some(-1));
        assert_eq!(parse(b"0xffffffffffffffffffffffff"), Some(-1));
        for text in [
            "", " ", "0x", "- 1", "1.5", "1e1", "1 a", "1\0", "inf", "--1",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse_in_base(b" +1Z ", 36), Some(71));
        assert_eq!(parse_in_base(b"0xf", 10), None);
    }

    #[test]
    fn powers_wrap_around() {
        assert_eq!(power(2, 10), Some(1024));
        assert_eq!(power(2, 64), Some(0));
        assert_eq!(power(-3, 3), Some(-27));
        assert_eq!(power(2, -1), Some(0));
        assert_eq!(power(-1, -3), Some(-1));
        assert_eq!(power(0, -1), None);
        assert_eq!(power(0, 0), Some(1));
    }
}
