//! Converts the tables of a Markdown page to charts.

use crate::aims::aim;
use millpond_bench::plot::{Bar, Chart, Ratio, Row};

/// A chart, its section, and its file name.
#[derive(Debug, PartialEq)]
pub struct Plot {
    pub section: String,
    pub file: String,
    pub chart: Chart,
}

/// The charts of all sections that have ratios, in order.
pub fn plots(page: &str) -> Vec<Plot> {
    sections(page)
        .filter_map(|(section, lines)| {
            let chart = match section {
                "Parity" => parity(&lines),
                _ => ratios(section, &lines),
            }?;
            let file = format!("{}.svg", section.to_lowercase().replace(' ', "-"));
            let section = section.to_owned();
            Some(Plot {
                section,
                file,
                chart,
            })
        })
        .collect()
}

/// Inserts a link to the plot above the first table of its section, unless the page has one.
pub fn link(page: &str, plot: &Plot, folder: &str) -> String {
    let place = format!("{folder}/{}", plot.file);
    let (mut out, mut is_here, mut is_done) = (String::new(), false, page.contains(&place));
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            is_here = heading == plot.section;
        }
        if is_here && !is_done && line.starts_with('|') {
            out.push_str(&format!("![{}]({place})\n\n", plot.chart.title));
            is_done = true;
        }
        out.push_str(line);
        out.push('\n');
    }
    out
}

fn sections(page: &str) -> impl Iterator<Item = (&str, Vec<&str>)> {
    let parts = page.split("\n## ").skip(1);
    parts.map(|part| {
        let mut lines = part.lines();
        (lines.next().unwrap_or_default(), lines.collect())
    })
}

/// The cells of the first table: its header, and the rows below the line of dashes.
fn table<'a>(lines: &[&'a str]) -> Option<(Vec<&'a str>, Vec<Vec<&'a str>>)> {
    let cells = |line: &'a str| -> Vec<&'a str> {
        let line = line.trim().trim_start_matches('|').trim_end_matches('|');
        line.split('|').map(str::trim).collect()
    };
    let first = lines.iter().position(|line| line.starts_with('|'))?;
    let rows = lines[first..]
        .iter()
        .take_while(|line| line.starts_with('|'));
    let mut rows = rows.map(|line| cells(line));
    let head = rows.next()?;
    Some((head, rows.skip(1).collect()))
}

/// Parses `**1.41 (1.32–1.47)**`.
fn ratio(cell: &str) -> Option<Ratio> {
    let inner = cell.strip_prefix("**")?.strip_suffix("**")?;
    let (median, range) = inner.strip_suffix(')')?.split_once(" (")?;
    let (least, most) = range.split_once('–')?;
    Some(Ratio {
        median: median.parse().ok()?,
        least: least.parse().ok()?,
        most: most.parse().ok()?,
    })
}

/// Columns of ratios become series; rows without numbers are left out.
fn ratios(section: &str, lines: &[&str]) -> Option<Chart> {
    let (head, rows) = table(lines)?;
    let is_ratios = |column: &usize| {
        let mut cells = rows.iter().filter_map(|row| row.get(*column));
        cells.any(|cell| ratio(cell).is_some())
    };
    // The speed of the devices themselves is a limit, not a rival.
    let columns: Vec<usize> = (0..head.len())
        .filter(is_ratios)
        .filter(|column| !head[*column].starts_with("of "))
        .collect();
    let rival = head.iter().position(|name| *name == "rival");
    let charted = rows.iter().filter_map(|row| {
        let bars: Vec<Bar> = (columns.iter().enumerate())
            .filter_map(|(series, column)| {
                let ratio = ratio(row.get(*column)?)?;
                let aim = aim(section, head[*column], row[0]);
                Some(Bar { series, ratio, aim })
            })
            .collect();
        let name = row[0].trim_matches('`');
        // Ratios of latencies have the same direction as all others.
        let name = name.strip_suffix(" (less is better)").unwrap_or(name);
        let name = match rival.and_then(|column| row.get(column)) {
            Some(rival) => format!("{name} ({rival})"),
            None => name.to_owned(),
        };
        (!bars.is_empty()).then_some(Row { name, bars })
    });
    let rows: Vec<Row> = charted.collect();
    let series = columns.iter().map(|column| match head[*column] {
        "ratio" => "over the program in brackets".to_owned(),
        name => name.to_owned(),
    });
    let series: Vec<String> = series.collect();
    (!rows.is_empty()).then_some(Chart {
        title: format!("{section}: Millpond beside others"),
        subtitle: "How many times as fast, median of rounds (least to most); right of 1 Millpond is faster".into(),
        series,
        rows,
    })
}

