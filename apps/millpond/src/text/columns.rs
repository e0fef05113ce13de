//! Columns. Widths are in bytes, as the programs that are imitated count them.

/// Appends `text` and as many blanks as bring it to `width` bytes.
pub fn pad_right(line: &mut String, text: &str, width: usize) {
    line.push_str(text);
    line.extend(std::iter::repeat_n(' ', width.saturating_sub(text.len())));
}

/// Appends as many blanks as bring `text` to `width` bytes, and `text`.
pub fn pad_left(line: &mut String, text: &str, width: usize) {
    line.extend(std::iter::repeat_n(' ', width.saturating_sub(text.len())));
    line.push_str(text);
}
