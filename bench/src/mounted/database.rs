//! Transactions of SQLite, through its program or Python's module.

use crate::cost::{Amount, Meter};
use crate::measurement::{Unit, print};
use crate::{Rows, seconds};
use anyhow::{Context, Result, ensure};
use millpond_bench::SeededRng;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const ROW: &str = "database";
/// The journal modes, with what SQLite answers.
const MODES: [(&str, &str); 2] = [("WAL", "wal"), ("DELETE", "delete")];
const ACCOUNTS: u64 = 100_000;
/// The number of transactions for which SQLite answers once, because answers cost time, too.
const BATCH: u64 = 8;
/// Executes a statement per line and prints the first column of its results, like the program.
const PYTHON: &str = "\
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
for line in sys.stdin:
    for row in database.execute(line):
        print(row[0], flush=True)
";

/// How SQLite can be used here.
#[derive(Clone, Copy)]
enum Way {
    Program,
    Python,
}

impl Way {
    fn find() -> Option<(Self, String)> {
        let answer = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).output().ok()?;
            let text = String::from_utf8(output.stdout).ok()?;
            let version = text.split_whitespace().next()?.to_owned();
            output.status.success().then_some(version)
        };
        let program = answer("sqlite3", &["--version"]);
        let python = || {
            let script = "import sqlite3; print(sqlite3.sqlite_version)";
            answer("python3", &["-c", script])
        };
        program
            .map(|version| (Self::Program, version))
            .or_else(|| python().map(|version| (Self::Python, version)))
    }
}

/// Says which SQLite the rows use.
pub fn about() -> String {
    match Way::find() {
        Some((Way::Program, version)) => format!("SQLite {version}, the program `sqlite3`"),
        Some((Way::Python, version)) => format!("SQLite {version}, Python's module"),
        None => "SQLite is missing (neither `sqlite3` nor Python's module)".into(),
    }
}

pub fn run(folder: &Path, rows: &Rows) -> Result<()> {
    if !rows.wants(ROW) {
        return Ok(());
    }
    let Some((way, _)) = Way::find() else {
        print(&format!("{ROW}: SQLite is missing"), Unit::Missing, 0.0);
        return Ok(());
    };
    let time = seconds("BENCH_DATABASE_SECONDS", 60)?;
    for (mode, answer) in MODES {
        let path = folder.join(format!("{answer}.db"));
        let row = format!("{ROW}: {mode}");
        measure(way, &path, (mode, answer), &row, time).context(row)?;
    }
    Ok(())
}

fn measure(
    way: Way,
    path: &Path,
    (mode, answer): (&str, &str),
    row: &str,
    time: Duration,
) -> Result<()> {
    let mut shell = Shell::open(way, path)?;
    let set_mode = format!("PRAGMA journal_mode={mode};\n");
    let is_set = shell.ask(&set_mode)?;
    ensure!(is_set == answer, "the journal mode is {is_set}");
    let filled = shell.ask(&format!(
        "PRAGMA synchronous=FULL;\n\
         CREATE TABLE account(id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, owner TEXT NOT NULL);\n\
         CREATE TABLE history(account INTEGER NOT NULL, amount INTEGER NOT NULL, note TEXT NOT NULL);\n\
         WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < {ACCOUNTS}) \
         INSERT INTO account SELECT n, 0, hex(randomblob(40)) FROM number;\n\
         SELECT count(*) FROM account;\n"
    ))?;
    ensure!(filled == ACCOUNTS.to_string(), "{filled} accounts");
    let mut rng = SeededRng(13);
    let (meter, begun, mut count) = (Meter::start()?, Instant::now(), 0);
    while begun.elapsed() < time {
        let mut text = String::new();
        for _ in 0..BATCH {
            transaction(&mut text, &mut rng);
        }
        text.push_str("SELECT 'done';\n");
        let answer = shell.ask(&text)?;
        ensure!(answer == "done", "{answer}");
        count += BATCH;
    }
    meter.finish(row, Amount::Operations(count))?;
    let entries = shell.ask("SELECT count(*) FROM history;\n")?;
    ensure!(entries == count.to_string(), "{entries} of {count} entries");
    let state = shell.ask("PRAGMA integrity_check;\n")?;
    ensure!(state == "ok", "{state}");
    shell.close()?;
    Ok(std::fs::remove_file(path)?)
}

/// A small transaction: an account changes, and a line of history is added.
fn transaction(text: &mut String, rng: &mut SeededRng) {
    let (account, amount) = (1 + rng.below(ACCOUNTS), rng.below(1000));
    let note = rng.roll();
    let _ = write!(
        text,
        "BEGIN IMMEDIATE;\n\
         UPDATE account SET balance = balance + {amount} WHERE id = {account};\n\
         INSERT INTO history VALUES ({account}, {amount}, 'note {note:016x}');\n\
         COMMIT;\n"
    );
}

/// A process of SQLite that executes a statement per line.
struct Shell {
    process: Child,
    statements: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Shell {
    fn open(way: Way, database: &Path) -> Result<Self> {
        let mut command = match way {
            Way::Program => Command::new("sqlite3"),
            Way::Python => Command::new("python3"),
        };
        match way {
            // Without the user's settings.
            Way::Program => command.args(["-batch", "-bail", "-init", "/dev/null"]),
            Way::Python => command.args(["-c", PYTHON]),
        };
        let command = command.arg(database);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        Ok(Self {
            statements: process.stdin.take().context("no standard input")?,
            answers: BufReader::new(process.stdout.take().context("no standard output")?),
            process,
        })
    }
    /// Executes statements, of which the last one answers with a line.
    fn ask(&mut self, statements: &str) -> Result<String> {
        self.statements.write_all(statements.as_bytes())?;
        let mut line = String::new();
        let count = self.answers.read_line(&mut line)?;
        ensure!(count > 0, "SQLite ended; its message is above");
        Ok(line.trim_end().to_owned())
    }
    fn close(self) -> Result<()> {
        let Self {
            mut process,
            statements,
            answers,
        } = self;
        drop((statements, answers));
        let status = process.wait()?;
        ensure!(status.success(), "SQLite ended with {status}");
        Ok(())
    }
}
