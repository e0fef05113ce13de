//! The tests of `find`: parses them and applies them to files.

use super::pattern;
use crate::session::{Environment, Failure};
use crate::verbs::entry_text::Names;
use crate::verbs::pools::Pools;
use millpond_engine::{FileKind, Stat, Symlinks, Timestamp};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// The parsed expression: which files to print, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct Expression {
    /// Tests, each with the result that it must have.
    pub tests: Vec<(bool, Test)>,
    pub depth_min: u32,
    pub depth_max: u32,
    pub ends_with_nul: bool,
    pub is_json: bool,
}

/// One test.
#[derive(Debug, Clone, PartialEq)]
pub enum Test {
    Name(Vec<u8>, bool),
    Path(Vec<u8>),
    Kind(FileKind),
    /// A number of units, and the unit in bytes.
    Size(Number, u64),
    /// A number of days before this time.
    Age(Number, u64),
    Newer(Timestamp),
    User(Number),
    Group(Number),
    Inode(Number),
    Links(Number),
    Empty,
}

/// `N`, `+N` or `-N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    Exactly(u64),
    More(u64),
    Less(u64),
}

impl Number {
    fn parse(text: &str) -> Option<Self> {
        Some(match (text.strip_prefix('+'), text.strip_prefix('-')) {
            (Some(digits), _) => Self::More(digits.parse().ok()?),
            (_, Some(digits)) => Self::Less(digits.parse().ok()?),
            _ => Self::Exactly(text.parse().ok()?),
        })
    }
    fn holds(self, found: u64) -> bool {
        match self {
            Self::Exactly(number) => found == number,
            Self::More(number) => found > number,
            Self::Less(number) => found < number,
        }
    }
}

impl Test {
    /// Whether a file passes the test.
    pub fn holds(&self, name: &[u8], path: &[u8], stat: &Stat) -> bool {
        match self {
            Self::Name(glob, ignores_case) => pattern::matches(glob, name, *ignores_case),
            Self::Path(glob) => pattern::matches(glob, path, false),
            Self::Kind(kind) => stat.kind == *kind,
            Self::Size(number, unit) => number.holds(stat.size_bytes.div_ceil(*unit)),
            Self::Age(number, now_s) => {
                let now = i64::try_from(*now_s).unwrap_or(i64::MAX);
                let age = now.saturating_sub(stat.mtime.seconds).max(0);
                number.holds(age.cast_unsigned() / DAY_S)
            }
            Self::Newer(time) => {
                (stat.mtime.seconds, stat.mtime.nanoseconds) > (time.seconds, time.nanoseconds)
            }
            Self::User(number) => number.holds(u64::from(stat.uid)),
            Self::Group(number) => number.holds(u64::from(stat.gid)),
            Self::Inode(number) => number.holds(stat.id.0),
            Self::Links(number) => number.holds(stat.links),
            // The size of a directory is its number of entries plus 2.
            Self::Empty => match stat.kind {
                FileKind::Regular => stat.size_bytes == 0,
                FileKind::Directory => stat.size_bytes <= 2,
                _ => false,
            },
        }
    }
}

