//! Usage texts.
//!
//! The listing of all commands is kept as one text; a command's synopsis is its block in that text.

/// Returns the synopsis of `command`: its lines and their continuation lines.
///
/// The result is empty if the listing does not contain the command.
pub fn synopsis(listing: &str, command: &str) -> String {
    let mut block = String::new();
    let mut is_inside = false;
    for line in listing.split_inclusive('\n') {
        let Some(text) = line.strip_prefix('\t') else {
            is_inside = false;
            continue;
        };
        if !text.starts_with(' ') {
            is_inside = text.split([' ', '\n']).next() == Some(command);
        }
        if is_inside {
            block.push_str(line);
        }
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_synopsis_includes_continuation_lines() {
        let listing = "usage:\n\n\tlist [-x]\n\t    [pool]\n\tlistall\n\n\tlist -y\nend\n";
        assert_eq!(
            synopsis(listing, "list"),
            "\tlist [-x]\n\t    [pool]\n\tlist -y\n"
        );
        assert_eq!(synopsis(listing, "listall"), "\tlistall\n");
        assert_eq!(synopsis(listing, "nosuch"), "");
    }
}
