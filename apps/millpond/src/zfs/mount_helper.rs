//! `mount.zfs`, which mount(8) runs for file systems of type `zfs`: those with `mountpoint=legacy`, and snapshots.

use super::lookup::{one, text};
use crate::getopt::{OptionSet, Options};
use crate::session::{Failure, Session};
use crate::zpool::groups::walk;
use millpond_control::properties::DatasetKind;
use millpond_control::{MountProblem, MountRequest, VdevInfo};
use std::io;
use std::path::{Path, PathBuf};

/// Statuses of mount(8).
const USAGE: u8 = 1;
const SYSTEM: u8 = 2;

/// Mount options that file systems take.
const OPTIONS: [&str; 52] = [
    "ro",
    "rw",
    "exec",
    "noexec",
    "suid",
    "nosuid",
    "setuid",
    "nosetuid",
    "dev",
    "nodev",
    "devices",
    "nodevices",
    "atime",
    "noatime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "diratime",
    "nodiratime",
    "lazytime",
    "nolazytime",
    "xattr",
    "noxattr",
    "saxattr",
    "dirxattr",
    "nbmand",
    "nonbmand",
    "mand",
    "nomand",
    "sync",
    "async",
    "dirsync",
    "iversion",
    "noiversion",
    "silent",
    "loud",
    "bind",
    "rbind",
    "remount",
    "auto",
    "noauto",
    "defaults",
    "group",
    "nogroup",
    "user",
    "nouser",
    "users",
    "owner",
    "nofail",
    "quiet",
    "zfsutil",
];
/// Beginnings of options that are meant for other programs.
const FOREIGN: [&str; 7] = [
    "x-",
    "X-",
    "comment",
    "_netdev",
    "context=",
    "fscontext=",
    "defcontext=",
];

/// Whether a mount option is known.
pub(super) fn is_known(option: &str) -> bool {
    OPTIONS.contains(&option) || FOREIGN.iter().any(|begin| option.starts_with(begin))
}

/// What the command line asks for.
#[derive(Debug, Default)]
struct Asked {
    dataset: String,
    mountpoint: String,
    options: Vec<String>,
    is_fake: bool,
    is_verbose: bool,
    is_sloppy: bool,
    has_help: bool,
}

/// Runs `mount.zfs` with the arguments that follow its name, and returns the exit status.
pub fn run(session: &mut Session, arguments: &[String]) -> io::Result<u8> {
    let outcome = match parse(arguments) {
        Ok(asked) if asked.has_help => {
            let usage = "Usage: mount.zfs [-sfnvh] [-o options] <dataset> <mountpoint>";
            Err((USAGE, usage.to_owned()))
        }
        Ok(asked) => mount(session, &asked),
        Err(message) => Err((USAGE, message)),
    };
    match outcome {
        Ok(()) => Ok(0),
        Err((status, message)) => writeln!(session.err, "{message}").map(|()| status),
    }
}

fn parse(arguments: &[String]) -> Result<Asked, String> {
    let set = OptionSet {
        letters: "sfnvho:",
        longs: &[],
    };
    let mut asked = Asked::default();
    let mut options = Options::new(set, arguments);
    while let Some(found) = options.next_option() {
        let (letter, value) = found.map_err(|_| {
            "Usage: mount.zfs [-sfnvh] [-o options] <dataset> <mountpoint>".to_owned()
        })?;
        match letter.as_str() {
            "f" => asked.is_fake = true,
            "v" => asked.is_verbose = true,
            "s" => asked.is_sloppy = true,
            "h" => asked.has_help = true,
            "o" => {
                let words = value.unwrap_or_default();
                let words = words.split(',').filter(|word| !word.is_empty());
                asked.options.extend(words.map(str::to_owned));
            }
            _ => {}
        }
    }
    let missing = |what| format!("missing {what} argument\nusage: mount <dataset> <mountpoint>");
    let mut operands = options.operands().into_iter();
    if asked.has_help {
        return Ok(asked);
    }
    asked.dataset = operands.next().ok_or_else(|| missing("dataset"))?;
    asked.mountpoint = operands.next().ok_or_else(|| missing("mountpoint"))?;
    match operands.next() {
        Some(_) => Err("too many arguments\nusage: mount <dataset> <mountpoint>".into()),
        None => Ok(asked),
    }
}