/// Compared with the fastest implementation of OpenZFS: the smallest ratio of each row (`6.6 (12.0×)`).
fn parity(lines: &[&str]) -> Option<Chart> {
    let (head, rows) = table(lines)?;
    let charted = rows.iter().filter_map(|row| {
        let found = row.iter().zip(&head).skip(2).filter_map(|(cell, head)| {
            let ratio = cell.strip_suffix("×)")?.split_once('(')?.1;
            Some((ratio.parse::<f64>().ok()?, *head))
        });
        let (median, name) = found.min_by(|a, b| a.0.total_cmp(&b.0))?;
        let ratio = Ratio {
            median,
            least: median,
            most: median,
        };
        let bar = Bar {
            series: 0,
            ratio,
            aim: None,
        };
        let name = format!("{} ({name})", row[0].trim_matches('`'));
        Some(Row {
            name,
            bars: vec![bar],
        })
    });
    let rows: Vec<Row> = charted.collect();
    (!rows.is_empty()).then_some(Chart {
        title: "Parity: Millpond beside OpenZFS's fastest implementation of each task".into(),
        subtitle: "How many times as fast; right of 1 Millpond is faster".into(),
        series: vec!["over raidz_test".into()],
        rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Benchmarks\n\ntext\n\n## Mounted\n\nabout\n\n| what | Millpond | over zfs-fuse | over Btrfs | of the devices |\n|---|---|---|---|---|\n\
        | stream write | 634 (627–657) MB/s | **1.41 (1.32–1.47)** | **1.00 (0.92–1.09)** | **0.25 (0.23–0.32)** |\n\
        | files of 4k: stat | 5 /s | **1.42 (1.31–1.72)** | - | - |\n\
        | fsync beside a stream: p99 (less is better) | 5 ms | **3.00 (2.00–4.00)** | - | - |\n| nothing | - | - | - | - |\n\nmore\n\n| other | table |\n|---|---|\n| a | **9.00 (8.00–9.00)** |\n\
        ## Parity\n\n| what | Millpond | original | sse2 |\n|---|---|---|---|\n| `gen_p` | 80.3 (79.7–80.7) | 6.6 (12.0×) | 32.2 (2.5×) |\n\n## How\n\n| a | b |\n|---|---|\n| c | d |\n";

    #[test]
    fn columns_of_ratios_become_series_with_their_aims() {
        let plots = plots(PAGE);
        let files: Vec<&str> = plots.iter().map(|plot| plot.file.as_str()).collect();
        assert_eq!(files, ["mounted.svg", "parity.svg"]);
        let chart = &plots[0].chart;
        assert_eq!(chart.series, ["over zfs-fuse", "over Btrfs"]);
        let rows: Vec<&str> = chart.rows.iter().map(|row| row.name.as_str()).collect();
        let latency = "fsync beside a stream: p99";
        assert_eq!(rows, ["stream write", "files of 4k: stat", latency]);
        assert_eq!(chart.rows[2].bars[0].aim, None);
        let ratio = Ratio {
            median: 1.41,
            least: 1.32,
            most: 1.47,
        };
        let bar = Bar {
            series: 0,
            ratio,
            aim: Some(5.0),
        };
        assert_eq!(chart.rows[0].bars[0], bar);
        assert_eq!(chart.rows[0].bars.len(), 2);
        assert_eq!(chart.rows[1].bars.len(), 1);
    }

    #[test]
    fn parity_is_compared_with_the_fastest() {
        let plots = plots(PAGE);
        let rows = &plots[1].chart.rows;
        assert_eq!(rows[0].name, "gen_p (sse2)");
        assert_eq!(rows[0].bars[0].ratio.median, 2.5);
    }

    #[test]
    fn a_link_is_put_above_the_table_once() {
        let plots = plots(PAGE);
        let once = plots.iter().fold(PAGE.to_owned(), |page, plot| {
            link(&page, plot, "docs/plots")
        });
        let expected =
            "about\n\n![Mounted: Millpond beside others](docs/plots/mounted.svg)\n\n| what |";
        assert!(once.contains(expected), "{once}");
        assert_eq!(once.matches("![").count(), 2);
        let twice = plots
            .iter()
            .fold(once.clone(), |page, plot| link(&page, plot, "docs/plots"));
        assert_eq!(twice, once);
        // Nothing else has changed.
        let without: String = once
            .lines()
            .filter(|line| !line.starts_with("!["))
            .collect();
        assert_eq!(without, PAGE.lines().collect::<String>());
    }

    #[test]
    fn the_benchmark_page_has_exactly_its_own_plots() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let page = std::fs::read_to_string(root.join("BENCHMARKS.md")).unwrap();
        let plots = plots(&page);
        assert!(plots.len() >= 3, "{} plots", plots.len());
        for plot in plots {
            assert!(
                page.contains(&format!("docs/plots/{}", plot.file)),
                "{}",
                plot.file
            );
            let drawn = std::fs::read_to_string(root.join("docs/plots").join(&plot.file)).unwrap();
            assert!(
                drawn == plot.chart.svg(),
                "{}: `make bench-plots` draws it anew",
                plot.file
            );
        }
    }
}
