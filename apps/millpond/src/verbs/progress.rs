//! A progress bar on the terminal for long operations.

use indicatif::{ProgressBar, ProgressStyle};
use millpond_engine::View;
use millpond_env::sync::{Condvar, Mutex};
use millpond_env::thread;
use std::io::{self, IsTerminal};
use std::time::Duration;

/// Runs `body` behind a progress bar, which `update` refreshes five times a second.
///
/// No bar is shown if `is_hidden`, or if standard error is not a terminal.
pub fn with_bar<T>(
    is_hidden: bool,
    total_bytes: u64,
    update: &(dyn Fn(&ProgressBar) + Sync),
    body: impl FnOnce(&ProgressBar) -> T,
) -> T {
    let bar = if is_hidden || !io::stderr().is_terminal() {
        ProgressBar::hidden()
    } else {
        ProgressBar::new(total_bytes)
    };
    if let Ok(style) = ProgressStyle::with_template(
        "{bar:30} {percent}%  {bytes} of {total_bytes}  {bytes_per_sec}  {msg}",
    ) {
        bar.set_style(style);
    }
    let (is_over, woken) = (Mutex::new(false), Condvar::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut over = is_over.lock();
            while !*over {
                update(&bar);
                woken.wait_for(&mut over, Duration::from_millis(200));
            }
        });
        // A guard, so that the bar also ends on a panic. Otherwise the scope would wait for it forever.
        let ending = BarEnd {
            is_over: &is_over,
            woken: &woken,
        };
        let outcome = body(&bar);
        drop(ending);
        bar.finish_and_clear();
        outcome
    })
}

/// Ends the bar's thread when dropped.
struct BarEnd<'a> {
    is_over: &'a Mutex<bool>,
    woken: &'a Condvar,
}

impl Drop for BarEnd<'_> {
    fn drop(&mut self) {
        *self.is_over.lock() = true;
        self.woken.notify_all();
    }
}

/// The approximate number of allocated bytes of a pool, for the progress bar.
pub fn allocated_bytes(pool: &View) -> u64 {
    let topology = pool.inner().store().topology();
    let raw: u64 = topology
        .tree
        .tops()
        .map(|(_, top)| top.config.asize_bytes)
        .fold(0, u64::saturating_add);
    let used = pool.used_bytes().unwrap_or(raw);
    used.min(raw)
}
