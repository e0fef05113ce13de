//! Human-readable numbers.
//!
//! A number is divided by 1024 until it is below 1024. An exact multiple has no decimals. Any other number
//! has at most two, as long as the text stays within five characters. The quotient is a binary double,
//! rounded half to even like C's `printf`.

/// A plain count: `0`, `512`, `1.50K`.
pub fn count(number: u64) -> String {
    scaled(number, "")
}

/// A number with the name of what is counted: `1 block`, `2 blocks`.
pub fn of(number: u64, one: &str, several: &str) -> String {
    let name = if number == 1 { one } else { several };
    format!("{number} {name}")
}

/// Bytes: `0B`, `512B`, `1.50K`.
pub fn bytes(number: u64) -> String {
    scaled(number, "B")
}

/// Nanoseconds without decimals: `999ns`, `1us`, `34s`, and `1?` from a thousand seconds on.
///
/// The caller handles 0.
pub fn time(ns: u64) -> String {
    let mut number = ns;
    for unit in ["ns", "us", "ms", "s"] {
        if number < 1000 {
            return format!("{number}{unit}");
        }
        number /= 1000;
    }
    format!("{number}?")
}

/// Hundredths as `1.50x`.
pub fn ratio(hundredths: u64) -> String {
    format!("{}x", exact_ratio(hundredths))
}

/// Hundredths as `1.50`.
pub fn exact_ratio(hundredths: u64) -> String {
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// A share of a whole in per cent, as `zpool list -v` shows it.
///
/// The value is truncated after hundredths. Two decimals are shown below ten per cent, one below a hundred.
pub fn percent_of(part: u64, whole: u64) -> String {
    let hundredths = u128::from(part) * 10_000 / u128::from(whole.max(1));
    let percent = hundredths as f64 / 100.0;
    if hundredths < 1_000 {
        format!("{percent:.2}%")
    } else if hundredths < 10_000 {
        format!("{percent:.1}%")
    } else {
        format!("{percent:.0}%")
    }
}

/// Whole per cent, rounded down; 0 of 0 is 0.
pub fn whole_percent_of(part: u64, whole: u64) -> u64 {
    let percent = u128::from(part) * 100 / u128::from(whole.max(1));
    u64::try_from(percent).unwrap_or(u64::MAX)
}

fn scaled(number: u64, unit: &str) -> String {
    let mut whole = number;
    let mut power = 0usize;
    while whole >= 1024 && power < SUFFIXES.len() - 1 {
        whole /= 1024;
        power += 1;
    }
    if power == 0 {
        return format!("{number}{unit}");
    }
    let step = 1u64 << (10 * power);
    let suffix = SUFFIXES[power];
    if number.is_multiple_of(step) {
        return format!("{whole}{suffix}");
    }
    let quotient = number as f64 / step as f64;
    for decimals in [2, 1] {
        let text = format!("{quotient:.decimals$}{suffix}");
        if text.len() <= LENGTH_MAX {
            return text;
        }
    }
    format!("{quotient:.0}{suffix}")
}

const SUFFIXES: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
/// Longest text, including the suffix, for which decimals are kept.
const LENGTH_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_print_as_the_table_of_vectors_states() {
        for (number, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1K"),
            (1025, "1.00K"),
            (1030, "1.01K"),
            (1536, "1.50K"),
            (10239, "10.0K"),
            (10240, "10K"),
            (10291, "10.0K"),
            (102348, "99.9K"),
            (102399, "100K"),
            (1047552, "1023K"),
            (1048575, "1024K"),
            (1048576, "1M"),
            (1073741823, "1024M"),
            (123456789012, "115G"),
            (1 << 63, "8E"),
            (u64::MAX, "16.0E"),
        ] {
            assert_eq!(count(number), text, "{number}");
        }
        assert_eq!(bytes(0), "0B");
        assert_eq!(bytes(1023), "1023B");
        assert_eq!(bytes(1024), "1K");
    }

    #[test]
    fn times_are_cut_off_and_have_units_of_a_thousand() {
        for (ns, text) in [
            (1, "1ns"),
            (999, "999ns"),
            (999_999, "999us"),
            (1_048_575, "1ms"),
            (1_500_000_000, "1s"),
            (137_438_953_471, "137s"),
            (1_000_000_000_000, "1?"),
        ] {
            assert_eq!(time(ns), text);
        }
    }

    #[test]
    fn shares_keep_three_digits() {
        assert_eq!(percent_of(42496, 117440512), "0.03%");
        assert_eq!(percent_of(1, 3), "33.3%");
        assert_eq!(percent_of(5, 5), "100%");
        assert_eq!(percent_of(0, 0), "0.00%");
        assert_eq!(whole_percent_of(u64::MAX, u64::MAX), 100);
        assert_eq!(whole_percent_of(3, 0), 300);
    }
}
