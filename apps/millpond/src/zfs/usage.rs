//! Usage texts of `zfs`.

use crate::usage::synopsis;
use millpond_control::properties::DATASET_PROPERTIES;
use millpond_control::properties::{Edit, Release};
use std::fmt::Write;

/// The usage of all commands.
pub const LISTING: &str = include_str!("usage.txt");

/// The usage of one command. Commands that take properties list them.
pub fn of(command: &str) -> String {
    let synopsis = match command {
        // OpenZFS 2.4 has it; the listing is that of 2.3.
        "rewrite" => REWRITE.to_owned(),
        command => synopsis(LISTING, command),
    };
    let mut text = format!("usage:\n{synopsis}");
    if ["get", "inherit", "list", "set"].contains(&command) {
        properties(&mut text);
    } else {
        text.push_str(POINTERS);
    }
    text
}

fn properties(text: &mut String) {
    text.push_str("\nThe following properties are supported:\n");
    text.push_str("\n\tPROPERTY              EDIT  INHERIT   VALUES\n\n");
    let mut rows: Vec<_> = DATASET_PROPERTIES
        .iter()
        .filter(|property| property.since == Release::V2_3)
        .map(|property| &property.shape)
        .filter(|shape| shape.is_listed)
        .collect();
    rows.sort_by_key(|shape| (shape.edit != Edit::ReadOnly, shape.name));
    for shape in rows {
        let word = |yes| if yes { "YES" } else { " NO" };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "\t{:<22} {}      {}   {}",
            shape.name,
            word(shape.edit.is_editable()),
            word(shape.edit.is_inheritable()),
            shape.values
        );
    }
    text.push_str(include_str!("usage_properties_tail.txt"));
}

/// Explains the options of `allow` or `unallow`.
pub fn allow_options(is_unallow: bool) -> String {
    let mut text = String::from(ALLOW_OPTIONS);
    if is_unallow {
        text.push_str("  -r          remove permissions recursively\n");
    }
    text
}

const ALLOW_OPTIONS: &str = concat!(
    "  -h          show this help message and exit\n",
    "  -l          set permission locally\n",
    "  -d          set permission for descents\n",
    "  -u          set permission for user\n",
    "  -g          set permission for group\n",
    "  -e          set permission for everyone\n",
    "  -c          set create time permission\n",
    "  -s          define permission set\n",
);

const REWRITE: &str = "\trewrite [-Prvx] [-o <offset>] [-l <length>] <directory|file ...>\n";

/// References to further help.
const POINTERS: &str = "\nFor the property list, run: zfs set|get\n\n\
    For the delegated permission list, run: zfs allow|unallow\n\n\
    For further help on a command or topic, run: zfs help [<topic>]\n";
