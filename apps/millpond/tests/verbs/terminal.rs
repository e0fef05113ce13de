//! Output to a terminal contains no control sequences.
//!
//! Python provides the terminal; the tests are skipped without it.

use crate::golden::text;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs a program at a terminal and prints its output.
const AT_A_TERMINAL: &str = r#"
import os, pty, sys
out = []
def read(end):
    piece = os.read(end, 4096)
    out.append(piece)
    return b''
pty.spawn(sys.argv[1:], read)
sys.stdout.buffer.write(b''.join(out))
"#;

fn run(program: &str, before: &[&str], folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(before);
    if !before.is_empty() {
        command.arg(env!("CARGO_BIN_EXE_millpond"));
    }
    command.arg("-d").arg(folder).args(words);
    command.env_remove("MILLPOND_SEARCH").stdin(Stdio::null());
    command.output().unwrap()
}

#[test]
fn pool_values_are_escaped_only_at_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("a");
    std::fs::File::create(&image)
        .unwrap()
        .set_len(80 << 20)
        .unwrap();
    let own = |words: &[&str]| {
        let output = run(env!("CARGO_BIN_EXE_millpond"), &[], folder.path(), words);
        assert!(output.status.success(), "{}", text(&output.stderr));
        output.stdout
    };
    own(&[
        "zpool",
        "create",
        "-O",
        "canmount=off",
        "tank",
        image.to_str().unwrap(),
    ]);
    let hostile = "x\u{1b}]0;owned\u{7}\u{1b}[2J\nrpool\treadonly\ton\u{9b}\u{202e}";
    own(&["zfs", "set", &format!("a:b={hostile}"), "tank"]);
    let get = ["zfs", "get", "-H", "-o", "value", "a:b", "tank"];
    assert_eq!(text(&own(&get)), format!("{hostile}\n"));
    let shown = |words: &[&str]| {
        let output = run("python3", &["-c", AT_A_TERMINAL], folder.path(), words);
        text(&output.stdout).replace("\r\n", "\n")
    };
    if Command::new("python3").arg("--version").output().is_err() {
        println!("needs python3; passed over");
        return;
    }
    let escaped = "x\\x1b]0;owned\\x07\\x1b[2J\\nrpool\\treadonly\\ton\\xc2\\x9b\\xe2\\x80\\xae\n";
    assert_eq!(shown(&get), escaped);
    // Errors and the history repeat what the user types.
    for words in [
        &["zfs", "list", "tank/\u{1b}[2J"][..],
        &["zpool", "history"],
        &["zpool", "get", "all", "tank"],
    ] {
        let text = shown(words);
        assert!(!text.is_empty());
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
    assert!(shown(&["zpool", "history"]).contains("\\x1b]0;owned"));
}
