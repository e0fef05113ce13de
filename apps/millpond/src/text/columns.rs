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
