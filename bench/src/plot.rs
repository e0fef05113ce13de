//! Draws ratios as SVG: bars that start at 1 and extend to the right or left on a logarithmic scale.
//!
//! Text is kept as text, so that it can be searched and copied. Colours follow the reader's preference for
//! light or dark.

use std::fmt::Write;

/// A ratio with the minimum and maximum of its rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// The median.
    pub median: f64,
    /// The minimum.
    pub least: f64,
    /// The maximum.
    pub most: f64,
}

/// A bar: the ratio to one rival.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Index of the chart's series.
    pub series: usize,
    /// The ratio. A ratio that is not positive has no logarithm and is not drawn.
    pub ratio: Ratio,
    /// The target of the ratio.
    pub aim: Option<f64>,
}

/// The bars of one benchmark.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The benchmark's name.
    pub name: String,
    /// Its bars, from top to bottom.
    pub bars: Vec<Bar>,
}

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// The title.
    pub title: String,
    /// What the ratios mean.
    pub subtitle: String,
    /// The rivals.
    pub series: Vec<String>,
    /// The benchmarks, from top to bottom.
    pub rows: Vec<Row>,
}

const WIDTH: f64 = 860.0;
const LEFT: f64 = 250.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 96.0;
const BAR: f64 = 15.0;
const GAP: f64 = 12.0;
const BOTTOM: f64 = 40.0;

/// Colours of the series, for light and dark; they also differ in lightness.
///
/// This is the maximum number of series.
const COLOURS: [(&str, &str); 4] = [
    ("#1f6fc4", "#6aaef5"),
    ("#c8590a", "#ffa55c"),
    ("#2d7d46", "#79cf94"),
    ("#7d4fb8", "#c6a3f2"),
];

impl Chart {
    /// Draws the chart as a complete SVG document.
    #[must_use]
    pub fn svg(&self) -> String {
        let bars = self.rows.iter().map(|row| row.bars.len()).sum::<usize>();
        let height = TOP + BAR * bars as f64 + GAP * self.rows.len() as f64 + BOTTOM;
        let scale = Scale::of(self);
        let mut out = self.head(height);
        self.axis(&mut out, &scale, height - BOTTOM);
        let mut y = TOP;
        for row in &self.rows {
            let middle = y + BAR * row.bars.len() as f64 / 2.0 + 4.0;
            text(&mut out, LEFT - 12.0, middle, "name", &row.name);
            for bar in row.bars.iter().filter(|bar| bar.ratio.least > 0.0) {
                self.bar(&mut out, &scale, &row.name, bar, y);
                y += BAR;
            }
            y += GAP;
        }
        out.push_str("</svg>\n");
        out
    }

