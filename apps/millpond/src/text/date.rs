//! Human-readable dates in the local time zone.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// `Sat Nov 21 10:00 2026`: property `creation`, user holds.
pub fn minutes(time_s: u64, zone: &TimeZone) -> String {
    formatted(time_s, zone, "%a %b %e %k:%M %Y")
}

/// `Sat Nov 21 10:00:05 2026`, hours below ten padded with a blank: property `snapshots_changed`.
pub fn seconds(time_s: u64, zone: &TimeZone) -> String {
    formatted(time_s, zone, "%a %b %e %k:%M:%S %Y")
}

/// `Sat Nov 21 10:00:05 2026`: lines of `zpool status`.
pub fn ctime(time_s: u64, zone: &TimeZone) -> String {
    formatted(time_s, zone, "%a %b %e %H:%M:%S %Y")
}

/// `2026-11-21.10:00:19`: `zpool history`.
pub fn history(time_s: u64, zone: &TimeZone) -> String {
    formatted(time_s, zone, "%F.%T")
}

/// `Sat Nov 21 10:25:16 UTC 2026`: `-T d` and times in JSON.
pub fn with_zone(time_s: u64, zone: &TimeZone) -> String {
    formatted(time_s, zone, "%a %b %e %H:%M:%S %Z %Y")
}

/// `Nov 21 2026 10:00:05.123456789`: `zpool events`.
pub fn event(time_s: u64, nanoseconds: u64, zone: &TimeZone) -> String {
    let seconds = formatted(time_s, zone, "%b %e %Y %H:%M:%S");
    format!("{seconds}.{nanoseconds:09}")
}

/// `HH:MM:SS`, or `N days HH:MM:SS` from one day on.
pub fn duration(seconds: u64) -> String {
    let (days, rest) = (seconds / 86400, seconds % 86400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    if days == 0 {
        clock
    } else {
        format!("{days} days {clock}")
    }
}

/// `HH:MM:SS`, the time of day.
pub fn clock(time_s: u64, zone: &TimeZone) -> String {
    formatted(time_s, zone, "%H:%M:%S")
}

/// A time outside the calendar (read from a disk) is shown as digits.
fn formatted(time_s: u64, zone: &TimeZone, form: &str) -> String {
    i64::try_from(time_s)
        .ok()
        .and_then(|s| Timestamp::from_second(s).ok())
        .map_or_else(
            || time_s.to_string(),
            |t| t.to_zoned(zone.clone()).strftime(form).to_string(),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_date_context_has_its_format() {
        let utc = TimeZone::UTC;
        assert_eq!(minutes(1795255714, &utc), "Sat Nov 21 10:08 2026");
        assert_eq!(
            seconds(1795255714 - 5 * 3600, &utc),
            "Sat Nov 21  5:08:34 2026"
        );
        assert_eq!(
            ctime(1795255714 - 5 * 3600, &utc),
            "Sat Nov 21 05:08:34 2026"
        );
        assert_eq!(history(1795255714, &utc), "2026-11-21.10:08:34");
        assert_eq!(with_zone(1795255714, &utc), "Sat Nov 21 10:08:34 UTC 2026");
    }

    #[test]
    fn a_time_beyond_every_calendar_is_shown_in_digits() {
        assert_eq!(ctime(u64::MAX, &TimeZone::UTC), u64::MAX.to_string());
    }

    #[test]
    fn durations_count_days_apart() {
        assert_eq!(duration(59), "00:00:59");
        assert_eq!(duration(86399), "23:59:59");
        assert_eq!(duration(90061), "1 days 01:01:01");
    }
}
