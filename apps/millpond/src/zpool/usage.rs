//! Usage texts of `zpool`.

use crate::usage::synopsis;
use millpond_control::properties::table::POOL_PROPERTIES;
use std::fmt::Write;

/// The usage of all commands.
pub const LISTING: &str = include_str!("usage.txt");

/// The usage of one command. Commands that take properties list them.
pub fn of(command: &str) -> String {
    let mut text = format!("usage:\n{}", synopsis(LISTING, command));
    if ["get", "list", "set"].contains(&command) {
        properties(&mut text);
    }
    text
}

fn properties(text: &mut String) {
    text.push_str("\nthe following properties are supported:\n");
    text.push_str("\n\tPROPERTY             EDIT   VALUES\n\n");
    let mut rows: Vec<_> = POOL_PROPERTIES
        .iter()
        .filter(|shape| shape.is_listed)
        .collect();
    rows.sort_by_key(|shape| (shape.edit.is_editable(), shape.name));
    for shape in rows {
        let edit = if shape.edit.is_editable() {
            "YES"
        } else {
            " NO"
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\t{:<20}  {edit}   {}", shape.name, shape.values);
    }
    text.push_str("\tfeature@...           YES   disabled | enabled | active\n");
    text.push_str("\nThe feature@ properties must be appended with a feature name.\n");
    text.push_str("See zpool-features(7).\n");
}