    fn head(&self, height: f64) -> String {
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
             font-family=\"system-ui, sans-serif\" font-size=\"12\">\n<title>{}</title>\n<desc>{}</desc>\n<style>\n",
            escaped(&self.title),
            escaped(&self.subtitle),
        );
        let (mut light, mut dark) = (String::new(), String::new());
        for (number, (on_light, on_dark)) in COLOURS.iter().enumerate() {
            let _ = write!(light, " .s{number} {{ fill: {on_light} }}");
            let _ = write!(dark, " .s{number} {{ fill: {on_dark} }}");
        }
        let _ = write!(
            out,
            ".page {{ fill: #ffffff }} text {{ fill: #24292f }} .soft {{ fill: #59636e }} .grid {{ stroke: #d8dee4 }} \
             .one, .range {{ stroke: #24292f }} .aim {{ fill: #ffffff; stroke: #24292f; stroke-width: 1.5 }}{light}\n\
             .name {{ text-anchor: end }} .tick {{ text-anchor: middle }} .title {{ font-size: 16px; font-weight: 600 }}\n\
             @media (prefers-color-scheme: dark) {{ .page {{ fill: #0d1117 }} text {{ fill: #e6edf3 }} .soft {{ fill: #9aa4ae }} .grid {{ stroke: #30363d }} \
             .one, .range {{ stroke: #e6edf3 }} .aim {{ fill: #0d1117; stroke: #e6edf3 }}{dark} }}\n</style>\n\
             <rect class=\"page\" width=\"100%\" height=\"100%\"/>\n"
        );
        text(&mut out, 16.0, 28.0, "title", &self.title);
        text(&mut out, 16.0, 48.0, "soft", &self.subtitle);
        // The legend, only for items that are drawn.
        let mut x = 16.0;
        for (number, name) in self.series.iter().enumerate() {
            let _ = writeln!(
                out,
                "<rect class=\"s{number}\" x=\"{x:.1}\" y=\"60\" width=\"12\" height=\"12\"/>"
            );
            text(&mut out, x + 18.0, 70.0, "", name);
            x += 40.0 + 7.0 * name.chars().count() as f64;
        }
        if self.bars().any(|bar| bar.aim.is_some()) {
            aim(&mut out, x + 6.0, 66.0);
            text(&mut out, x + 18.0, 70.0, "", "aim");
        }
        out
    }

    fn axis(&self, out: &mut String, scale: &Scale, bottom: f64) {
        for tick in TICKS.into_iter().filter(|tick| scale.holds(*tick)) {
            let x = scale.x(tick);
            let class = if tick == 1.0 { "one" } else { "grid" };
            let _ = writeln!(
                out,
                "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{bottom:.1}\"/>",
                TOP - 6.0
            );
            text(out, x, bottom + 16.0, "tick soft", &tick.to_string());
        }
    }

    fn bar(&self, out: &mut String, scale: &Scale, row: &str, bar: &Bar, y: f64) {
        let Ratio {
            median,
            least,
            most,
        } = bar.ratio;
        let (one, end) = (scale.x(1.0), scale.x(median));
        let (from, to) = (scale.x(least), scale.x(most));
        let rival = self.series.get(bar.series).map_or("", String::as_str);
        let middle = y + BAR / 2.0;
        let _ = writeln!(
            out,
            "<g class=\"bar\"><title>{}</title><rect class=\"s{}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>\
             <path class=\"range\" d=\"M{from:.1} {middle:.1}H{to:.1}M{from:.1} {:.1}v6M{to:.1} {:.1}v6\"/></g>",
            escaped(&format!("{row}, {rival}: {median} ({least} to {most})")),
            bar.series,
            one.min(end),
            y + 1.0,
            // A ratio of exactly 1 is drawn as a thin bar.
            (one - end).abs().max(1.0),
            BAR - 2.0,
            middle - 3.0,
            middle - 3.0,
        );
        if let Some(wanted) = bar.aim {
            aim(out, scale.x(wanted), middle);
        }
        let label = match least < most {
            true => format!("{median:.2} ({least:.2}–{most:.2})"),
            false => format!("{median:.1}"),
        };
        let x = WIDTH - RIGHT + 12.0;
        text(out, x, middle + 4.0, "", &label);
    }

    fn bars(&self) -> impl Iterator<Item = &Bar> {
        self.rows.iter().flat_map(|row| &row.bars)
    }
}

/// Maps ratios to positions.
struct Scale {
    least: f64,
    most: f64,
}

impl Scale {
    /// A scale that covers every bar with its range and target, and 1.
    fn of(chart: &Chart) -> Self {
        let (mut least, mut most) = (0.5_f64, 2.0_f64);
        for bar in chart.bars().filter(|bar| bar.ratio.least > 0.0) {
            for value in [Some(bar.ratio.least), Some(bar.ratio.most), bar.aim] {
                let Some(value) = value else { continue };
                least = least.min(value / 1.1);
                most = most.max(value * 1.1);
            }
        }
        Self { least, most }
    }
    fn x(&self, ratio: f64) -> f64 {
        let share = (ratio / self.least).ln() / (self.most / self.least).ln();
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }
    fn holds(&self, ratio: f64) -> bool {
        (self.least..=self.most).contains(&ratio)
    }
}

const TICKS: [f64; 14] = [
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0,
];

fn aim(out: &mut String, x: f64, y: f64) {
    let _ = writeln!(
        out,
        "<path class=\"aim\" d=\"M{x:.1} {:.1}l5 5l-5 5l-5-5z\"/>",
        y - 5.0
    );
}

