//! Prompting for a key at a terminal. Python provides the terminal; the tests are skipped without it.

use crate::golden::{Case, case, text};
use std::process::{Command, Output};

/// Runs a program at a terminal of its own and types input once echo is off.
///
/// Prints its status and whether echo is on afterwards.
const AT_A_TERMINAL: &str = r#"
import fcntl, os, pty, subprocess, sys, termios, threading, time
main, end = pty.openpty()
shows = lambda: bool(termios.tcgetattr(end)[3] & termios.ECHO)
def begin():
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
program = subprocess.Popen(sys.argv[2:], stdin=end, stdout=end, stderr=end, preexec_fn=begin)
said = []
def listen():
    while True:
        piece = os.read(main, 4096)
        said.append(piece)
threading.Thread(target=listen, daemon=True).start()
while shows():
    if program.poll() is not None:
        sys.exit('it did not ask')
    time.sleep(0.01)
if sys.argv[1] == 'end':
    program.terminate()
else:
    os.write(main, sys.argv[1].encode().decode('unicode_escape').encode())
status = program.wait()
print(status, shows())
time.sleep(0.1)
sys.stderr.buffer.write(b''.join(said))
"#;

fn at_a_terminal(case: &Case, typed: &str) -> Option<Output> {
    let mut python = Command::new("python3");
    python.args(["-c", AT_A_TERMINAL, typed]);
    python.arg(env!("CARGO_BIN_EXE_millpond")).arg("-d");
    python.arg(&case.disks.folder);
    python.args(["--key", "pcrypt/pass=prompt", "ls", "pcrypt/pass"]);
    let output = python.env_remove("MILLPOND_SEARCH").output();
    if output.is_err() {
        println!("needs python3; passed over");
    }
    output.ok()
}

#[test]
fn a_key_is_typed_unseen_and_the_terminal_is_as_it_was() {
    let case = case("crypt");
    let key = &case.record.keys["pcrypt/pass"];
    let key = text(&key.bytes).trim().to_owned();
    let Some(output) = at_a_terminal(&case, &format!("{key}\\n")) else {
        return;
    };
    assert_eq!(text(&output.stdout).trim(), "0 True", "{output:?}");
    assert!(!text(&output.stderr).contains(&key), "{output:?}");
    let output = at_a_terminal(&case, "wrong\\n").expect("python3");
    assert_eq!(text(&output.stdout).trim(), "1 True", "{output:?}");
}

#[test]
fn an_interrupted_prompt_restores_the_terminal_echo() {
    let case = case("crypt");
    // Ctrl-C, Ctrl-\\, and a signal from another process: the status is that of the signal.
    for (typed, status) in [("\\x03", -2), ("\\x1c", -3), ("end", -15)] {
        let Some(output) = at_a_terminal(&case, typed) else {
            return;
        };
        let expected = format!("{status} True");
        assert_eq!(text(&output.stdout).trim(), expected, "{output:?}");
    }
}
