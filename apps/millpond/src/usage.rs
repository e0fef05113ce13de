//! Usage texts: the listing of all commands is kept as a text; a command's own synopsis is its
//! block in that text.

/// The synopsis of `command`: its lines and the lines that continue them, or nothing if the
/// listing does not know it.
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
    fn a_synopsis_is_every_line_of_the_command_with_its_continuations() {
        let listing = "usage:\n\n\tlist [-x]\n\t    [pool]\n\tlistall\n\n\tlist -y\nend\n";
        assert_eq!(
            synopsis(listing, "list"),
            "\tlist [-x]\n\t    [pool]\n\tlist -y\n"
        );
        assert_eq!(synopsis(listing, "listall"), "\tlistall\n");
        assert_eq!(synopsis(listing, "nosuch"), "");
    }
}
