//! Prometheus text format, version 0.0.4.

use millpond_control::{Latencies, bucket_end_ns};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only increases until the pool is opened again.
    Counter,
    /// May increase and decrease.
    Gauge,
    /// A histogram of durations in seconds: cumulative buckets, count and sum.
    Histogram,
}

/// Buckets of a histogram, with bounds from 2^13 ns (8 us) to 2^36 ns (69 s). Shorter durations count in the
/// first bucket.
const BUCKETS: std::ops::RangeInclusive<u32> = 12..=35;

struct Family {
    help: &'static str,
    kind: Kind,
    samples: String,
}

/// A page of metrics. All samples of a metric are grouped, as the format requires, regardless of the order in
/// which they are added.
#[derive(Default)]
pub struct Page {
    families: BTreeMap<&'static str, Family>,
}

impl Page {
    /// Adds a sample. The first sample of a metric determines its type and help text.
    pub fn add(
        &mut self,
        (name, kind, help): (&'static str, Kind, &'static str),
        labels: &[(&str, &str)],
        value: u64,
    ) {
        let out = self.samples((name, kind, help));
        sample(out, name, "", labels, value);
    }

    /// Adds the samples of a latency histogram, with bounds in seconds.
    pub fn add_times(
        &mut self,
        (name, help): (&'static str, &'static str),
        labels: &[(&str, &str)],
        times: &Latencies,
    ) {
        let out = self.samples((name, Kind::Histogram, help));
        let mut counts = times.counts.iter();
        let below = counts.by_ref().take(*BUCKETS.start() as usize);
        let mut seen: u64 = below.fold(0, |sum, n| sum.saturating_add(*n));
        let bounded = |out: &mut String, bound: &str, count| {
            let mut labels = labels.to_vec();
            labels.push(("le", bound));
            sample(out, name, "_bucket", &labels, count);
        };
        for bucket in BUCKETS {
            seen = seen.saturating_add(counts.next().copied().unwrap_or(0));
            bounded(out, &seconds(bucket_end_ns(bucket)), seen);
        }
        let all = times.count();
        bounded(out, "+Inf", all);
        sample(out, name, "_sum", labels, seconds(times.sum_ns));
        sample(out, name, "_count", labels, all);
    }

    fn samples(&mut self, (name, kind, help): (&'static str, Kind, &'static str)) -> &mut String {
        let family = self.families.entry(name).or_insert_with(|| Family {
            help,
            kind,
            samples: String::new(),
        });
        &mut family.samples
    }

    /// The text of the page.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (name, family) in &self.families {
            let kind = match family.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            let help = family.help;
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
            out.push_str(&family.samples);
        }
        out
    }
}

fn sample(
    out: &mut String,
    name: &str,
    suffix: &str,
    labels: &[(&str, &str)],
    value: impl std::fmt::Display,
) {
    out.push_str(name);
    out.push_str(suffix);
    for (at, (label, text)) in labels.iter().enumerate() {
        out.push(if at == 0 { '{' } else { ',' });
        out.push_str(label);
        out.push_str("=\"");
        escape(text, out);
        out.push('"');
    }
    if !labels.is_empty() {
        out.push('}');
    }
    // Writing to a string cannot fail.
    let _ = writeln!(out, " {value}");
}

/// Formats nanoseconds as seconds, without rounding.
fn seconds(ns: u64) -> String {
    let (whole, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
    match rest {
        0 => whole.to_string(),
        rest => format!("{whole}.{rest:09}"),
    }
}

/// Escapes a label value. Names come from disks, so a quotation mark or newline in a name must not forge a
/// sample.
fn escape(text: &str, out: &mut String) {
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            // The format does not require this, but line-based readers may treat these characters as line
            // ends.
            other if other.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_up_to_each_bound_in_seconds() {
        let mut page = Page::default();
        let mut counts = vec![0; 37];
        // One value below the first bound, one at it, one at the last bound, one above it.
        (counts[3], counts[12], counts[35], counts[36]) = (1, 2, 4, 8);
        let times = Latencies {
            counts,
            sum_ns: 61_000_000_005,
        };
        page.add_times(("a_seconds", "Times."), &[("pool", "t")], &times);
        let text = page.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "# TYPE a_seconds histogram");
        assert_eq!(
            lines[2],
            "a_seconds_bucket{pool=\"t\",le=\"0.000008191\"} 3"
        );
        assert_eq!(
            lines[25],
            "a_seconds_bucket{pool=\"t\",le=\"68.719476735\"} 7"
        );
        assert_eq!(lines[26], "a_seconds_bucket{pool=\"t\",le=\"+Inf\"} 15");
        assert_eq!(lines[27], "a_seconds_sum{pool=\"t\"} 61.000000005");
        assert_eq!(lines[28], "a_seconds_count{pool=\"t\"} 15");
        assert_eq!(lines.len(), 29);
    }

    #[test]
    fn samples_are_grouped_by_name_and_labels_are_escaped() {
        let mut page = Page::default();
        let reads = ("a_reads_total", Kind::Counter, "Reads.");
        page.add(reads, &[("device", "x\"} 9\n\\y\r")], 1);
        page.add(("b_bytes", Kind::Gauge, "Bytes."), &[], 5);
        page.add(reads, &[("device", "z"), ("pool", "t")], 2);
        let lines = "# HELP a_reads_total Reads.\n# TYPE a_reads_total counter\n\
            a_reads_total{device=\"x\\\"} 9\\n\\\\y\u{fffd}\"} 1\n\
            a_reads_total{device=\"z\",pool=\"t\"} 2\n\
            # HELP b_bytes Bytes.\n# TYPE b_bytes gauge\nb_bytes 5\n";
        assert_eq!(page.text(), lines);
    }
}
