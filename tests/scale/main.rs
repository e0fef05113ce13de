//! Very many files, datasets and bytes. Everyday sizes are small; `make test-scale` sets
//! `MILLPOND_SCALE=full`, runs one test after the other in an optimised build, and shows what each took.
//! Nothing is asserted about time.

mod datasets;
mod files;
mod memory;
#[allow(dead_code, reason = "shared with other tests, which need more of it")]
#[path = "../writing/rig.rs"]
mod rig;
mod slow;
mod sparse;

use std::time::Instant;

/// Small in everyday runs, full in `make test-scale`.
fn size(small: u64, full: u64) -> u64 {
    match std::env::var("MILLPOND_SCALE") {
        Ok(word) if word == "full" => full,
        _ => small,
    }
}

/// Tells what a step took, how long processors worked for the process (on a busy machine that is what can be
/// compared), and how much memory it had at most.
struct Steps {
    what: String,
    begun: Instant,
    worked: f64,
}

impl Steps {
    fn new(what: &str) -> Self {
        forget_peak();
        Self {
            what: what.to_owned(),
            begun: Instant::now(),
            worked: processor_seconds(),
        }
    }
    fn done(&mut self, step: &str) {
        let seconds = self.begun.elapsed().as_secs_f64();
        let worked = processor_seconds() - self.worked;
        let peak = peak_bytes() >> 20;
        println!(
            "scale: {}: {step}: {seconds:.2} s, processors {worked:.2} s, peak {peak} MiB",
            self.what
        );
        forget_peak();
        (self.begun, self.worked) = (Instant::now(), processor_seconds());
    }
}

/// How long processors have worked for this process, in seconds; 0 if the system does not tell.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name, which may have blanks: user's and system's time are the 12th and 13th word, in
    // hundredths of a second.
    let words = stat.rsplit(')').next().unwrap_or("").split_whitespace();
    let times = words.skip(11).take(2);
    times
        .filter_map(|word| word.parse::<f64>().ok())
        .sum::<f64>()
        / 100.0
}

/// The most memory that the process had since the last [`forget_peak`], in bytes; 0 if the system does not tell.
fn peak_bytes() -> u64 {
    field("VmHWM:")
}

/// What it has now.
fn resident_bytes() -> u64 {
    field("VmRSS:")
}

fn field(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let words = line.and_then(|line| line.split_whitespace().next());
    words.and_then(|kib| kib.parse().ok()).unwrap_or(0) * 1024
}

fn forget_peak() {
    // Where this cannot be written the figures are of the whole run.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}