/// Parses the words that follow the addresses.
pub fn parse(
    words: &[OsString],
    pools: &mut Pools,
    environment: &Environment,
) -> Result<Expression, Failure> {
    let mut expression = Expression {
        tests: vec![],
        depth_min: 0,
        depth_max: u32::MAX,
        ends_with_nul: false,
        is_json: false,
    };
    let names = Names::new(environment, false);
    let mut is_wanted = true;
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let name = word.to_string_lossy().into_owned();
        match name.as_str() {
            "!" | "-not" => {
                is_wanted = !is_wanted;
                continue;
            }
            "-print" => continue,
            "-print0" => {
                expression.ends_with_nul = true;
                continue;
            }
            "--json" | "-json" => {
                expression.is_json = true;
                continue;
            }
            "-empty" => {
                let turned = std::mem::replace(&mut is_wanted, true);
                expression.tests.push((turned, Test::Empty));
                continue;
            }
            _ => {}
        }
        if !WITH_VALUE.contains(&name.as_str()) {
            return Err(Failure::Usage(format!("find: there is no test '{name}'")));
        }
        let Some(value) = rest.next() else {
            return Err(Failure::Usage(format!("find: {name} wants a value")));
        };
        let text = value.to_string_lossy();
        let wrong = || Failure::Usage(format!("find: {name} {text}: that value makes no sense"));
        let number = || Number::parse(&text).ok_or_else(wrong);
        let test = match name.as_str() {
            "-name" | "-iname" => Test::Name(value.as_bytes().to_vec(), name == "-iname"),
            "-path" => Test::Path(value.as_bytes().to_vec()),
            "-type" => Test::Kind(kind(&text).ok_or_else(wrong)?),
            "-size" => size(&text).ok_or_else(wrong)?,
            "-mtime" => Test::Age(number()?, environment.now()),
            "-newer" => Test::Newer(changed(value, pools)?),
            "-uid" => Test::User(number()?),
            "-gid" => Test::Group(number()?),
            "-inum" => Test::Inode(number()?),
            "-links" => Test::Links(number()?),
            "-user" => Test::User(identity(&text, &names.users).ok_or_else(wrong)?),
            "-group" => Test::Group(identity(&text, &names.groups).ok_or_else(wrong)?),
            _ => {
                let depth = text.parse().map_err(|_| wrong())?;
                if name == "-maxdepth" {
                    expression.depth_max = depth;
                } else {
                    expression.depth_min = depth;
                }
                continue;
            }
        };
        expression.tests.push((is_wanted, test));
        is_wanted = true;
    }
    if !is_wanted {
        return Err(Failure::Usage("find: ! wants a test behind it".into()));
    }
    Ok(expression)
}

fn kind(text: &str) -> Option<FileKind> {
    Some(match text {
        "f" => FileKind::Regular,
        "d" => FileKind::Directory,
        "l" => FileKind::Symlink,
        "p" => FileKind::Fifo,
        "s" => FileKind::Socket,
        "b" => FileKind::BlockDevice,
        "c" => FileKind::CharacterDevice,
        _ => return None,
    })
}

fn size(text: &str) -> Option<Test> {
    let (digits, unit) = match text.char_indices().last()? {
        (at, 'c') => (&text[..at], 1),
        (at, 'k') => (&text[..at], 1 << 10),
        (at, 'M') => (&text[..at], 1 << 20),
        (at, 'G') => (&text[..at], 1 << 30),
        (at, 'T') => (&text[..at], 1 << 40),
        _ => (text, 512),
    };
    Number::parse(digits).map(|number| Test::Size(number, unit))
}

fn identity(text: &str, names: &std::collections::BTreeMap<u64, String>) -> Option<Number> {
    let named = names.iter().find(|(_, name)| *name == text);
    let id = named.map(|(id, _)| *id).or_else(|| text.parse().ok())?;
    Some(Number::Exactly(id))
}

fn changed(word: &OsString, pools: &mut Pools) -> Result<Timestamp, Failure> {
    let file = pools.file(word, Symlinks::Follow)?;
    let stat = file.node.stat().map_err(crate::verbs::global::refused)?;
    Ok(stat.mtime)
}

const WITH_VALUE: [&str; 15] = [
    "-name",
    "-iname",
    "-path",
    "-type",
    "-size",
    "-mtime",
    "-newer",
    "-uid",
    "-gid",
    "-user",
    "-group",
    "-inum",
    "-links",
    "-maxdepth",
    "-mindepth",
];
const DAY_S: u64 = 86_400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_exact_or_bounds() {
        assert_eq!(Number::parse("+3"), Some(Number::More(3)));
        assert_eq!(Number::parse("-3"), Some(Number::Less(3)));
        assert_eq!(Number::parse("3"), Some(Number::Exactly(3)));
        assert_eq!(Number::parse("x"), None);
        assert!(Number::More(3).holds(4) && !Number::More(3).holds(3));
        assert!(Number::Less(3).holds(2) && !Number::Less(3).holds(3));
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("+2k"), Some(Test::Size(Number::More(2), 1024)));
        assert_eq!(size("3"), Some(Test::Size(Number::Exactly(3), 512)));
        assert_eq!(size("k"), None);
        assert_eq!(size(""), None);
    }
}
