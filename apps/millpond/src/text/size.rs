//! Parses sizes with units.

/// Parses a number with an optional decimal fraction and unit (`1.5G`, `10kb`, `4KiB`).
///
/// Fractions are multiplied as binary doubles and truncated. The error says what is wrong with the text.
pub fn parse(text: &str) -> Result<u64, String> {
    let bad = || format!("bad numeric value '{text}'");
    let end = text
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    if !digits.starts_with(|letter: char| letter.is_ascii_digit() || letter == '.') {
        return Err(bad());
    }
    let shift = shift_of(suffix).ok_or_else(|| format!("invalid numeric suffix '{suffix}'"))?;
    let too_large = || "numeric value is too large".to_owned();
    if digits.contains('.') {
        let number: f64 = digits.parse().map_err(|_| bad())?;
        let number = number * 2f64.powi(i32::try_from(shift).unwrap_or(0));
        if number >= u64::MAX as f64 {
            return Err(too_large());
        }
        return Ok(number as u64);
    }
    let number: u64 = digits.parse().map_err(|_| too_large())?;
    number
        .checked_mul(1u64.checked_shl(shift).ok_or_else(too_large)?)
        .ok_or_else(too_large)
}

/// The power of two of a unit.
fn shift_of(suffix: &str) -> Option<u32> {
    let upper = suffix.to_ascii_uppercase();
    let mut letters = upper.chars();
    let Some(first) = letters.next() else {
        return Some(0);
    };
    let power = u32::try_from("BKMGTPEZ".find(first)?).ok()?;
    let is_fit = match letters.as_str() {
        "" => true,
        "B" | "IB" => power > 0,
        _ => false,
    };
    is_fit.then_some(power * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_fractions_are_understood() {
        for (text, number) in [
            ("0", 0),
            ("512", 512),
            ("512b", 512),
            ("1.5M", 1_572_864),
            ("4KiB", 4096),
            ("4kb", 4096),
            (".5K", 512),
            ("15E", 15 << 60),
        ] {
            assert_eq!(parse(text), Ok(number), "{text}");
        }
        assert_eq!(parse("abc"), Err("bad numeric value 'abc'".into()));
        assert_eq!(parse(""), Err("bad numeric value ''".into()));
        assert_eq!(parse("1x"), Err("invalid numeric suffix 'x'".into()));
        assert_eq!(parse("1BB"), Err("invalid numeric suffix 'BB'".into()));
        assert_eq!(parse("16E"), Err("numeric value is too large".into()));
    }
}
