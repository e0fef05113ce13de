//! Progress of long operations: a bar on the terminal, lines of text, or lines of JSON.

mod change;
mod steps;

pub use change::show_change;
pub use steps::{Step, show_steps};

use crate::text::{date, number};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millpond_engine::View;
use millpond_env::Env;
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_env::thread::{self, JoinHandle};
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::time::Duration;

/// How progress is shown. All of it goes to standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Not at all.
    Hidden,
    /// A bar on the terminal.
    Bar,
    /// A line every five seconds, the first one after a second.
    Lines,
    /// A line of JSON every second.
    Json,
}

/// What is shown of an operation. Times are since its beginning.
pub trait Report {
    /// How much is done, and how much there is if that is known, for the bar.
    fn position(&self) -> (u64, Option<u64>);
    /// A line of text.
    fn text(&self, elapsed_ns: u64) -> String;
    /// A line of JSON.
    fn value(&self, elapsed_ns: u64) -> Value;
}

/// What has been done so far.
#[derive(Debug, Clone, Default)]
pub struct Done {
    /// Bytes done.
    pub bytes: u64,
    /// All bytes there are, if that is known. It may be too small.
    pub total_bytes: Option<u64>,
    /// What is done with the bytes: `copied`.
    pub verb: &'static str,
    /// Further counts, by name: the names are keys in JSON.
    pub counts: Vec<(&'static str, u64)>,
}

impl Done {
    fn rate(&self, elapsed_ns: u64) -> u64 {
        let rate = u128::from(self.bytes) * 1_000_000_000 / u128::from(elapsed_ns.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    /// The total, unless it turned out to be too small.
    fn total_bytes(&self) -> Option<u64> {
        self.total_bytes
            .filter(|total| *total > 0 && *total >= self.bytes)
    }

    /// Seconds until the end at the present rate.
    fn left_s(&self, elapsed_ns: u64) -> Option<u64> {
        let left = self.total_bytes()? - self.bytes;
        left.checked_div(self.rate(elapsed_ns))
    }
}

impl Report for Done {
    fn position(&self) -> (u64, Option<u64>) {
        (self.bytes, self.total_bytes())
    }

    /// As `zpool status` shows a scan.
    fn text(&self, elapsed_ns: u64) -> String {
        let mut text = number::bytes(self.bytes);
        if let Some(total) = self.total_bytes() {
            text += &format!(" / {}", number::bytes(total));
        }
        let rate = number::bytes(self.rate(elapsed_ns));
        text += &format!(" {} at {rate}/s", self.verb);
        if let Some(total) = self.total_bytes() {
            let per_cent = self.bytes as f64 * 100.0 / total as f64;
            text += &format!(", {per_cent:.2}% done");
        }
        if let Some(left_s) = self.left_s(elapsed_ns) {
            text += &format!(", {} to go", date::duration(left_s));
        }
        for (name, count) in &self.counts {
            // Counts of one thing.
            let name = match (*count, *name) {
                (1, name) => name.strip_suffix('s').unwrap_or(name),
                (_, name) => name,
            };
            text += &format!(", {count} {name}");
        }
        text
    }

    fn value(&self, elapsed_ns: u64) -> Value {
        let mut map = Map::new();
        map.insert("action".into(), self.verb.into());
        map.insert("bytes".into(), self.bytes.into());
        map.insert("total_bytes".into(), json!(self.total_bytes()));
        map.insert("bytes_per_second".into(), self.rate(elapsed_ns).into());
        map.insert("seconds".into(), (elapsed_ns / 1_000_000_000).into());
        map.insert("seconds_left".into(), json!(self.left_s(elapsed_ns)));
        for (name, count) in &self.counts {
            map.insert((*name).into(), (*count).into());
        }
        json!({ "progress": map })
    }
}

/// Shows progress until it is dropped.
pub struct Progress {
    style: Style,
    bar: ProgressBar,
    /// Whether the operation is over.
    over: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Begins to show what `look` returns.
    pub fn start<R: Report>(style: Style, look: impl Fn() -> R + Send + 'static) -> Self {
        Self::start_after(style, 0, look)
    }

    /// Begins to show what `look` returns if the operation lasts longer than `wait_ns`.
    pub fn start_after<R: Report>(
        style: Style,
        wait_ns: u64,
        look: impl Fn() -> R + Send + 'static,
    ) -> Self {
        let bar = match style {
            Style::Bar => bar(&look()),
            _ => ProgressBar::hidden(),
        };
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        let thread = (style != Style::Hidden).then(|| {
            let (bar, over) = (bar.clone(), Arc::clone(&over));
            thread::spawn("progress", move || {
                show(style, &bar, &over, wait_ns, &look);
            })
        });
        Self {
            style,
            bar,
            over,
            // Without a thread nothing is shown.
            thread: thread.and_then(Result::ok),
        }
    }

    /// Whether a person reads it.
    pub fn is_read(&self) -> bool {
        matches!(self.style, Style::Bar | Style::Lines)
    }

    /// Prints something else than progress.
    pub fn suspend(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    /// Ends it. Nothing is shown any more.
    pub fn finish(&mut self) {
        *self.over.0.lock() = true;
        self.over.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is no reason to fail.
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

fn show<R: Report>(
    style: Style,
    bar: &ProgressBar,
    (is_over, woken): &(Mutex<bool>, Condvar),
    wait_ns: u64,
    look: &dyn Fn() -> R,
) {
    let clock = Env::real().clock;
    let begin_ns = clock.monotonic_ns();
    let every_ns = match style {
        Style::Bar => 200_000_000,
        Style::Lines => 5_000_000_000,
        _ => 1_000_000_000,
    };
    let mut next_ns = match style {
        Style::Bar => begin_ns + wait_ns,
        _ => begin_ns + wait_ns.max(1_000_000_000),
    };
    let mut over = is_over.lock();
    while !*over {
        let now_ns = clock.monotonic_ns();
        if now_ns < next_ns {
            woken.wait_for(&mut over, Duration::from_nanos(next_ns - now_ns));
            continue;
        }
        next_ns = now_ns + every_ns;
        drop(over);
        let (done, elapsed_ns) = (look(), now_ns - begin_ns);
        // Standard error may be closed. The work continues then.
        match style {
            Style::Bar => {
                bar.set_position(done.position().0);
                bar.set_message(done.text(elapsed_ns));
            }
            Style::Lines => {
                let _ = writeln!(io::stderr(), "{}", done.text(elapsed_ns));
            }
            _ => {
                let _ = writeln!(io::stderr(), "{}", done.value(elapsed_ns));
            }
        }
        over = is_over.lock();
    }
}

fn bar(done: &impl Report) -> ProgressBar {
    let (length, template) = match done.position().1 {
        Some(total) => (Some(total), "{bar:20} {wide_msg}"),
        None => (None, "{spinner} {elapsed} {wide_msg}"),
    };
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner());
    ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr()).with_style(style)
}

/// The approximate number of allocated bytes of a pool.
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn rate_and_time_to_go_are_those_since_the_beginning() {
        let done = Done {
            bytes: 10 << 20,
            total_bytes: Some(100 << 20),
            verb: "copied",
            counts: vec![("files", 1), ("blocks", 7)],
        };
        assert_eq!(
            done.text(10 * SECOND_NS),
            "10M / 100M copied at 1M/s, 10.00% done, 00:01:30 to go, 1 file, 7 blocks"
        );
        let value = done.value(10 * SECOND_NS);
        assert_eq!(value["progress"]["bytes_per_second"], 1 << 20);
        assert_eq!(value["progress"]["seconds_left"], 90);
        assert_eq!(value["progress"]["files"], 1);
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let mut done = Done {
            bytes: 10 << 20,
            verb: "copied",
            ..Done::default()
        };
        assert_eq!(done.text(10 * SECOND_NS), "10M copied at 1M/s");
        assert_eq!(
            done.value(SECOND_NS)["progress"]["seconds_left"],
            json!(null)
        );
        // Sparse files and compression make a total a guess.
        done.total_bytes = Some(1 << 20);
        assert_eq!(done.text(10 * SECOND_NS), "10M copied at 1M/s");
        done.bytes = 0;
        assert_eq!(done.text(0), "0B / 1M copied at 0B/s, 0.00% done");
    }
}
