//! Counts instructions of small benchmarks whose times vary too much to compare commits.
//!
//! `count [--only PREFIX] [--table FILE] [--write]` runs each benchmark under valgrind and prints the
//! instructions per operation next to those of the committed table (`bench/counts.md`). `--write` replaces
//! the table. A changed count never causes a failure. `count --list` prints the names of the benchmarks.
//!
//! `count --work NAME TIMES` is the command that runs under valgrind: it prepares a benchmark and runs it
//! `TIMES` times. A count is the difference between a run with 2N operations and one with N, divided by N.
//! This removes the costs before and after the operations, and the code needs no markers. Each count is
//! measured twice; the table shows the difference. The benchmarks run on one processor, with a seeded
//! environment and without threads of the pool, to keep the variation small.
//!
//! Valgrind emulates a processor with AVX2, but without AVX-512, GFNI and the SHA instructions. Code that
//! selects an implementation at run time therefore uses another one than on a newer processor. The table
//! names the implementations that were counted.
#![forbid(unsafe_code)]

mod codecs;
mod engine;
mod structures;
mod table;

use anyhow::{Context, Result, bail, ensure};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use table::{Measurement, Table};

/// Runs the operation with this number; numbers start at 0 and increase by 1.
type Step = Box<dyn FnMut(u64) -> Result<()>>;

/// A small deterministic benchmark.
struct Work {
    name: String,
    /// Number of operations of the shorter run.
    times: u64,
    make: Box<dyn FnOnce() -> Result<Step>>,
}

impl Work {
    fn new(
        name: impl Into<String>,
        times: u64,
        make: impl FnOnce() -> Result<Step> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            times,
            make: Box::new(make),
        }
    }
}

fn works() -> Vec<Work> {
    let mut works = codecs::works();
    works.extend(structures::works());
    works.extend(engine::works());
    works
}

fn main() -> Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let (mut only, mut table, mut is_writing) = (String::new(), None, false);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().context("a value is missing");
        match argument.as_str() {
            "--list" => {
                works().iter().for_each(|work| println!("{}", work.name));
                return Ok(ExitCode::SUCCESS);
            }
            "--abilities" => {
                println!("{}", abilities());
                return Ok(ExitCode::SUCCESS);
            }
            "--work" => return work(&value()?, value()?.parse()?),
            "--only" => only = value()?,
            "--table" => table = Some(PathBuf::from(value()?)),
            "--write" => is_writing = true,
            _ => bail!("unknown argument {argument}"),
        }
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!(
            "count: valgrind is not installed (Debian: apt-get install valgrind): nothing was counted"
        );
        return Ok(ExitCode::from(75));
    }
    let before = match &table {
        Some(path) => Table::parse(&std::fs::read_to_string(path).unwrap_or_default()),
        None => Table::default(),
    };
    let mut now = Table::default();
    println!(
        "{:<28} {:>14} {:>8} {:>14} {:>9}",
        "", "instructions", "spread", "before", "change"
    );
    for work in works().iter().filter(|work| work.name.starts_with(&only)) {
        let measurement = measured(&work.name, work.times)?;
        println!(
            "{}",
            table::line(&work.name, measurement, before.get(&work.name))
        );
        now.put(&work.name, measurement);
    }
    if let (Some(path), true) = (&table, is_writing) {
        let mut whole = before;
        whole.adopt(now);
        let names: Vec<String> = works().into_iter().map(|work| work.name).collect();
        let about = format!(
            "{}, {}",
            version("rustc", "-V")?,
            version("valgrind", "--version")?
        );
        let page = whole.page(&names, &about, &below_valgrind(&["--abilities"])?.0);
        std::fs::write(path, page)?;
        println!("count: wrote {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Prepares a benchmark and runs it.
fn work(name: &str, times: u64) -> Result<ExitCode> {
    // With one processor, the engine's thread pools have minimum size and schedule deterministically.
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let mut one = rustix::thread::CpuSet::new();
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
    one.set(first.context("no processor to run on")?);
    rustix::thread::sched_setaffinity(None, &one)?;
    let work = works().into_iter().find(|work| work.name == name);
    let mut step = (work
        .with_context(|| format!("no work has the name {name}"))?
        .make)()?;
    for number in 0..times {
        step(number)?;
    }
    // Skips the cleanup, which costs more than most benchmarks.
    std::process::exit(0);
}

/// The implementations selected at run time here.
fn abilities() -> String {
    let parity = millpond_parity::Implementation::best().name();
    #[cfg(target_arch = "x86_64")]
    let known: Vec<&str> = [
        ("AVX2", std::arch::is_x86_feature_detected!("avx2")),
        ("AVX-512", std::arch::is_x86_feature_detected!("avx512f")),
        ("GFNI", std::arch::is_x86_feature_detected!("gfni")),
        ("AES", std::arch::is_x86_feature_detected!("aes")),
        (
            "PCLMULQDQ",
            std::arch::is_x86_feature_detected!("pclmulqdq"),
        ),
        ("SHA", std::arch::is_x86_feature_detected!("sha")),
    ]
    .into_iter()
    .filter_map(|(name, is_there)| is_there.then_some(name))
    .collect();
    #[cfg(not(target_arch = "x86_64"))]
    let known: Vec<&str> = vec![std::env::consts::ARCH];
    format!(
        "a processor with {} (of AVX2, AVX-512, GFNI, AES, PCLMULQDQ, SHA); reconstruction of parity: {parity}",
        known.join(", ")
    )
}

fn version(program: &str, argument: &str) -> Result<String> {
    let printed = Command::new(program).arg(argument).output()?.stdout;
    let printed = String::from_utf8_lossy(&printed).trim().to_owned();
    Ok(printed.split(" (").next().unwrap_or_default().to_owned())
}

fn measured(name: &str, times: u64) -> Result<Measurement> {
    let once = || -> Result<f64> {
        let count = |times: u64| -> Result<u64> {
            Ok(below_valgrind(&["--work", name, &times.to_string()])?.1)
        };
        let (short, long) = (count(times)?, count(times * 2)?);
        ensure!(
            long > short,
            "{name}: twice the work took no more instructions"
        );
        Ok((long - short) as f64 / times as f64)
    };
    let (first, second) = (once()?, once()?);
    Ok(Measurement {
        instructions: f64::midpoint(first, second),
        spread: (first - second).abs() / first.min(second),
    })
}

/// Runs this program under valgrind. Returns its output and the number of instructions.
fn below_valgrind(arguments: &[&str]) -> Result<(String, u64)> {
    let out = Command::new("valgrind")
        // Valgrind counts each iteration of a repeated string instruction, so glibc would seem to clear and
        // copy byte by byte. With this setting glibc uses vector instructions instead.
        .env("GLIBC_TUNABLES", NO_REPETITIONS)
        .args([
            "--tool=cachegrind",
            "--cache-sim=no",
            "--cachegrind-out-file=/dev/null",
        ])
        .arg(std::env::current_exe()?)
        .args(arguments)
        .output()?;
    let printed = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "{arguments:?}: {printed}");
    // "==123== I   refs:      307,212"
    let refs = printed
        .lines()
        .find_map(|line| line.split_once("I   refs:"));
    let digits: String = refs
        .with_context(|| format!("no count in: {printed}"))?
        .1
        .replace(',', "");
    Ok((
        String::from_utf8_lossy(&out.stdout).trim().to_owned(),
        digits.trim().parse()?,
    ))
}

const NO_REPETITIONS: &str =
    "glibc.cpu.x86_rep_movsb_threshold=1073741824:glibc.cpu.x86_rep_stosb_threshold=1073741824";