fn text(out: &mut String, x: f64, y: f64, class: &str, content: &str) {
    let content = escaped(content);
    let _ = writeln!(
        out,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{content}</text>"
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let bar = |series, median: f64, aim| Bar {
            series,
            ratio: Ratio {
                median,
                least: median / 2.0,
                most: median * 2.0,
            },
            aim,
        };
        Chart {
            title: "Less < & more".into(),
            subtitle: "above 1 is faster".into(),
            series: vec!["a & b".into(), "c".into()],
            rows: vec![
                Row {
                    name: "read <4k>".into(),
                    bars: vec![bar(0, 0.25, Some(2.0)), bar(1, 8.0, None)],
                },
                Row {
                    name: "write".into(),
                    bars: vec![bar(0, 1.0, Some(5.0))],
                },
            ],
        }
    }

    /// Checks that elements are properly nested, attributes quoted and special characters escaped.
    ///
    /// Returns the names of all elements.
    fn elements(xml: &str) -> Vec<String> {
        let (mut open, mut names): (Vec<&str>, Vec<String>) = (vec![], vec![]);
        let mut rest = xml;
        while let Some((text, tail)) = rest.split_once('<') {
            let stray = text.split('&').skip(1);
            for entity in stray {
                assert!(
                    ["amp;", "lt;", "gt;"]
                        .iter()
                        .any(|known| entity.starts_with(known)),
                    "{entity}"
                );
            }
            let (tag, tail) = tail.split_once('>').expect("a tag that ends");
            rest = tail;
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name));
                continue;
            }
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            let name = tag
                .trim_end_matches('/')
                .split_whitespace()
                .next()
                .expect("a name");
            names.push(name.to_owned());
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
        assert!(open.is_empty(), "{open:?} stays open");
        assert!(rest.trim().is_empty());
        names
    }

    #[test]
    fn a_plot_is_well_formed_and_has_a_bar_per_value() {
        let svg = chart().svg();
        let names = elements(&svg);
        assert_eq!(names.iter().filter(|name| *name == "g").count(), 3);
        assert_eq!(svg.matches("<g class=\"bar\">").count(), 3);
        // Two targets, and one in the legend.
        assert_eq!(svg.matches("class=\"aim\"").count(), 3);
        for text_shown in [
            "Less &lt; &amp; more",
            "read &lt;4k&gt;",
            "write",
            "a &amp; b",
            "8.00 (4.00–16.00)",
        ] {
            assert!(
                svg.contains(&format!(">{text_shown}</text>")),
                "{text_shown}"
            );
        }
    }

    #[test]
    fn without_aims_the_legend_has_none() {
        let mut chart = chart();
        for row in &mut chart.rows {
            row.bars.iter_mut().for_each(|bar| bar.aim = None);
        }
        assert!(!chart.svg().contains("class=\"aim\" d"));
        assert!(!chart.svg().contains(">aim<"));
    }

    #[test]
    fn equal_factors_have_equal_lengths_in_a_plot() {
        let scale = Scale::of(&chart());
        let [half, one, two, four] = [0.5, 1.0, 2.0, 4.0].map(|ratio| scale.x(ratio));
        assert!(half < one && one < two);
        assert!(((two - one) - (four - two)).abs() < 1e-9);
        assert!(((one - half) - (two - one)).abs() < 1e-9);
        for bar in chart().bars() {
            let ends = [bar.ratio.least, bar.ratio.most, bar.aim.unwrap_or(1.0)];
            assert!(ends.iter().all(|end| scale.holds(*end)));
            assert!(
                ends.iter()
                    .all(|end| (LEFT..=WIDTH - RIGHT).contains(&scale.x(*end)))
            );
        }
    }

    #[test]
    fn values_without_logarithm_are_omitted() {
        let mut chart = chart();
        chart.rows[1].bars[0].ratio.least = 0.0;
        let svg = chart.svg();
        elements(&svg);
        assert_eq!(svg.matches("<g class=\"bar\">").count(), 2);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }
}
