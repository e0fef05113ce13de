//! Name patterns of `find -name`, matched against bytes.

/// Whether `name` matches `pattern`.
///
/// `*` matches any bytes, `?` one character, `[a-z]` one character of a set (`!` or `^` negates it); `\`
/// escapes the next character. The run time is at most proportional to the product of both lengths.
pub fn matches(pattern: &[u8], name: &[u8], ignores_case: bool) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where to continue if the text after the last star does not match.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            retry = Some((p, n));
            continue;
        }
        if n == name.len() && p == pattern.len() {
            return true;
        }
        let step = if n < name.len() {
            one(&pattern[p..], &name[n..], ignores_case)
        } else {
            None
        };
        if let Some((of_pattern, of_name)) = step {
            p += of_pattern;
            n += of_name;
            continue;
        }
        match retry {
            Some((star, at)) if at < name.len() => {
                let next = at + character(&name[at..]);
                retry = Some((star, next));
                p = star;
                n = next;
            }
            _ => return false,
        }
    }
}

/// Matches one character. Returns the bytes of pattern and name that it consumed.
fn one(pattern: &[u8], name: &[u8], ignores_case: bool) -> Option<(usize, usize)> {
    let same =
        |one: u8, other: u8| one == other || (ignores_case && one.eq_ignore_ascii_case(&other));
    let byte = *name.first()?;
    match *pattern.first()? {
        b'?' => Some((1, character(name))),
        b'[' => match set(pattern, byte, ignores_case) {
            Some((length, true)) => Some((length, 1)),
            Some((_, false)) => None,
            // An unclosed bracket is an ordinary character.
            None => (byte == b'[').then_some((1, 1)),
        },
        b'\\' if pattern.len() > 1 => same(pattern[1], byte).then_some((2, 1)),
        other => same(other, byte).then_some((1, 1)),
    }
}

/// The length of a set and whether it contains the byte; `None` if the set is not closed.
fn set(pattern: &[u8], byte: u8, ignores_case: bool) -> Option<(usize, bool)> {
    let is_turned = matches!(pattern.get(1), Some(b'!' | b'^'));
    let begin = if is_turned { 2 } else { 1 };
    let mut at = begin;
    let mut is_in = false;
    loop {
        let low = *pattern.get(at)?;
        if low == b']' && at > begin {
            return Some((at + 1, is_in != is_turned));
        }
        let high = match (pattern.get(at + 1), pattern.get(at + 2)) {
            (Some(b'-'), Some(high)) if *high != b']' => {
                at += 2;
                *high
            }
            _ => low,
        };
        let fits = |byte: u8| (low..=high).contains(&byte);
        is_in |= fits(byte)
            || (ignores_case
                && (fits(byte.to_ascii_lowercase()) || fits(byte.to_ascii_uppercase())));
        at += 1;
    }
}

/// The bytes of the first character; a single byte if it is not UTF-8.
fn character(name: &[u8]) -> usize {
    let first = name.utf8_chunks().next();
    let letter = first.and_then(|chunk| chunk.valid().chars().next());
    letter.map_or(1, char::len_utf8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_those_of_a_shell() {
        for (pattern, name, is_match) in [
            ("", "", true),
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abbcd", false),
            ("*.t?t", "x.y.txt", true),
            ("?", "ä", true),
            ("??", "ä", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]a]", "]", true),
            ("[a", "[a", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("*a*b*c*", "xxaxxbxxc", true),
        ] {
            let found = matches(pattern.as_bytes(), name.as_bytes(), false);
            assert_eq!(found, is_match, "{pattern} {name}");
        }
        assert!(matches(b"*\xff", b"a\xfe\xff", false));
        assert!(matches(b"ReadMe[a-b]", b"rEADmEB", true));
        assert!(!matches(b"README", b"readme", false));
    }

    #[test]
    fn a_pattern_with_many_stars_matches_in_bounded_time() {
        let pattern = b"*a".repeat(50);
        let name = b"b".repeat(10_000);
        assert!(!matches(&pattern, &name, false));
    }
}
