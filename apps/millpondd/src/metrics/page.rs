//! Text in Prometheus' format, version 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write;

/// What a figure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Goes up only, until the pool is opened anew.
    Counter,
    /// Goes up and down.
    Gauge,
}

struct Family {
    help: &'static str,
    kind: Kind,
    samples: String,
}

/// A page of figures. All samples of a name stand together, as the format demands, whatever the order in which
/// they came.
#[derive(Default)]
pub struct Page {
    families: BTreeMap<&'static str, Family>,
}

impl Page {
    /// Adds a sample. A name that was there keeps its kind and words.
    pub fn add(
        &mut self,
        (name, kind, help): (&'static str, Kind, &'static str),
        labels: &[(&str, &str)],
        value: u64,
    ) {
        let family = self.families.entry(name).or_insert_with(|| Family {
            help,
            kind,
            samples: String::new(),
        });
        let out = &mut family.samples;
        out.push_str(name);
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
        // Writing to text does not fail.
        let _ = writeln!(out, " {value}");
    }

    /// The text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (name, family) in &self.families {
            let kind = match family.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
            };
            let help = family.help;
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
            out.push_str(&family.samples);
        }
        out
    }
}

/// Names come from disks: a quotation mark or a line end in one must not make a sample of its own.
fn escape(text: &str, out: &mut String) {
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            // Not asked for by the format, but whoever reads lines may take these for ends of lines.
            other if other.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_name_stand_together_and_labels_cannot_break_out() {
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
