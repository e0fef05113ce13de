//! The histograms of `zpool iostat -w` and `-r`: one block per vdev.

use super::stats::VdevStats;
use super::table::centred;
use super::{Args, Histograms};
use crate::text::columns::{pad_left, pad_right};
use crate::text::number;
use millpond_control::{READ, WRITE, bucket_end_ns};

const WIDTH: usize = 5;
const WAIT_BUCKETS: u32 = 37;
/// From 512 bytes to 16 MiB. Smaller and larger sizes count in the first and last bucket.
const SIZE_BUCKETS: std::ops::RangeInclusive<u32> = 9..=24;

/// The layout of one kind of histogram.
struct Shape {
    corner: &'static str,
    /// Titles, each with the number of columns it spans.
    titles: &'static [(&'static str, usize)],
    columns: &'static [&'static str],
}

const WAITS: Shape = Shape {
    corner: "latency",
    titles: &[
        ("total_wait", 2),
        ("disk_wait", 2),
        ("syncq_wait", 2),
        ("asyncq_wait", 2),
    ],
    columns: &[
        "read", "write", "read", "write", "read", "write", "read", "write", "scrub", "trim",
        "rebuild",
    ],
};

const SIZES: Shape = Shape {
    corner: "req_size",
    titles: &[
        ("sync_read", 2),
        ("sync_write", 2),
        ("async_read", 2),
        ("async_write", 2),
        ("scrub", 2),
        ("trim", 2),
        ("rebuild", 2),
    ],
    columns: &[
        "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind",
        "agg",
    ],
};

/// Formats a vdev's block. `width` applies to the first column.
pub fn block(
    text: &mut String,
    ask: &Args,
    kind: Histograms,
    (name, width): (&str, usize),
    stats: &VdevStats,
) {
    let shape = match kind {
        Histograms::Waits => &WAITS,
        Histograms::Sizes => &SIZES,
    };
    text.push('\n');
    if ask.is_script {
        *text += name;
        text.push('\n');
    } else {
        head(text, shape, name, width);
    }
    let columns = counts(kind, stats);
    let rows = match kind {
        Histograms::Waits => 0..WAIT_BUCKETS,
        Histograms::Sizes => *SIZE_BUCKETS.start()..*SIZE_BUCKETS.end() + 1,
    };
    for bucket in rows.clone() {
        let label = match (kind, ask.is_script) {
            (Histograms::Waits, true) => bucket_end_ns(bucket).to_string(),
            (Histograms::Waits, false) => number::time(bucket_end_ns(bucket)),
            (Histograms::Sizes, true) => (1u64 << bucket).to_string(),
            (Histograms::Sizes, false) => number::count(1 << bucket),
        };
        let values = columns.iter().map(|counts| {
            let count = counts.get(bucket as usize).copied().unwrap_or(0);
            // The first bucket includes all smaller values.
            let below = counts.iter().take(bucket as usize);
            let smaller: u64 = match bucket == rows.start {
                true => below.fold(0, |sum, n| sum.saturating_add(*n)),
                false => 0,
            };
            ask.number(count.saturating_add(smaller))
        });
        if ask.is_script {
            *text += &label;
            values.for_each(|value| {
                text.push('\t');
                *text += &value;
            });
        } else {
            pad_right(text, &label, width);
            values.for_each(|value| {
                *text += "  ";
                pad_left(text, &value, WIDTH);
            });
        }
        text.push('\n');
    }
    if !ask.is_script {
        *text += &"-".repeat(width + shape.columns.len() * (WIDTH + 2));
        text.push('\n');
    }
}

fn head(text: &mut String, shape: &Shape, name: &str, width: usize) {
    pad_right(text, name, width);
    for (title, columns) in shape.titles {
        *text += "  ";
        centred(text, title, *columns, WIDTH);
    }
    text.push('\n');
    pad_right(text, shape.corner, width);
    for title in shape.columns {
        *text += "  ";
        pad_left(text, title, WIDTH);
    }
    text.push('\n');
    *text += &"-".repeat(width);
    for _ in shape.columns {
        *text += "  ";
        *text += &"-".repeat(WIDTH);
    }
    text.push('\n');
}

/// The counts of each column.
fn counts(kind: Histograms, stats: &VdevStats) -> Vec<&[u64]> {
    let waits = &stats.waits;
    match kind {
        Histograms::Waits => {
            let whole = [&waits.total, &waits.disk].into_iter();
            let whole = whole.flat_map(|both| [&both[READ], &both[WRITE]]);
            let all = whole.chain(&waits.queue);
            all.map(|latencies| latencies.counts.as_slice()).collect()
        }
        Histograms::Sizes => {
            let pairs = waits.asked_sizes.iter().zip(&waits.joined_sizes);
            pairs
                .flat_map(|(asked, joined)| [asked.as_slice(), joined.as_slice()])
                .collect()
        }
    }
}
