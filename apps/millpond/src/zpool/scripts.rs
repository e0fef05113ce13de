//! The scripts of `zpool status -c` and `zpool iostat -c`. They are run for each device, and what they print becomes columns.

use crate::command::Parsed;
use crate::session::{Failure, Session};
use crate::text::columns::{pad_left, pad_right};
use crate::text::terminal::one_line;
use millpond_control::{PoolInfo, VdevInfo};
use millpond_env::thread;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where the system's scripts are.
const SYSTEM: &str = "/etc/zfs/zpool.d";
/// Devices whose scripts run at the same time.
const TOGETHER: usize = 16;
/// The width of a name in the list of scripts.
const NAME_WIDTH: usize = 14;

/// What `-c` asks for.
pub enum Request {
    /// `-c` was not given.
    None,
    /// Only the list of all scripts.
    List,
    /// The output of scripts.
    Run(Scripts),
}

impl Request {
    /// Reads `-c`.
    ///
    /// # Errors
    /// If the environment does not permit scripts.
    pub fn read(session: &Session, parsed: &Parsed) -> Result<Self, Failure> {
        let Some(names) = parsed.values("c").last() else {
            return Ok(Self::None);
        };
        let environment = session.environment;
        let enabled = "ZPOOL_SCRIPTS_ENABLED";
        if environment.variables.contains_key(enabled) && !environment.is_on(enabled) {
            let text = "Can't run -c, disabled by ZPOOL_SCRIPTS_ENABLED.";
            return Err(Failure::Refused(text.into()));
        }
        let is_root = rustix::process::geteuid().is_root();
        if is_root && !environment.is_on("ZPOOL_SCRIPTS_AS_ROOT") {
            let text = "Can't run -c with root privileges unless ZPOOL_SCRIPTS_AS_ROOT is set.";
            return Err(Failure::Refused(text.into()));
        }
        if names.is_empty() {
            return Ok(Self::List);
        }
        let folders = folders(session);
        let find = |name: &str| {
            let is_name = !name.is_empty() && !name.contains('/');
            let mut places = folders.iter().map(|folder| folder.join(name));
            places.find(|place| is_name && is_program(place))
        };
        // Names that are not found are left out, as in OpenZFS.
        Ok(Self::Run(Scripts {
            files: names.split(',').filter_map(find).collect(),
        }))
    }

    /// The output of the scripts for the devices of these pools. No columns if there are no scripts to run.
    pub fn columns(&self, pools: &[PoolInfo]) -> Option<Columns> {
        match self {
            Self::Run(scripts) => Some(scripts.run(pools)),
            _ => None,
        }
    }
}

/// The folders in which scripts are looked for, in order.
fn folders(session: &Session) -> Vec<PathBuf> {
    let variables = &session.environment.variables;
    if let Some(path) = variables.get("ZPOOL_SCRIPTS_PATH") {
        let parts = path.split(':').filter(|part| !part.is_empty());
        return parts.map(PathBuf::from).collect();
    }
    let home = variables.get("HOME");
    let own = home.map(|home| Path::new(home).join(".zpool.d"));
    own.into_iter().chain([PathBuf::from(SYSTEM)]).collect()
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Prints all scripts with the first line of their help.
pub fn list(session: &mut Session, command: &str) -> Result<(), Failure> {
    let mut text = format!("Available 'zpool {command} -c' commands:\n");
    let mut seen = BTreeSet::new();
    for folder in folders(session) {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let names: BTreeSet<String> = names.collect();
        for name in names.iter().filter(|name| is_program(&folder.join(name))) {
            if !seen.insert(name.clone()) {
                continue;
            }
            let help = Command::new(folder.join(name))
                .arg("-h")
                .stderr(Stdio::null())
                .output();
            let help = help.map(|done| String::from_utf8_lossy(&done.stdout).into_owned());
            let help = help.unwrap_or_default();
            text += "  ";
            pad_right(&mut text, &one_line(name), NAME_WIDTH);
            text += "  ";
            text += &one_line(help.lines().next().unwrap_or_default());
            text.push('\n');
        }
    }
    session.out.write_all(text.as_bytes())?;
    Ok(())
}

/// Scripts to run for each device.
pub struct Scripts {
    files: Vec<PathBuf>,
}

/// What one script printed for one device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Output {
    /// Titles and values, in order.
    named: Vec<(String, String)>,
    /// The first line that is no value of a column.
    plain: Option<String>,
}

