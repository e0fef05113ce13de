//! `zdb` as a judge.

use super::objects::is_row;
use super::{Verdict, lines, permissions, totals};
use crate::images::{cache_folder, hex, workspace};
use anyhow::{Context, Result, anyhow};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The output of one run of `zdb`.
#[derive(Debug, Clone)]
pub struct Output {
    /// Its exit status; `None` if a signal ended it.
    pub status: Option<i32>,
    /// Standard output and standard error as lines, without empty ones.
    pub lines: Vec<String>,
}

/// Says why `zdb` is not available; `None` if it is. The first call downloads it.
pub fn absent() -> Option<String> {
    static STATE: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let state = STATE.get_or_init(|| {
        let fetch = workspace().join("tools/oracle/fetch");
        match Command::new(&fetch).output() {
            Ok(done) if done.status.success() => None,
            Ok(done) => Some(format!(
                "tools/oracle/fetch gives no zdb here (exit status {:?})",
                done.status.code()
            )),
            Err(error) => Some(format!("{}: {error}", fetch.display())),
        }
    });
    state.clone()
}

/// Runs `zdb -e -p FOLDER ARGUMENTS…` and returns its output.
///
/// For images and arguments that were seen before, the output comes from `target/oracle-cache`.
///
/// # Errors
/// If `zdb` cannot be started or the images cannot be read.
pub fn run(folder: &Path, arguments: &[&str]) -> Result<Output> {
    kept_or(folder, arguments, || {
        let done = zdb(folder, arguments).output().context("zdb")?;
        let mut found = lines(&done.stdout);
        found.extend(lines(&done.stderr));
        Ok(Output {
            status: done.status.code(),
            lines: found,
        })
    })
}

