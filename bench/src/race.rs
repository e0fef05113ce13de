//! Runs commands alternately and prints the cost of each run.
//!
//! `race --name NAME [--rounds N] [--cold | --warm FILE]... [--clean FOLDER]... LABEL COMMAND LABEL
//! COMMAND...` runs the commands with `sh -c`, in reverse order in every second round, and prints a line
//! for each run: `NAME<TAB>LABEL<TAB>ROUND<TAB>wall seconds<TAB>CPU seconds<TAB>peak memory in bytes`.
//!
//! With `--cold` the system's caches are dropped before each run (this requires root). Otherwise the files
//! named by `--warm` are read once before each round. Directories named by `--clean` are removed before
//! each run. A failing command ends the race with status 1.
//!
//! `race --one COMMAND` runs one command and prints the last three values. The race calls itself this way,
//! because the system reports the peak memory of children as the maximum over all of them.
#![forbid(unsafe_code)]

use anyhow::{Context, bail};
use nix::sys::resource::{UsageWho, getrusage};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut race = Race::default();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().context("a value is missing");
        match argument.as_str() {
            "--one" => return one(&value()?),
            "--name" => race.name = value()?,
            "--rounds" => race.rounds = value()?.parse()?,
            "--cold" => race.is_cold = true,
            "--warm" => race.warmed.push(value()?.into()),
            "--clean" => race.cleaned.push(value()?.into()),
            label => race.contenders.push((label.to_owned(), value()?)),
        }
    }
    race.run()
}

struct Race {
    name: String,
    rounds: usize,
    is_cold: bool,
    warmed: Vec<PathBuf>,
    cleaned: Vec<PathBuf>,
    contenders: Vec<(String, String)>,
}

impl Default for Race {
    fn default() -> Self {
        Self {
            name: String::new(),
            rounds: 3,
            is_cold: false,
            warmed: vec![],
            cleaned: vec![],
            contenders: vec![],
        }
    }
}

impl Race {
    fn run(&self) -> anyhow::Result<()> {
        for round in 1..=self.rounds {
            if !self.is_cold {
                self.warm()?;
            }
            let mut order: Vec<_> = self.contenders.iter().collect();
            if round % 2 == 0 {
                order.reverse();
            }
            for (label, command) in order {
                self.clean();
                if self.is_cold {
                    Command::new("sync").status()?;
                    std::fs::write("/proc/sys/vm/drop_caches", "3")
                        .context("emptying the system's caches needs root")?;
                }
                let measured = Command::new(std::env::current_exe()?)
                    .args(["--one", command])
                    .output()?;
                if !measured.status.success() {
                    std::io::stderr().write_all(&measured.stderr)?;
                    bail!("{}: {label} failed: {command}", self.name);
                }
                let measurements = String::from_utf8(measured.stdout)?;
                print!("{}\t{label}\t{round}\t{measurements}", self.name);
                std::io::stdout().flush()?;
            }
        }
        self.clean();
        Ok(())
    }

    fn warm(&self) -> anyhow::Result<()> {
        for path in &self.warmed {
            let mut file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
            std::io::copy(&mut file, &mut std::io::sink())?;
        }
        Ok(())
    }

    fn clean(&self) {
        for path in &self.cleaned {
            // The directory may not exist.
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

fn one(command: &str) -> anyhow::Result<()> {
    let begun = Instant::now();
    let status = Command::new("sh")
        .args(["-c", &format!("exec {command}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()?;
    let wall = begun.elapsed().as_secs_f64();
    if !status.success() {
        bail!("{status}");
    }
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    let cpu = seconds(usage.user_time()) + seconds(usage.system_time());
    println!("{wall:.4}\t{cpu:.4}\t{}", usage.max_rss() * 1024);
    Ok(())
}