impl Output {
    /// Parses lines `name=value`, up to the first that is none.
    fn parse(text: &str) -> Self {
        let mut output = Self::default();
        for line in text.lines() {
            let Some((name, value)) = line.split_once('=') else {
                output.plain = Some(line.to_owned());
                break;
            };
            let value = if value.is_empty() { "-" } else { value };
            output.named.push((name.to_owned(), value.to_owned()));
        }
        output
    }
}

impl Scripts {
    fn run(&self, pools: &[PoolInfo]) -> Columns {
        let mut devices = vec![];
        for pool in pools {
            let auxiliaries = pool.caches.iter().chain(&pool.spares);
            let mut stack: Vec<&VdevInfo> = pool.root.children.iter().chain(auxiliaries).collect();
            while let Some(vdev) = stack.pop() {
                stack.extend(&vdev.children);
                if let (Some(path), true) = (&vdev.path, vdev.kind.is_leaf()) {
                    devices.push((vdev.guid, path.as_str()));
                }
            }
        }
        let mut outputs: Vec<(u64, Vec<Output>)> = vec![];
        for together in devices.chunks(TOGETHER) {
            thread::scope(|scope| {
                let runs = together.iter();
                let runs: Vec<_> = runs
                    .map(|(guid, path)| (*guid, scope.spawn(move || self.run_for(path))))
                    .collect();
                let ended = runs.into_iter();
                outputs.extend(ended.map(|(guid, run)| (guid, run.join().unwrap_or_default())));
            });
        }
        Columns::of(outputs, self.files.len())
    }

    fn run_for(&self, path: &str) -> Vec<Output> {
        let below = underlying(path);
        let run = |script: &PathBuf| {
            let done = Command::new(script)
                .env("VDEV_PATH", path)
                .env("VDEV_UPATH", &below)
                .stdin(Stdio::null())
                .stderr(Stdio::null())
                .output();
            match done {
                Ok(done) if done.status.success() => {
                    Output::parse(&String::from_utf8_lossy(&done.stdout))
                }
                _ => Output::default(),
            }
        };
        self.files.iter().map(run).collect()
    }
}

/// The disk below a path: without links and device mapper, and without the partition.
fn underlying(path: &str) -> PathBuf {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let (Ok(_), Some(name)) = (real.strip_prefix("/dev"), real.file_name()) else {
        return real;
    };
    let system = Path::new("/sys/class/block").join(name);
    let below = fs::read_dir(system.join("slaves"));
    let mut below = below.into_iter().flatten().filter_map(Result::ok);
    if let Some(first) = below.next() {
        return Path::new("/dev").join(first.file_name());
    }
    if system.join("partition").exists()
        && let Ok(real) = fs::canonicalize(&system)
        && let Some(disk) = real.parent().and_then(Path::file_name)
    {
        return Path::new("/dev").join(disk);
    }
    real
}

/// The columns that scripts add to a table.
pub struct Columns {
    /// Titles and widths.
    titles: Vec<(String, usize)>,
    /// By guid of the device.
    rows: BTreeMap<u64, Row>,
}

#[derive(Default)]
struct Row {
    values: BTreeMap<String, String>,
    plain: Vec<String>,
}

