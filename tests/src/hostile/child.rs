//! Runs each case in a process of its own.
//!
//! A stack overflow, memory exhaustion or an endless loop then affects one seed instead of the whole test.

use super::exercise::NOW;
use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How a child ended.
#[derive(Debug)]
pub enum Ended {
    /// Success, with its last line of output.
    Well(String),
    /// Failure: the last step that it began, and its error output.
    Died(String, String),
}

/// Runs this program with `order` in the environment and waits for it.
///
/// The child prints each step that it begins, one per line.
///
/// # Errors
/// If no process can be started.
pub fn run(order: &str) -> Result<Ended> {
    let output = Command::new(std::env::current_exe().context("this program's path")?)
        .env(ORDER, order)
        .env("RUST_BACKTRACE", "1")
        .stdin(Stdio::null())
        .output()
        .context("a child cannot be started")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let last = said.lines().last().unwrap_or_default().to_owned();
    if output.status.success() {
        return Ok(Ended::Well(last));
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = errors
        .lines()
        .filter(|line| !line.contains("/rustc/") && !line.trim().is_empty())
        .take(40)
        .collect();
    let description = format!("{}: {}", output.status, lines.join("\n    "));
    Ok(Ended::Died(last, description))
}

/// The order, if this process is a child.
pub fn order() -> Option<String> {
    std::env::var(ORDER).ok()
}

/// Limits the memory of this process and watches the duration of each step from now on.
pub fn confine() {
    let before = getrlimit(Resource::As);
    let bound = Rlimit {
        current: Some(MEMORY_BYTES),
        maximum: before.maximum,
    };
    if let Err(error) = setrlimit(Resource::As, bound) {
        eprintln!("memory is not bounded: {error}");
    }
    std::thread::spawn(watch);
}

/// Prints that a step begins.
pub fn begin(what: &str) {
    let mut out = std::io::stdout().lock();
    // The parent was killed, and so will this process be.
    let _ = writeln!(out, "{what}").and_then(|()| out.flush());
    STEPS.fetch_add(1, Ordering::Relaxed);
}

/// Ends the process if one step takes too long.
fn watch() {
    let (mut step, mut since, mut cpu_since) = (0, Instant::now(), cpu_time());
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let present = STEPS.load(Ordering::Relaxed);
        if present != step {
            (step, since, cpu_since) = (present, Instant::now(), cpu_time());
        } else if cpu_time().saturating_sub(cpu_since) > STEP_CPU_MAX || since.elapsed() > STEP_MAX
        {
            let now = NOW.lock().map(|now| now.clone()).unwrap_or_default();
            eprintln!("does not come back from: {now}");
            std::process::abort();
        }
    }
}

/// The processor time of all threads of this process. A busy machine does not add to it.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

static STEPS: AtomicU64 = AtomicU64::new(0);
const ORDER: &str = "MILLPOND_HOSTILE_CHILD";
/// Limit of the address space, including the image. It limits requested memory, whether used or not.
const MEMORY_BYTES: u64 = 2 << 30;
/// Steps on unchanged images take far less than a second, hostile ones some seconds. An endless loop takes more.
const STEP_CPU_MAX: Duration = Duration::from_secs(40);
/// For steps that wait for ever.
const STEP_MAX: Duration = Duration::from_secs(300);
