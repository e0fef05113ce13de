//! OpenZFS's kernel module as a judge, in a virtual machine (`tools/kernel`).

use super::{Verdict, lines};
use crate::images::workspace;
use crate::workload::manifest;
use anyhow::{Context, Result, anyhow};
use millpond_engine::{OpenOptions, Search, View};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What happens to the images given to the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disks {
    /// The machine's writes are discarded.
    Kept,
    /// The machine's writes are kept.
    Changed,
}

/// The release of OpenZFS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// 2.3, the baseline.
    V2_3,
    /// 2.4.
    V2_4,
}

impl Release {
    fn name(self) -> &'static str {
        match self {
            Self::V2_3 => "2.3",
            Self::V2_4 => "2.4",
        }
    }
}

/// The output of a script in the machine.
#[derive(Debug, Clone)]
pub struct Output {
    /// The script's exit status; 124 to 126 are statuses of the machine.
    pub status: Option<i32>,
    /// All lines of output.
    pub lines: Vec<String>,
}

/// Says why no machine is available; `None` if there is one.
///
/// Tests never create the machine, because this takes minutes (`make kernel`).
#[must_use]
pub fn absent(release: Release) -> Option<String> {
    let suffix = if release == Release::V2_4 { "-2.4" } else { "" };
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/root"), PathBuf::from);
    let cache = std::env::var_os("MILLPOND_ZFS_VM").map_or_else(
        || home.join(format!(".cache/millpond-zfs-vm{suffix}")),
        PathBuf::from,
    );
    (!cache.join("ready").exists()).then(|| {
        format!(
            "no virtual machine in {} (MILLPOND_ZFS={} tools/kernel/setup makes it)",
            cache.display(),
            release.name()
        )
    })
}

/// Runs a script of `tools/kernel` (or any other path) on the images.
///
/// # Errors
/// If the machine cannot be started.
pub fn run(
    release: Release,
    images: &[PathBuf],
    disks: Disks,
    share: Option<&Path>,
    script: &Path,
    arguments: &[&str],
) -> Result<Output> {
    let mut command = Command::new(workspace().join("tools/kernel/run"));
    command.env("MILLPOND_ZFS", release.name());
    // The limit only ends machines that hang. An emulated machine on a busy host is slow.
    let timeout = std::env::var("MILLPOND_KERNEL_SECONDS");
    let timeout = timeout.unwrap_or_else(|_| "7200".to_owned());
    command.args(["--timeout", &timeout]);
    // Images on file vdevs are copied into the machine's memory.
    if let Ok(memory) = std::env::var("MILLPOND_KERNEL_MEMORY") {
        command.args(["--mem", &memory]);
    }
    for image in images {
        command.arg(match disks {
            Disks::Kept => "--tmp-disk",
            Disks::Changed => "--disk",
        });
        command.arg(image);
    }
    if let Some(share) = share {
        command.arg("--share").arg(share);
    }
    let done = command
        .arg(script)
        .args(arguments)
        .output()
        .context("tools/kernel/run")?;
    let mut found = lines(&done.stdout);
    found.extend(lines(&done.stderr));
    Ok(Output {
        status: done.status.code(),
        lines: found,
    })
}

/// Lets the kernel module import, scrub and read the pool.
///
/// The manifest of what it read is then in `share` (`manifest.txt`), if given.
///
/// # Errors
/// If the machine cannot be started.
pub fn judge(
    release: Release,
    images: &[PathBuf],
    pool: &str,
    share: Option<&Path>,
) -> Result<Verdict> {
    if let Some(why) = absent(release) {
        return Ok(Verdict::Absent(why));
    }
    let script = workspace().join("tools/kernel/check");
    let output = run(release, images, Disks::Kept, share, &script, &[pool])?;
    output.lines.iter().for_each(|line| println!("    {line}"));
    Ok(verdict(&output))
}

/// Like [`judge`], and compares what the module read with what we read.
///
/// The comparison covers each file, attribute and property of the manifest. Also returns the number of
/// lines compared.
///
/// # Errors
/// If the machine cannot be started, or we cannot read the pool.
pub fn compare(release: Release, folder: &Path, pool: &str) -> Result<(Verdict, usize)> {
    if let Some(why) = absent(release) {
        return Ok((Verdict::Absent(why), 0));
    }
    let read = View::open(&Search::new([folder]), pool, &OpenOptions::default())?;
    let ours = manifest(&read).map_err(|error| anyhow!("{error}"))?;
    drop(read);
    let mut images = std::fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<Vec<PathBuf>>>()?;
    images.retain(|path| path.is_file());
    images.sort();
    let share = tempfile::tempdir()?;
    let verdict = judge(release, &images, pool, Some(share.path()))?;
    if !verdict.is_clean() {
        return Ok((verdict, 0));
    }
    let count = ours.len();
    let differences = only_one_has(ours, written(share.path(), "manifest.txt"));
    if differences.is_empty() {
        return Ok((Verdict::Clean, count));
    }
    Ok((Verdict::Faults(differences), count))
}

/// Like [`judge`]; then the module changes the pool on the images themselves.
///
/// It creates files and snapshots named after `tag`, and writes the manifest after these changes to
/// `changed.txt` in `share`.
///
/// # Errors
/// If the machine cannot be started.
pub fn judge_and_change(
    release: Release,
    images: &[PathBuf],
    pool: &str,
    share: &Path,
    tag: &str,
) -> Result<Verdict> {
    if let Some(why) = absent(release) {
        return Ok(Verdict::Absent(why));
    }
    let script = workspace().join("tools/kernel/check");
    let arguments = ["--change", tag, pool];
    let share = Some(share);
    let output = run(release, images, Disks::Changed, share, &script, &arguments)?;
    output.lines.iter().for_each(|line| println!("    {line}"));
    Ok(verdict(&output))
}

/// The lines that only one side has, up to a maximum number for each.
#[must_use]
pub fn only_one_has(ours: Vec<String>, theirs: Vec<String>) -> Vec<String> {
    let (ours, theirs): (BTreeSet<_>, BTreeSet<_>) =
        (ours.into_iter().collect(), theirs.into_iter().collect());
    let of_us = ours.difference(&theirs).map(|line| format!("we: {line}"));
    let of_them = theirs.difference(&ours).map(|line| format!("it: {line}"));
    let mut all: Vec<String> = of_us.take(12).chain(of_them.take(12)).collect();
    // Lines about the same file are adjacent.
    all.sort_by_key(|line| {
        let mut parts = line.get(4..).unwrap_or_default().split('\t');
        let dataset = parts.next().unwrap_or_default().to_owned();
        (dataset, parts.next_back().unwrap_or_default().to_owned())
    });
    all
}

/// Reads a file that the module wrote.
///
/// # Panics
/// If the file does not exist.
#[must_use]
pub fn written(share: &Path, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(share.join(name));
    let text = text.unwrap_or_else(|error| panic!("{name}: {error}"));
    text.lines().map(str::to_owned).collect()
}

fn verdict(output: &Output) -> Verdict {
    if output.status == Some(0) {
        return Verdict::Clean;
    }
    let mut faults = vec![format!("exit status {:?}", output.status)];
    faults.extend(fault_lines(output));
    let from = output.lines.len().saturating_sub(60);
    faults.extend(output.lines[from..].iter().cloned());
    Verdict::Faults(faults)
}

fn fault_lines(output: &Output) -> impl Iterator<Item = String> {
    let accusing = output.lines.iter().filter(|line| line.starts_with("FAULT"));
    accusing.cloned()
}
