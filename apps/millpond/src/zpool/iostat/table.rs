//! The table of `zpool iostat`: grouped columns, one line per vdev.

use super::super::scripts::Columns;
use super::Args;
use super::stats::VdevStats;
use crate::text::columns::{pad_left, pad_right};
use crate::text::number;
use millpond_control::{IoWaits, Latencies, READ, VdevInfo, WRITE};

/// A title above columns of one width, and the column headings.
struct Group {
    title: &'static str,
    columns: &'static [&'static str],
    width: usize,
}

const READ_WRITE: &[&str] = &["read", "write"];
const WAIT: &[&str] = &["wait"];
const QUEUE: &[&str] = &["pend", "activ"];

const DEFAULT: [(&str, &[&str]); 3] = [
    ("capacity", &["alloc", "free"]),
    ("operations", READ_WRITE),
    ("bandwidth", READ_WRITE),
];
const LATENCIES: [(&str, &[&str]); 7] = [
    ("total_wait", READ_WRITE),
    ("disk_wait", READ_WRITE),
    ("syncq_wait", READ_WRITE),
    ("asyncq_wait", READ_WRITE),
    ("scrub", WAIT),
    ("trim", WAIT),
    ("rebuild", WAIT),
];
const QUEUES: [(&str, &[&str]); 7] = [
    ("syncq_read", QUEUE),
    ("syncq_write", QUEUE),
    ("asyncq_read", QUEUE),
    ("asyncq_write", QUEUE),
    ("scrubq_read", QUEUE),
    ("trimq_write", QUEUE),
    ("rebuildq_write", QUEUE),
];

/// Formats header and lines. `width` applies to the first column.
pub struct Table<'a> {
    ask: &'a Args,
    width: usize,
    groups: Vec<Group>,
    columns: Option<&'a Columns>,
}

impl<'a> Table<'a> {
    pub fn new(ask: &'a Args, width: usize, columns: Option<&'a Columns>) -> Self {
        let mut groups = vec![];
        let mut add = |titles: &[(&'static str, &'static [&'static str])], exact: usize| {
            let width = if ask.is_exact { exact } else { 5 };
            groups.extend(titles.iter().map(|(title, columns)| Group {
                title,
                columns,
                width,
            }));
        };
        add(&DEFAULT, 15);
        if ask.has_latencies {
            add(&LATENCIES, 10);
        }
        if ask.has_queues {
            add(&QUEUES, 6);
        }
        Self {
            ask,
            width,
            groups,
            columns,
        }
    }

    /// Formats the header: two lines of titles and one of dashes.
    pub fn head(&self, text: &mut String, what: &str) {
        let (mut top, mut bottom) = (" ".repeat(self.width), String::new());
        pad_right(&mut bottom, what, self.width);
        for group in &self.groups {
            top += "  ";
            centred(&mut top, group.title, group.columns.len(), group.width);
            for title in group.columns {
                bottom += "  ";
                pad_left(&mut bottom, title, group.width);
            }
        }
        if let Some(columns) = self.columns {
            columns.head(&mut bottom);
        }
        for line in [top, bottom] {
            *text += &line;
            text.push('\n');
        }
        self.line(text);
    }

    pub fn line(&self, text: &mut String) {
        if self.ask.is_script {
            return;
        }
        *text += &"-".repeat(self.width);
        for group in &self.groups {
            for _ in group.columns {
                *text += "  ";
                *text += &"-".repeat(group.width);
            }
        }
        if let Some(columns) = self.columns {
            columns.dashes(text);
        }
        text.push('\n');
    }

    /// Formats the title of a vdev class.
    pub fn title(&self, text: &mut String, title: &str) {
        let columns = self.groups.iter().map(|group| group.columns.len());
        let values = vec!["-".to_owned(); columns.sum()];
        self.put(text, title, 0, &values, None);
    }

    /// Formats a vdev's line: its statistics over this many seconds.
    pub fn row(
        &self,
        text: &mut String,
        vdev: &VdevInfo,
        name: &str,
        depth: usize,
        (stats, seconds): (&VdevStats, f64),
    ) {
        let mut values = self.capacity(vdev);
        let io = &stats.io;
        for count in [io.reads, io.writes, io.read_bytes, io.written_bytes] {
            let rate = match seconds > 0.0 {
                true => count as f64 / seconds,
                false => 0.0,
            };
            values.push(self.ask.number(rate as u64));
        }
        let waits = &stats.waits;
        if self.ask.has_latencies {
            values.extend(means(waits).map(|mean| self.ask.time(mean)));
        }
        if self.ask.has_queues {
            let queues = waits.pending.iter().zip(&waits.active);
            let counts = queues.flat_map(|(pending, active)| [*pending, *active]);
            values.extend(counts.map(|count| self.ask.number(count)));
        }
        let depth = if self.ask.is_script { 0 } else { depth };
        self.put(text, name, depth, &values, Some(vdev));
    }

    /// Space is allocated from top-level vdevs, so only they show it.
    fn capacity(&self, vdev: &VdevInfo) -> Vec<String> {
        let both = match (vdev.total_bytes, self.ask.is_exact) {
            (0, true) => ["0".to_owned(), "0".to_owned()],
            (0, false) => ["-".to_owned(), "-".to_owned()],
            (total, _) => [
                vdev.allocated_bytes,
                total.saturating_sub(vdev.allocated_bytes),
            ]
            .map(|bytes| self.ask.number(bytes)),
        };
        both.to_vec()
    }

    fn put(
        &self,
        text: &mut String,
        name: &str,
        depth: usize,
        values: &[String],
        vdev: Option<&VdevInfo>,
    ) {
        let mut line = " ".repeat(depth);
        if self.ask.is_script {
            line += name;
            for value in values {
                line.push('\t');
                line += value;
            }
        } else {
            pad_right(&mut line, name, self.width.saturating_sub(depth));
            let widths = (self.groups.iter())
                .flat_map(|group| std::iter::repeat_n(group.width, group.columns.len()));
            for (value, width) in values.iter().zip(widths) {
                line += "  ";
                pad_left(&mut line, value, width);
            }
        }
        if let (Some(columns), Some(vdev)) = (self.columns, vdev) {
            columns.row(&mut line, vdev);
        }
        *text += &line;
        text.push('\n');
    }
}

/// Mean latencies in the order of the columns.
fn means(waits: &IoWaits) -> impl Iterator<Item = Option<u64>> + '_ {
    let whole = [&waits.total, &waits.disk].into_iter();
    let whole = whole.flat_map(|both| [&both[READ], &both[WRITE]]);
    whole.chain(&waits.queue).map(Latencies::mean_ns)
}

/// Appends a title centred above `columns` columns of equal width.
pub fn centred(line: &mut String, title: &str, columns: usize, width: usize) {
    let total = columns * width + 2 * columns.saturating_sub(1);
    let lead = (total / columns.max(1)).saturating_sub(title.len() / columns.max(1));
    pad_right(line, &format!("{}{title}", " ".repeat(lead)), total);
}

impl Args {
    /// Formats a number in human-readable or exact form.
    pub fn number(&self, number: u64) -> String {
        match self.is_exact {
            true => number.to_string(),
            false => number::count(number),
        }
    }

    /// Formats a time in nanoseconds; `-` for none.
    pub fn time(&self, ns: Option<u64>) -> String {
        match ns {
            None | Some(0) => "-".to_owned(),
            Some(ns) if self.is_exact => ns.to_string(),
            Some(ns) => number::time(ns),
        }
    }
}
