//! Columns. Widths are in bytes, as in OpenZFS.

/// Appends `text`, padded with blanks to `width` bytes.
pub fn pad_right(line: &mut String, text: &str, width: usize) {
    line.push_str(text);
    line.extend(std::iter::repeat_n(' ', width.saturating_sub(text.len())));
}

/// Appends `text`, preceded by blanks up to `width` bytes.
pub fn pad_left(line: &mut String, text: &str, width: usize) {
    line.extend(std::iter::repeat_n(' ', width.saturating_sub(text.len())));
    line.push_str(text);
}

/// A line of cells, two blanks apart. The last cell is padded only on its left.
pub fn row(cells: &[String], widths: &[usize], is_right: impl Fn(usize) -> bool) -> String {
    let mut line = String::new();
    for (at, (cell, width)) in cells.iter().zip(widths).enumerate() {
        if at > 0 {
            line.push_str("  ");
        }
        if is_right(at) {
            pad_left(&mut line, cell, *width);
        } else if at + 1 < cells.len() {
            pad_right(&mut line, cell, *width);
        } else {
            line.push_str(cell);
        }
    }
    line
}