impl Columns {
    fn of(outputs: Vec<(u64, Vec<Output>)>, scripts: usize) -> Self {
        let rows = outputs.iter().map(|(guid, _)| (*guid, Row::default()));
        let mut columns = Self {
            titles: vec![],
            rows: rows.collect(),
        };
        let mut outputs = outputs;
        for script in 0..scripts {
            for (guid, of_scripts) in &mut outputs {
                let output = of_scripts
                    .get_mut(script)
                    .map(std::mem::take)
                    .unwrap_or_default();
                let row = columns.rows.entry(*guid).or_default();
                row.plain.extend(output.plain);
                for (name, value) in output.named {
                    match columns.titles.iter_mut().find(|(title, _)| *title == name) {
                        Some((_, width)) => *width = (*width).max(value.len()),
                        None => (columns.titles).push((name.clone(), name.len().max(value.len()))),
                    }
                    row.values.insert(name, value);
                }
            }
        }
        columns
    }

    /// Appends the titles to the header of a table.
    pub fn head(&self, line: &mut String) {
        for (title, width) in &self.titles {
            line.push_str("  ");
            pad_left(line, &one_line(title), *width);
        }
    }

    /// Appends dashes below the titles.
    pub fn dashes(&self, line: &mut String) {
        for (_, width) in &self.titles {
            line.push_str("  ");
            line.push_str(&"-".repeat(*width));
        }
    }

    /// Appends the values of a device. Other vdevs have none.
    pub fn row(&self, line: &mut String, vdev: &VdevInfo) {
        let Some(row) = self.rows.get(&vdev.guid) else {
            return;
        };
        for (title, value) in self.of_device(row) {
            line.push_str("  ");
            let width = self.titles.iter().find(|(name, _)| name == title);
            pad_left(line, &one_line(value), width.map_or(0, |(_, width)| *width));
        }
        for text in &row.plain {
            line.push_str("  ");
            line.push_str(&one_line(text));
        }
        if self.titles.is_empty() && row.plain.is_empty() {
            // OpenZFS ends the line so.
            line.push_str("  ");
        }
    }

    /// The titles and values of a device.
    pub fn values(&self, vdev: &VdevInfo) -> impl Iterator<Item = (&str, &str)> {
        let row = self.rows.get(&vdev.guid);
        row.into_iter().flat_map(|row| self.of_device(row))
    }

    fn of_device<'a>(&'a self, row: &'a Row) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.titles.iter().map(|(title, _)| {
            let value = row.values.get(title).map_or("-", String::as_str);
            (title.as_str(), value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_a_name_are_columns_until_the_first_without() {
        let output = Output::parse("a=1\nb=\nc=x=y\nfailed: no such disk\nd=2\n");
        let named = [("a", "1"), ("b", "-"), ("c", "x=y")];
        let named = named.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(output.named, named);
        assert_eq!(output.plain.as_deref(), Some("failed: no such disk"));
        assert_eq!(Output::parse(""), Output::default());
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_value() {
        let outputs = vec![
            (
                1,
                vec![Output::parse("x=1\nonly=yes"), Output::parse("t=long")],
            ),
            (2, vec![Output::default(), Output::parse("t=s\nplain")]),
        ];
        let columns = Columns::of(outputs, 2);
        let line = |print: &dyn Fn(&mut String)| {
            let mut line = String::new();
            print(&mut line);
            line
        };
        assert_eq!(line(&|line| columns.head(line)), "  x  only     t");
        assert_eq!(line(&|line| columns.dashes(line)), "  -  ----  ----");
        let row = |guid| {
            let vdev = VdevInfo {
                guid,
                ..VdevInfo::default()
            };
            line(&|line| columns.row(line, &vdev))
        };
        assert_eq!(row(1), "  1   yes  long");
        assert_eq!(row(2), "  -     -     s  plain");
        assert_eq!(row(3), "");
        let nothing = Columns::of(vec![(1, vec![])], 0);
        let vdev = VdevInfo {
            guid: 1,
            ..VdevInfo::default()
        };
        assert_eq!(line(&|line| nothing.row(line, &vdev)), "  ");
    }
}
