//! Progress and errors of a copy, for a person and as JSON.

use crate::progress::{Done, Progress, Style};
use crate::text::number;
use crate::verbs::json::put_name;
use crate::verbs::name_text::escaped;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};

/// Counts of all threads.
pub struct Report {
    counts: Arc<Counts>,
    problems: Mutex<Vec<Problem>>,
    notes: Mutex<BTreeMap<String, Note>>,
    progress: Mutex<Progress>,
    is_stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct Counts {
    files: AtomicU64,
    bytes: AtomicU64,
    problems: AtomicU64,
}

/// A file that was not copied, or not completely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file, as `DATASET:/PATH`.
    pub path: Vec<u8>,
    /// The error.
    pub reason: String,
    /// Byte ranges, start and end, that are holes in the copy.
    pub lost: Vec<(u64, u64)>,
    /// Whether no copy exists.
    pub is_absent: bool,
}

/// Attributes that the destination rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Note {
    count: u64,
    example: Vec<u8>,
}

impl Counts {
    fn done(&self, total_bytes: Option<u64>) -> Done {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let mut counts = vec![("files", load(&self.files))];
        let problems = load(&self.problems);
        if problems > 0 {
            counts.push(("problems", problems));
        }
        Done {
            bytes: load(&self.bytes),
            total_bytes,
            verb: "copied",
            counts,
        }
    }
}

impl Report {
    /// Creates an empty report, which shows the progress. `total_bytes` are all bytes to copy, if that is known.
    pub fn new(style: Style, total_bytes: Option<u64>) -> Self {
        let counts = Arc::new(Counts::default());
        let counted = Arc::clone(&counts);
        let progress = Progress::start(style, move || counted.done(total_bytes));
        Self {
            counts,
            problems: Mutex::new(vec![]),
            notes: Mutex::new(BTreeMap::new()),
            progress: Mutex::new(progress),
            is_stopped: AtomicBool::new(false),
        }
    }

    /// Counts a copied file of any kind, or directory.
    pub fn copied(&self) {
        self.counts.files.fetch_add(1, Ordering::Relaxed);
    }
    /// Counts written bytes.
    pub fn wrote(&self, bytes: u64) {
        self.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
    /// Records that a file was not copied completely.
    ///
    /// At most [`PROBLEMS_MAX`] are kept; the others are counted.
    pub fn problem(&self, problem: Problem) {
        self.counts.problems.fetch_add(1, Ordering::Relaxed);
        let mut problems = self.problems.lock();
        if problems.len() < PROBLEMS_MAX {
            problems.push(problem);
        }
    }
    /// Records that a file was not copied at all.
    pub fn absent(&self, path: Vec<u8>, reason: impl fmt::Display) {
        self.problem(Problem {
            path,
            reason: reason.to_string(),
            lost: vec![],
            is_absent: true,
        });
    }
    /// Records an attribute that the destination rejected.
    pub fn note(&self, what: String, path: &[u8]) {
        let mut notes = self.notes.lock();
        if notes.len() >= NOTES_MAX && !notes.contains_key(&what) {
            return;
        }
        let note = notes.entry(what).or_insert_with(|| Note {
            count: 0,
            example: path.to_vec(),
        });
        note.count += 1;
    }
    /// Stops all threads, because the destination accepts no more data.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }
    /// Whether the copy is to stop.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Ends the progress and reports the result: as text on `err`, as JSON on `out`.
    ///
    /// Returns whether everything was copied.
    pub fn finish(
        &self,
        out: &mut dyn Write,
        err: &mut dyn Write,
        is_json: bool,
    ) -> io::Result<bool> {
        let is_read = {
            let mut progress = self.progress.lock();
            progress.finish();
            progress.is_read()
        };
        let mut problems = self.problems.lock();
        problems.sort_by(|one, other| one.path.cmp(&other.path));
        let notes = self.notes.lock();
        let count = self.counts.problems.load(Ordering::Relaxed);
        let files = self.counts.files.load(Ordering::Relaxed);
        let bytes = self.counts.bytes.load(Ordering::Relaxed);
        if is_json {
            for problem in problems.iter() {
                writeln!(out, "{}", problem.to_json())?;
            }
            for (what, note) in notes.iter() {
                let mut map = Map::new();
                map.insert("note".into(), what.as_str().into());
                map.insert("count".into(), note.count.into());
                put_name(&mut map, "example", &note.example);
                writeln!(out, "{}", Value::Object(map))?;
            }
            let summary = json!({
                "files": files, "bytes": bytes, "problems": count,
                "is_stopped": self.is_stopped(),
            });
            writeln!(out, "{}", json!({ "summary": summary }))?;
            return Ok(count == 0);
        }
        for (what, note) in notes.iter() {
            let example = escaped(&note.example);
            let count = note.count;
            match count {
                1 => writeln!(err, "millpond: {what} ({example})")?,
                _ => writeln!(err, "millpond: {what} ({count} times, first {example})")?,
            }
        }
        if is_read {
            let amount = number::bytes(bytes);
            let files = number::of(files, "file", "files");
            writeln!(err, "{files}, {amount} copied")?;
        }
        if count > 0 {
            writeln!(err, "millpond: {count} could not be copied completely:")?;
            for problem in problems.iter().take(SHOWN_MAX) {
                writeln!(err, "  {problem}")?;
            }
            if count > SHOWN_MAX as u64 {
                let more = count - SHOWN_MAX as u64;
                writeln!(err, "  and {more} more; --json lists them all")?;
            }
        }
        if self.is_stopped() {
            writeln!(
                err,
                "millpond: stopped: the destination is full or cannot be written"
            )?;
        }
        Ok(count == 0)
    }
}

impl Problem {
    fn to_json(&self) -> Value {
        let mut map = Map::new();
        put_name(&mut map, "path", &self.path);
        map.insert("problem".into(), self.reason.as_str().into());
        map.insert("is_absent".into(), self.is_absent.into());
        if !self.lost.is_empty() {
            let lost: Vec<Value> = self
                .lost
                .iter()
                .map(|(start, end)| json!({ "offset": start, "length": end - start }))
                .collect();
            map.insert("lost".into(), lost.into());
        }
        Value::Object(map)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", escaped(&self.path))?;
        if self.is_absent {
            f.write_str("not copied: ")?;
        }
        for (index, (start, end)) in self.lost.iter().take(RANGES_SHOWN_MAX).enumerate() {
            let lead = if index == 0 { "lost bytes " } else { ", " };
            write!(f, "{lead}{start}-{}", end - 1)?;
        }
        if self.lost.len() > RANGES_SHOWN_MAX {
            write!(f, " and {} more ranges", self.lost.len() - RANGES_SHOWN_MAX)?;
        }
        if !self.lost.is_empty() {
            f.write_str(": ")?;
        }
        f.write_str(&self.reason)
    }
}

/// Maximum number of problems kept with their reasons.
const PROBLEMS_MAX: usize = 100_000;
/// Maximum number of kinds of notes kept.
const NOTES_MAX: usize = 100;
/// Maximum number of problems shown in the summary.
const SHOWN_MAX: usize = 20;
const RANGES_SHOWN_MAX: usize = 4;