fn mount(session: &mut Session, asked: &Asked) -> Result<(), (u8, String)> {
    let name = match of_device(session, &asked.dataset) {
        Some(pool) => pool,
        None => dataset_of(&asked.dataset),
    };
    let cannot = |why: &str| format!("filesystem '{name}' cannot be mounted{why}");
    let at = std::fs::canonicalize(&asked.mountpoint).map_err(|error| {
        let why = format!(
            " at '{}' due to canonicalization error: {error}",
            asked.mountpoint
        );
        (SYSTEM, cannot(&why))
    })?;
    let at = at.to_string_lossy().into_owned();
    let mut options = asked.options.clone();
    if let Some(bad) = options.iter().find(|option| !is_known(option))
        && !asked.is_sloppy
    {
        let why = format!(
            " due to invalid option '{bad}'.\nUse the '-s' option to ignore the bad mount option."
        );
        return Err((USAGE, cannot(&why)));
    }
    options.retain(|option| is_known(option));
    let is_asked_by_zfs = options.iter().any(|option| option == "zfsutil");
    let found = one(session, &name, &["mountpoint"]).map_err(|failure| (USAGE, words(failure)))?;
    let is_file_system = |kind| matches!(kind, DatasetKind::Filesystem | DatasetKind::Snapshot);
    let Some(info) = found.filter(|info| is_file_system(info.kind)) else {
        return Err((USAGE, cannot(", unable to open the dataset")));
    };
    let is_legacy = text(&info, "mountpoint") == Some("legacy");
    if info.kind == DatasetKind::Filesystem && !is_legacy && !is_asked_by_zfs {
        let why = format!(
            " using 'mount'.\nUse 'zfs set mountpoint=legacy' or 'zfs mount {name}'.\n\
             See zfs(8) for more information."
        );
        return Err((USAGE, cannot(&why)));
    }
    let shown = options.join(",");
    if asked.is_verbose {
        let report = format!(
            "mount.zfs:\n  dataset:    \"{name}\"\n  mountpoint: \"{at}\"\n  mountopts:  \"{shown}\""
        );
        writeln!(session.err, "{report}").map_err(|error| (SYSTEM, error.to_string()))?;
    }
    if asked.is_fake {
        return Ok(());
    }
    let request = MountRequest {
        options,
        overlay: true,
        at: Some(at),
        ..MountRequest::default()
    };
    let daemon = session
        .daemon()
        .map_err(|failure| (SYSTEM, words(failure)))?;
    daemon.mount(&name, &request).map_err(|why| match why {
        MountProblem::Already | MountProblem::Busy => {
            let text = "zfs_mount_at() failed: mountpoint or dataset is busy";
            (SYSTEM, text.to_owned())
        }
        why => (SYSTEM, cannot(&format!(": {why}"))),
    })
}

/// The imported pool that a device belongs to: it stands for the pool's root file system.
fn of_device(session: &Session, given: &str) -> Option<String> {
    let device = std::fs::canonicalize(given).ok()?;
    if device.is_dir() {
        return None;
    }
    let is_it = |vdev: &VdevInfo| {
        let path = vdev.path.as_ref();
        path.is_some_and(|path| std::fs::canonicalize(path).is_ok_and(|path| path == device))
    };
    let service = session.service().ok()?;
    service.pools().ok()?.into_iter().find(|name| {
        let pool = service.pool(name);
        pool.is_ok_and(|pool| walk(&pool).into_iter().any(|(vdev, _)| is_it(vdev)))
    })
}

/// The name of the dataset: mount(8) may have put the working directory before it.
fn dataset_of(given: &str) -> String {
    let here: PathBuf = std::env::current_dir().unwrap_or_default();
    let rest = Path::new(given).strip_prefix(&here).ok();
    let rest = rest.filter(|rest| given.starts_with('/') && !rest.as_os_str().is_empty());
    rest.map_or_else(
        || given.to_owned(),
        |rest| rest.to_string_lossy().into_owned(),
    )
}

fn words(failure: Failure) -> String {
    match failure {
        Failure::Usage(text) | Failure::Complaint(text) | Failure::Refused(text) => text,
        Failure::Status(_) => String::new(),
        Failure::Output(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Asked, String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        parse(&words)
    }

    #[test]
    fn the_command_line_is_that_of_mount_helpers() {
        let asked = parsed("tank/l /mnt -sfv -n -o ro,noatime -o zfsutil").unwrap();
        assert_eq!(
            (asked.dataset.as_str(), asked.mountpoint.as_str()),
            ("tank/l", "/mnt")
        );
        assert_eq!(asked.options, ["ro", "noatime", "zfsutil"]);
        assert!(asked.is_sloppy && asked.is_fake && asked.is_verbose);
        let missing = parsed("tank/l").unwrap_err();
        assert!(
            missing.starts_with("missing mountpoint argument\nusage: "),
            "{missing}"
        );
        assert!(parsed("a b c").is_err() && parsed("-x a b").is_err());
    }

    #[test]
    fn the_working_directory_is_no_part_of_a_name() {
        let here = std::env::current_dir().unwrap();
        let here = here.to_string_lossy();
        assert_eq!(dataset_of(&format!("{here}/tank/a")), "tank/a");
        assert_eq!(dataset_of("tank/a"), "tank/a");
    }

    #[test]
    fn words_are_known_or_not() {
        for word in ["ro", "zfsutil", "x-systemd.automount", "_netdev"] {
            assert!(is_known(word), "{word}");
        }
        assert!(!is_known("word") && !is_known("") && !is_known("roo"));
    }
}
