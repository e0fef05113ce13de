//! What a row costs: CPU time of the whole machine and the peak memory of the server.
//!
//! The kernel threads of a file system work for it as a server in user space does, so everything that the
//! processors do counts. The machine must do nothing else.

use crate::measurement::{Unit, print};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::time::Instant;

/// Ticks per second in `/proc/stat` (`USER_HZ`), on almost every architecture.
const TICKS_PER_SECOND: f64 = 100.0;
/// Fewer ticks are too rough to say anything.
const TICKS_LEAST: u64 = 5;

/// What a row has done.
#[derive(Debug, Clone, Copy)]
pub enum Amount {
    Bytes(u64),
    Operations(u64),
}

/// Counts from the beginning of a row.
#[derive(Debug)]
pub struct Meter {
    begun: Instant,
    ticks: u64,
}

impl Meter {
    pub fn start() -> Result<Self> {
        forget_peak();
        Ok(Self {
            ticks: busy_ticks()?,
            begun: Instant::now(),
        })
    }
    /// Prints the speed of a row and what it cost.
    pub fn finish(&self, row: &str, amount: Amount) -> Result<()> {
        let seconds = self.begun.elapsed().as_secs_f64();
        print_speed(row, amount, seconds);
        self.cost(row, amount)
    }
    /// Prints only what a row cost.
    pub fn cost(&self, row: &str, amount: Amount) -> Result<()> {
        print_cost(row, amount, self.ticks)
    }
}

/// Prints the state at the beginning of a step that is made by other programs; [`end`] takes it.
pub fn begin() -> Result<()> {
    forget_peak();
    println!("{}\t{}", uptime_s()?, busy_ticks()?);
    Ok(())
}

/// Prints the speed and the cost of a step with this number of operations.
pub fn end(row: &str, operations: &str, begun: &str) -> Result<()> {
    let now_s = uptime_s()?;
    let (begun_s, ticks) = begun.trim().split_once('\t').context("no beginning")?;
    let amount = Amount::Operations(operations.parse()?);
    print_speed(row, amount, now_s - begun_s.parse::<f64>()?);
    print_cost(row, amount, ticks.parse()?)
}

fn print_speed(row: &str, amount: Amount, seconds: f64) {
    let seconds = seconds.max(1e-9);
    match amount {
        Amount::Bytes(bytes) => print(row, Unit::Megabytes, bytes as f64 / 1e6 / seconds),
        Amount::Operations(count) => print(row, Unit::PerSecond, count as f64 / seconds),
    }
}

fn print_cost(row: &str, amount: Amount, ticks_before: u64) -> Result<()> {
    let ticks = busy_ticks()?.saturating_sub(ticks_before);
    let seconds = ticks as f64 / TICKS_PER_SECOND;
    let (unit, share) = match amount {
        Amount::Bytes(bytes) => (Unit::CpuPerGigabyte, bytes as f64 / 1e9),
        Amount::Operations(count) => (Unit::CpuPerThousand, count as f64 / 1e3),
    };
    if ticks >= TICKS_LEAST && share > 0.0 {
        print(row, unit, seconds / share);
    }
    if let Some(peak) = peak_mib() {
        print(row, Unit::PeakMemory, peak);
    }
    Ok(())
}

/// Ticks of all processors that were not idle: user, nice, system, irq and softirq.
fn busy_ticks() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
    busy_of(&text).context("/proc/stat has no first line of numbers")
}

fn busy_of(text: &str) -> Option<u64> {
    let mut words = text.lines().next()?.split_whitespace().skip(1);
    let mut next = || words.next()?.parse::<u64>().ok();
    let (user, nice, system) = (next()?, next()?, next()?);
    let (_idle, _waiting, irq, softirq) = (next()?, next()?, next()?, next()?);
    Some(user + nice + system + irq + softirq)
}

fn uptime_s() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/uptime").context("/proc/uptime")?;
    let first = text.split_whitespace().next().context("/proc/uptime")?;
    Ok(first.parse()?)
}

/// A file of the server's process (`BENCH_SERVER`); file systems of the kernel have none.
fn of_server(file: &str) -> Option<PathBuf> {
    let process = std::env::var("BENCH_SERVER").ok()?;
    (!process.is_empty()).then(|| PathBuf::from("/proc").join(process).join(file))
}

/// Lets the kernel count the server's peak from now on. Where it cannot, peaks are since the server's start.
fn forget_peak() {
    if let Some(path) = of_server("clear_refs") {
        let _ = std::fs::write(path, "5");
    }
}

fn peak_mib() -> Option<f64> {
    let text = std::fs::read_to_string(of_server("status")?).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_waiting_and_stolen_time_is_not_busy() {
        let text = "cpu  1 20 300 5000 60000 4000 50000 700000 0 0\ncpu0 1 1 1 1\n";
        assert_eq!(busy_of(text), Some(54_321));
        assert_eq!(busy_of("cpu 1 2"), None);
    }
}
