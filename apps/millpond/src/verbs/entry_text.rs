//! Formats what `ls -l`, `stat` and `find` show of a file, as text and as JSON.

use super::json::put_name;
use jiff::tz::TimeZone;
use millpond_engine::{FileKind, Node, Stat, Timestamp};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Names of users and groups, and the time zone.
#[derive(Debug, Clone)]
pub struct Names {
    /// User names by uid.
    pub users: BTreeMap<u64, String>,
    /// Group names by gid.
    pub groups: BTreeMap<u64, String>,
    /// The time zone of all times.
    pub zone: TimeZone,
    /// The current time in seconds since 1970. Old times show the year instead of the hour.
    pub now_s: u64,
}

impl Names {
    /// Takes the names of this system, or none if `is_numeric`.
    pub fn new(environment: &crate::session::Environment, is_numeric: bool) -> Self {
        let (users, groups) = if is_numeric {
            (BTreeMap::new(), BTreeMap::new())
        } else {
            (environment.users.clone(), groups())
        };
        Self {
            users,
            groups,
            zone: environment.zone.clone(),
            now_s: environment.now(),
        }
    }
    /// The user's name, or the uid.
    pub fn user(&self, uid: u32) -> String {
        named(&self.users, uid)
    }
    /// The group's name, or the gid.
    pub fn group(&self, gid: u32) -> String {
        named(&self.groups, gid)
    }
    /// A time as `ls -l` shows it.
    pub fn short_time(&self, time: Timestamp) -> String {
        let now = i64::try_from(self.now_s).unwrap_or(i64::MAX);
        let age = now.saturating_sub(time.seconds);
        let format = if (0..HALF_A_YEAR_S).contains(&age) {
            "%b %e %H:%M"
        } else {
            "%b %e  %Y"
        };
        self.formatted(time, format)
    }
    /// A time with nanoseconds and zone.
    pub fn full_time(&self, time: Timestamp) -> String {
        let nanoseconds = time.nanoseconds;
        let day = self.formatted(time, "%Y-%m-%d %H:%M:%S");
        format!("{day}.{nanoseconds:09} {}", self.formatted(time, "%z"))
    }
    fn formatted(&self, time: Timestamp, format: &str) -> String {
        match jiff::Timestamp::from_second(time.seconds) {
            Ok(instant) => instant
                .to_zoned(self.zone.clone())
                .strftime(format)
                .to_string(),
            // A year outside the calendar.
            Err(_) => time.seconds.to_string(),
        }
    }
}

fn named(names: &BTreeMap<u64, String>, id: u32) -> String {
    let name = names.get(&u64::from(id));
    name.cloned().unwrap_or_else(|| id.to_string())
}

fn groups() -> BTreeMap<u64, String> {
    let text = std::fs::read_to_string("/etc/group").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let gid = fields.nth(1)?.parse().ok()?;
            Some((gid, name.to_owned()))
        })
        .collect()
}

/// Formats kind and permissions like `-rwsr-xr-t`.
pub fn mode_text(kind: FileKind, permissions: u32) -> String {
    let mut text = String::from(kind.letter());
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = permissions >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (permissions & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
        });
    }
    text
}

/// The word for a kind of file, as in recorded trees.
pub fn kind_word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Fifo => "fifo",
        FileKind::CharacterDevice => "chr",
        FileKind::Directory => "dir",
        FileKind::BlockDevice => "blk",
        FileKind::Regular => "file",
        FileKind::Symlink => "symlink",
        FileKind::Socket => "sock",
    }
}

/// The path and attributes of a file as JSON.
pub fn to_json(path: &[u8], node: &Node, stat: &Stat) -> Map<String, Value> {
    let mut map = Map::new();
    put_name(&mut map, "path", path);
    map.insert("type".into(), kind_word(stat.kind).into());
    map.insert("ino".into(), stat.id.0.into());
    map.insert("mode".into(), format!("{:o}", stat.permissions).into());
    map.insert("nlink".into(), stat.links.into());
    map.insert("uid".into(), stat.uid.into());
    map.insert("gid".into(), stat.gid.into());
    map.insert("size".into(), stat.size_bytes.into());
    map.insert("blocks".into(), stat.sectors.into());
    for (name, time) in [
        ("atime_ns", stat.atime),
        ("mtime_ns", stat.mtime),
        ("ctime_ns", stat.ctime),
        ("crtime_ns", stat.crtime),
    ] {
        map.insert(name.into(), nanoseconds(time));
    }
    if let Some((major, minor)) = stat.device {
        map.insert("rdev".into(), json!([major, minor]));
    }
    if stat.kind == FileKind::Symlink {
        match node.link_target() {
            Ok(Some(target)) => put_name(&mut map, "target", &target),
            Ok(None) => {}
            Err(error) => {
                map.insert("target_problem".into(), error.to_string().into());
            }
        }
    }
    map
}

/// A time in nanoseconds: a number if it fits into 64 bits, otherwise text.
fn nanoseconds(time: Timestamp) -> Value {
    let total = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    i64::try_from(total).map_or_else(|_| total.to_string().into(), Value::from)
}

const HALF_A_YEAR_S: i64 = 15_778_476;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_look_as_in_ls() {
        assert_eq!(mode_text(FileKind::Regular, 0o644), "-rw-r--r--");
        assert_eq!(mode_text(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_text(FileKind::Regular, 0o6744), "-rwsr-Sr--");
        assert_eq!(mode_text(FileKind::Directory, 0o1000), "d--------T");
    }

    #[test]
    fn recent_times_show_the_hour_and_others_the_year() {
        let names = Names {
            users: BTreeMap::new(),
            groups: BTreeMap::new(),
            zone: TimeZone::UTC,
            now_s: 1_795_000_000,
        };
        let at = |seconds| Timestamp {
            seconds,
            nanoseconds: 5,
        };
        assert_eq!(names.short_time(at(1_794_999_990)), "Nov 18 11:06");
        assert_eq!(names.short_time(at(0)), "Jan  1  1970");
        assert_eq!(names.short_time(at(4_102_444_800)), "Jan  1  2100");
        assert_eq!(names.short_time(at(i64::MAX)), i64::MAX.to_string());
        assert_eq!(
            names.full_time(at(0)),
            "1970-01-01 00:00:00.000000005 +0000"
        );
    }

    #[test]
    fn times_beyond_64_bits_stay_exact() {
        let time = Timestamp {
            seconds: i64::MAX,
            nanoseconds: 1,
        };
        assert_eq!(
            nanoseconds(time),
            Value::from("9223372036854775807000000001")
        );
    }
}