/// Like [`run`], but returns the unchanged standard output.
///
/// It includes trailing blanks and empty lines, which names may contain.
///
/// # Errors
/// If `zdb` cannot be started.
pub fn print(folder: &Path, arguments: &[&str]) -> Result<String> {
    let done = zdb(folder, arguments).output().context("zdb")?;
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Runs `zdb OPTION IMAGE` and returns the unchanged standard output: for labels (`-l`), which belong to no pool.
///
/// # Errors
/// If `zdb` cannot be started.
pub fn print_label(image: &Path, option: &str) -> Result<String> {
    let mut command = Command::new(workspace().join("tools/oracle/zdb"));
    let done = command.arg(option).arg(image).output().context("zdb")?;
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Judges the pool whose images are in `folder`.
///
/// Every block is read and compared with the space maps (`-bcc`), every object must be referenced (`-d`),
/// the sums of every space map must be correct (`-mm`), and all numbers, including those of every object
/// (`-dd`) and intent log (`-i`), must equal ours ([`totals`]).
///
/// # Errors
/// If `zdb` cannot be started.
pub fn judge(folder: &Path, pool: &str) -> Result<Verdict> {
    if let Some(why) = absent() {
        return Ok(Verdict::Absent(why));
    }
    let asked = |options| {
        let arguments = [options, pool];
        kept_or(folder, &arguments, || {
            until_history(folder, &arguments, CPU_SECONDS)
        })
    };
    let mut output = asked(JUDGING)?;
    // With exact numbers it overflows a buffer after the blocks of a pool that has removed vdevs.
    if output.status.is_none() {
        output = asked(JUDGING_NUMBERS)?;
        let blocks = asked(JUDGING_PLAIN_BLOCKS)?;
        output.status = match (output.status, blocks.status) {
            (Some(one), Some(other)) => Some(one.max(other)),
            _ => None,
        };
        output.lines.extend(blocks.lines);
    }
    // If it reports objects (permissions of older pools, incorrectly), it skips the blocks.
    if output.status == Some(0) && !output.lines.iter().any(|line| line.contains(BLOCKS)) {
        let blocks = asked(JUDGING_BLOCKS)?;
        output.status = output.status.max(blocks.status);
        output.lines.extend(blocks.lines);
    }
    let faults = faults_in(&output, JUDGING);
    let mut faults = permissions::without_inner_tables(faults, folder, pool)?;
    // Numbers of a pool that it could not open are meaningless.
    if output.status == Some(0) {
        match totals::disagreements(&output.lines, folder, pool) {
            Ok((found, 0)) => faults.push(format!("no statistics to compare: {found:?}")),
            Ok((found, _)) => faults.extend(found),
            Err(error) => faults.push(format!("statistics: {error:#}")),
        }
    }
    Ok(if faults.is_empty() {
        Verdict::Clean
    } else {
        Verdict::Faults(faults)
    })
}

/// Returns the errors that `zdb` reports about the pool in `folder`.
///
/// There is no comparison with our numbers and no cache, because the images are checked only once. A pool
/// that `zdb` cannot open, or that crashes it, counts as an error.
///
/// # Errors
/// If `zdb` cannot be started.
pub fn complaints(folder: &Path, pool: &str) -> Result<Vec<String>> {
    let output = until_history(folder, &[JUDGING, pool], CPU_SECONDS_OF_DAMAGED)?;
    Ok(faults_in(&output, JUDGING))
}

/// `zdb` always prints the history (`-h`) last. When its heading appears, everything else is complete.
const JUDGING: &str = "-Pbccddmmih";
const JUDGING_BLOCKS: &str = "-Pbcch";
const JUDGING_NUMBERS: &str = "-Pddmmih";
const JUDGING_PLAIN_BLOCKS: &str = "-bcch";
/// CPU seconds after which `zdb` is ended, because reading a damaged pool may take forever.
const CPU_SECONDS: &str = "7200";
const CPU_SECONDS_OF_DAMAGED: &str = "20";
const HISTORY: &str = "History:";
/// The line that it prints once it has read all blocks.
pub(super) const BLOCKS: &str = "bp allocated:";

/// Runs `zdb` until its last heading.
///
/// The output after that is not needed, and the exit takes five seconds of CPU time after every `-cc`, so
/// `zdb` is ended there. If it ends earlier by itself, its own exit status is returned.
fn until_history(folder: &Path, arguments: &[&str], cpu_seconds: &str) -> Result<Output> {
    let mut command = Command::new("sh");
    let plain = zdb(folder, arguments);
    // Without line buffering, zdb would keep the text until it ends.
    command.args([
        "-c",
        "ulimit -t \"$0\"; exec stdbuf -oL \"$@\"",
        cpu_seconds,
    ]);
    command.arg(plain.get_program());
    command.args(plain.get_args());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("stdbuf and zdb")?;
    let stderr = child.stderr.take().context("standard error")?;
    let complaints = std::thread::spawn(move || {
        let mut bytes = vec![];
        BufReader::new(stderr)
            .read_to_end(&mut bytes)
            .map(|_| bytes)
    });
    let mut stdout = BufReader::new(child.stdout.take().context("standard output")?);
    let mut said = vec![];
    let mut from = 0;
    let is_whole = loop {
        if stdout.read_until(b'\n', &mut said)? == 0 {
            break false;
        }
        if said[from..].trim_ascii() == HISTORY.as_bytes() {
            break true;
        }
        from = said.len();
    };
    let status = if is_whole {
        said.truncate(from);
        child.kill()?;
        child.wait()?;
        Some(0)
    } else {
        child.wait()?.code()
    };
    let mut found = lines(&said);
    let complaints = complaints.join();
    found.extend(lines(&complaints.map_err(|_| anyhow!("zdb's reader"))??));
    Ok(Output {
        status,
        lines: found,
    })
}

fn zdb(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(workspace().join("tools/oracle/zdb"));
    command.arg("-e").arg("-p").arg(folder).args(arguments);
    command
}

/// Returns a cached output, or runs `zdb` and caches its output.
fn kept_or(
    folder: &Path,
    arguments: &[&str],
    ask: impl FnOnce() -> Result<Output>,
) -> Result<Output> {
    let kept = kept_answer(folder, arguments)?;
    if let Ok(text) = std::fs::read_to_string(&kept) {
        let (status, rest) = text.split_once('\n').unwrap_or((&text, ""));
        return Ok(Output {
            status: status.parse().ok(),
            lines: rest.lines().map(str::to_owned).collect(),
        });
    }
    let output = ask()?;
    // The output of a killed zdb is not a result.
    if let Some(status) = output.status {
        let unfinished = kept.with_extension(format!("{}.new", std::process::id()));
        std::fs::write(
            &unfinished,
            format!("{status}\n{}", output.lines.join("\n")),
        )?;
        std::fs::rename(&unfinished, &kept)?;
    }
    Ok(output)
}

/// The lines that report errors. For `-bcc` the line that confirms success must also be present.
fn faults_in(output: &Output, option: &str) -> Vec<String> {
    // There is an object type called "persistent error log".
    let accusing =
        |line: &&String| !is_row(line) && ACCUSING.iter().any(|words| line.contains(words));
    let mut faults: Vec<String> = output
        .lines
        .iter()
        .filter(accusing)
        .map(|line| format!("zdb {option}: {line}"))
        .collect();
    let tail = || {
        let from = output.lines.len().saturating_sub(8);
        output.lines[from..].join(" | ")
    };
    if output.status != Some(0) {
        faults.push(format!(
            "zdb {option}: exit status {:?}: {}",
            output.status,
            tail()
        ));
    }
    let acquits = |line: &String| line.contains("No leaks (block sum matches space maps exactly)");
    if option.contains("cc") && !output.lines.iter().any(acquits) {
        faults.push(format!(
            "zdb {option}: does not say \"No leaks\": {}",
            tail()
        ));
    }
    faults
}

/// Parts of lines that `zdb` prints only for errors.
const ACCUSING: &[&str] = &[
    "leaked space",
    ") leaked",
    "(leaked",
    "!= alloc",
    "mismatch",
    "is incorrect",
    "INCONSISTENT",
    "DOUBLE",
    "Got error",
    "error ",
    "can't open",
    "ASSERT",
    "VERIFY",
    "referenced but not allocated",
    "dangling",
    "not equal",
    "failed",
];

fn kept_answer(folder: &Path, arguments: &[&str]) -> Result<PathBuf> {
    let mut digest = Sha256::new();
    let mut names: Vec<PathBuf> = std::fs::read_dir(folder)
        .with_context(|| folder.display().to_string())?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    names.sort();
    for path in names {
        digest.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        let file = std::fs::File::open(&path).with_context(|| path.display().to_string())?;
        digest_data(&mut digest, &file).with_context(|| path.display().to_string())?;
    }
    for argument in arguments {
        digest.update(argument.as_bytes());
        digest.update([0]);
    }
    let cache = cache_folder().with_file_name("oracle-cache");
    std::fs::create_dir_all(&cache)?;
    Ok(cache.join(hex(&digest.finalize()[..16])))
}

/// Only the stored data of a sparse file, with its offsets: images may be terabytes of holes.
fn digest_data(digest: &mut Sha256, file: &File) -> Result<()> {
    let length = file.metadata()?.len();
    digest.update(length.to_le_bytes());
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < length {
        let from = match seek(file, SeekFrom::Data(at)) {
            Ok(from) => from,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = seek(file, SeekFrom::Hole(from))?;
        digest.update(from.to_le_bytes());
        at = from;
        while at < end {
            let part = buffer.len().min((end - at) as usize);
            file.read_exact_at(&mut buffer[..part], at)?;
            digest.update(&buffer[..part]);
            at += part as u64;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(status: i32, text: &str) -> Output {
        Output {
            status: Some(status),
            lines: lines(text.as_bytes()),
        }
    }

    #[test]
    fn the_text_decides_and_not_the_exit_status() {
        let clean = "\tNo leaks (block sum matches space maps exactly)\nVerified sha512 feature refcount of 0 is correct";
        assert!(faults_in(&output(0, clean), "-bcc").is_empty());
        for bad in [
            "leaked space: vdev 0, offset 0x1000, size 4096",
            "block traversal size 1 != alloc 2 (leaked 1)",
            "space map refcount mismatch: expected 3 != actual 4",
            "MOS object 70 (DSL props) leaked",
        ] {
            assert_eq!(
                faults_in(&output(0, &format!("{clean}\n{bad}")), "-bcc").len(),
                1,
                "{bad}"
            );
        }
        assert!(!faults_in(&output(0, "bp count: 1"), "-bcc").is_empty());
        assert!(!faults_in(&output(3, clean), "-bcc").is_empty());
    }
}
