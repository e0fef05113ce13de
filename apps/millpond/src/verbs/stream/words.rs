//! Words that name stored streams and what is in them: `FILE[/CHILD][@SNAPSHOT][:/PATH]`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A word of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    /// The stream; `-` is standard input.
    pub(super) stream: PathBuf,
    /// A dataset below the one that the stream is about, in a package.
    pub(super) child: Option<String>,
    /// The snapshot's name, after the `@`.
    pub(super) snapshot: Option<String>,
    /// The path in it, with the `:` before it.
    pub(super) path: Option<OsString>,
}

impl Word {
    /// Parses a word. A file whose name is the whole word is meant first.
    ///
    /// # Errors
    /// The message for the user if no file is named.
    pub(super) fn parse(word: &OsStr) -> Result<Self, String> {
        Self::parse_with(word, &|path| path.as_os_str() == "-" || is_input(path))
    }

    fn parse_with(word: &OsStr, is_stream: &dyn Fn(&Path) -> bool) -> Result<Self, String> {
        if is_stream(Path::new(word)) {
            return Ok(Self::whole(word));
        }
        let bytes = word.as_bytes();
        let split = bytes.windows(2).position(|pair| pair == b":/");
        let split = split.or_else(|| bytes.strip_suffix(b":").map(<[u8]>::len));
        let (name, path) = match split {
            Some(at) => (
                &bytes[..at],
                Some(OsStr::from_bytes(&bytes[at..]).to_owned()),
            ),
            None => (bytes, None),
        };
        let at = name.iter().rposition(|byte| *byte == b'@');
        let with_snapshot = at.and_then(|at| {
            let snapshot = std::str::from_utf8(&name[at + 1..]).ok()?;
            Some((&name[..at], Some(snapshot)))
        });
        // The name of a file may have an @, that of a dataset has none.
        let is_file = is_stream(Path::new(OsStr::from_bytes(name)));
        let first = is_file.then_some((name, None));
        for (dataset, snapshot) in [first, with_snapshot, Some((name, None))]
            .into_iter()
            .flatten()
        {
            if let Some((stream, child)) = split_child(dataset, is_stream) {
                return Ok(Self {
                    stream,
                    child,
                    snapshot: snapshot.map(str::to_owned),
                    path,
                });
            }
        }
        let shown = OsStr::from_bytes(name).to_string_lossy();
        Err(format!("'{shown}': there is no such stream file"))
    }

    fn whole(word: &OsStr) -> Self {
        Self {
            stream: word.into(),
            child: None,
            snapshot: None,
            path: None,
        }
    }

    /// Whether only the file is named.
    pub(super) fn is_whole(&self) -> bool {
        self.child.is_none() && self.snapshot.is_none() && self.path.is_none()
    }
}

fn is_input(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| !found.is_dir())
}

/// The file, and the dataset below the one that it is about.
fn split_child(
    name: &[u8],
    is_stream: &dyn Fn(&Path) -> bool,
) -> Option<(PathBuf, Option<String>)> {
    let mut end = name.len();
    loop {
        let file = Path::new(OsStr::from_bytes(&name[..end]));
        if is_stream(file) {
            let child = name[end..].strip_prefix(b"/");
            let child = child.map(std::str::from_utf8).transpose().ok()?;
            return Some((file.to_owned(), child.map(str::to_owned)));
        }
        end = name[..end].iter().rposition(|byte| *byte == b'/')?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(word: &str) -> (String, Option<String>, Option<String>, Option<String>) {
        let is_stream = |path: &Path| ["-", "a", "/x/b@c", "d:/e"].map(Path::new).contains(&path);
        let word = Word::parse_with(OsStr::new(word), &is_stream).unwrap();
        let path = word.path.map(|path| path.to_string_lossy().into_owned());
        let stream = word.stream.to_string_lossy().into_owned();
        (stream, word.child, word.snapshot, path)
    }

    #[test]
    fn a_word_names_a_stream_and_what_is_in_it() {
        let expected = |stream: &str, child: &str, snapshot: &str, path: &str| {
            let part = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            (stream.to_owned(), part(child), part(snapshot), part(path))
        };
        assert_eq!(parsed("a"), expected("a", "", "", ""));
        assert_eq!(parsed("a:"), expected("a", "", "", ":"));
        assert_eq!(parsed("a:/x:/y"), expected("a", "", "", ":/x:/y"));
        assert_eq!(parsed("-@s:/x"), expected("-", "", "s", ":/x"));
        assert_eq!(parsed("a/k/l@s"), expected("a", "k/l", "s", ""));
        assert_eq!(parsed("a/k/l"), expected("a", "k/l", "", ""));
        assert_eq!(parsed("/x/b@c"), expected("/x/b@c", "", "", ""));
        assert_eq!(parsed("/x/b@c@s:/y"), expected("/x/b@c", "", "s", ":/y"));
        assert_eq!(parsed("/x/b@c/k:/y"), expected("/x/b@c", "k", "", ":/y"));
        assert_eq!(parsed("d:/e"), expected("d:/e", "", "", ""));
    }

    #[test]
    fn words_without_a_file_are_refused() {
        for word in ["", "z", "z:/x", "@s", ":/x"] {
            assert!(Word::parse_with(OsStr::new(word), &|_| false).is_err());
        }
    }
}
