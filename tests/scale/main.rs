//! Very many files, datasets and bytes.
//!
//! The default sizes are small. `make test-scale` sets `MILLPOND_SCALE=full`, runs the tests one after
//! another in an optimized build, and prints the cost of each step. No time limits are asserted.

mod datasets;
mod files;
mod memory;
#[allow(dead_code, reason = "shared with other tests, which need more of it")]
#[path = "../writing/rig.rs"]
mod rig;
mod slow;
mod sparse;

use std::time::Instant;

/// Selects the small size by default, the full one in `make test-scale`.
fn size(small: u64, full: u64) -> u64 {
    match std::env::var("MILLPOND_SCALE") {
        Ok(word) if word == "full" => full,
        _ => small,
    }
}

/// Prints the cost of a step.
///
/// The cost is its duration, the process's CPU time (comparable even on a busy machine), and its peak
/// memory.
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

/// The CPU time of this process in seconds; 0 if unknown.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The fields follow the name, which may contain blanks. User and system time are the 12th and 13th, in
    // hundredths of a second.
    let words = stat.rsplit(')').next().unwrap_or("").split_whitespace();
    let times = words.skip(11).take(2);
    times
        .filter_map(|word| word.parse::<f64>().ok())
        .sum::<f64>()
        / 100.0
}

/// The peak memory of the process since the last [`forget_peak`], in bytes; 0 if unknown.
fn peak_bytes() -> u64 {
    field("VmHWM:")
}

/// The current memory.
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
    // If this write fails, the peak covers the whole run.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}
