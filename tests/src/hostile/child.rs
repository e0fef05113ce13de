//! Runs in a process of their own, so that a stack that overflows, memory that runs out or a loop
//! without end costs one seed and not the whole test.

use super::exercise::NOW;
use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How a child ended.
#[derive(Debug)]
pub enum Ended {
    /// All went well; its last line.
    Well(String),
    /// It died: the last thing that it began, and what it said.
    Died(String, String),
}

/// Starts this program again with `order` in the environment and waits for it. The child says on
/// standard output what it begins, a line each.
///
/// # Errors
/// When no process can be started.
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
    let told = format!("{}: {}", output.status, lines.join("\n    "));
    Ok(Ended::Died(last, told))
}

/// The order, if this process is a child.
pub fn order() -> Option<String> {
    std::env::var(ORDER).ok()
}

/// Bounds the memory of this process and watches the time of each step from now on.
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

/// Says that a step begins.
pub fn begin(what: &str) {
    let mut out = std::io::stdout().lock();
    // Nobody listens: the parent was stopped, and soon so are we.
    let _ = writeln!(out, "{what}").and_then(|()| out.flush());
    STEPS.fetch_add(1, Ordering::Relaxed);
}

/// Ends the process when one step takes too long.
fn watch() {
    let (mut step, mut since) = (0, Instant::now());
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let present = STEPS.load(Ordering::Relaxed);
        if present != step {
            (step, since) = (present, Instant::now());
        } else if since.elapsed() > STEP_MAX {
            let now = NOW.lock().map(|now| now.clone()).unwrap_or_default();
            eprintln!("does not come back from: {now}");
            std::process::abort();
        }
    }
}

static STEPS: AtomicU64 = AtomicU64::new(0);
const ORDER: &str = "MILLPOND_HOSTILE_CHILD";
/// Address space, the image included: it bounds what may be asked for, used or not.
const MEMORY_BYTES: u64 = 2 << 30;
/// Honest images take well below a second. Far above what a busy machine could be slow.
const STEP_MAX: Duration = Duration::from_secs(40);
