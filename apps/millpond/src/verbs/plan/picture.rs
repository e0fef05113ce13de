//! Pictures of where the bytes of the disks go.

use crate::text::number;
use millpond_plan::Plan;
use std::fmt::Write;

/// Letters of a bar in the terminal.
const BAR_WIDTH: usize = 60;

/// What a part of a bar is, its letter in the terminal and its color in the picture.
const PARTS: [(&str, char, &str); 4] = [
    ("usable", '█', "#2a78b5"),
    ("copies and parity", '▒', "#e2a14a"),
    ("kept back by the pool", '░', "#b0b0b0"),
    ("spares", '·', "#dddddd"),
];

/// The shares of a layout's bytes, in the order of [`PARTS`].
fn shares(plan: &Plan) -> [f64; 4] {
    let space = &plan.space;
    let all = space.disk_bytes.max(1) as f64;
    let [usable, slop, spares] =
        [space.usable_bytes, space.slop_bytes, space.spare_bytes].map(|bytes| bytes as f64 / all);
    let copies = (1.0 - usable - slop - spares).max(0.0);
    [usable, copies, slop, spares]
}

/// A bar for each layout, with names of `width` letters before it, and the key.
pub fn bars(plans: &[Plan], width: usize) -> Vec<String> {
    let mut lines = vec![];
    for plan in plans {
        let mut bar = String::new();
        let (mut sum, mut drawn) = (0.0, 0);
        for (share, (_, letter, _)) in shares(plan).into_iter().zip(PARTS) {
            sum += share;
            let until = ((sum * BAR_WIDTH as f64).round() as usize).min(BAR_WIDTH);
            bar.extend(std::iter::repeat_n(letter, until.saturating_sub(drawn)));
            drawn = drawn.max(until);
        }
        lines.push(format!("{:width$}  {bar}", plan.layout.to_string()));
    }
    let key = PARTS.map(|(name, letter, _)| format!("{letter} {name}"));
    lines.push(format!("{:width$}  {}", "", key.join("  ")));
    lines
}

/// The same as an SVG image.
pub fn svg(plans: &[Plan]) -> String {
    const ROW: usize = 34;
    const LEFT: f64 = 210.0;
    const BAR: f64 = 560.0;
    const WIDTH: usize = 960;
    let height = (plans.len() + 2) * ROW;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"14\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (row, plan) in plans.iter().enumerate() {
        let top = row * ROW + 10;
        let mut left = LEFT;
        let _ = writeln!(
            text,
            "<text x=\"10\" y=\"{}\">{}</text>",
            top + 16,
            plan.layout
        );
        for (share, (_, _, color)) in shares(plan).into_iter().zip(PARTS) {
            let width = share * BAR;
            let _ = writeln!(
                text,
                "<rect x=\"{left:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"22\" fill=\"{color}\"/>"
            );
            left += width;
        }
        let usable = number::bytes(plan.space.usable_bytes);
        let loss = super::percent(plan.risk.yearly_damage);
        let _ = writeln!(
            text,
            "<text x=\"{}\" y=\"{}\">{usable}, data lost: {loss} a year</text>",
            LEFT + BAR + 8.0,
            top + 16
        );
    }
    let (mut left, top) = (LEFT, plans.len() * ROW + 24);
    for (name, _, color) in PARTS {
        let _ = writeln!(
            text,
            "<rect x=\"{left}\" y=\"{top}\" width=\"14\" height=\"14\" fill=\"{color}\"/>\
             <text x=\"{}\" y=\"{}\">{name}</text>",
            left + 20.0,
            top + 12
        );
        left += 40.0 + 8.0 * name.len() as f64;
    }
    text.push_str("</svg>\n");
    text
}
