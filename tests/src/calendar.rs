//! The date of `zfs holds`, in UTC.

/// Seconds since 1970 as `Sat Nov 21 10:39 2026`.
pub fn to_the_minute(seconds: u64) -> String {
    let days = seconds / 86_400;
    let (hour, minute) = (seconds % 86_400 / 3600, seconds % 3600 / 60);
    let (mut year, mut left) = (1970, days);
    while left >= days_of(year) {
        left -= days_of(year);
        year += 1;
    }
    let mut month = 0;
    while left >= month_days(year, month) {
        left -= month_days(year, month);
        month += 1;
    }
    let weekday = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"][(days % 7) as usize];
    let name = MONTHS[month];
    format!(
        "{weekday} {name} {:>2} {hour:>2}:{minute:02} {year}",
        left + 1
    )
}

fn days_of(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

fn month_days(year: u64, month: usize) -> u64 {
    [
        31,
        28 + u64::from(is_leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ][month]
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400)
}

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(to_the_minute(0), "Thu Jan  1  0:00 1970");
        assert_eq!(to_the_minute(951_782_399), "Mon Feb 28 23:59 2000");
        assert_eq!(to_the_minute(951_782_400), "Tue Feb 29  0:00 2000");
        assert_eq!(to_the_minute(1_795_257_575), "Sat Nov 21 10:39 2026");
    }
}
