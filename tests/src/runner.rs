//! Runs named trials and prints them like the standard test harness.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

/// The result of a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Success; a note may say what was not checked.
    Passed(String),
    /// Failure.
    Failed(String),
    /// Skipped, and why.
    PassedOver(String),
}

/// One thing to try.
pub struct Trial {
    /// Printed, and matched by filters.
    pub name: String,
    /// The test function.
    pub run: Box<dyn FnOnce() -> Outcome + Send>,
}

/// The supported arguments of the test harness.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    filters: Vec<String>,
    skips: Vec<String>,
    is_exact: bool,
    is_list: bool,
    threads: Option<usize>,
}

/// Runs the trials selected on the command line.
///
/// Returns failure if one failed, or if they could not be listed.
pub fn main(trials: anyhow::Result<Vec<Trial>>) -> ExitCode {
    let trials = match trials {
        Ok(trials) => trials,
        Err(error) => {
            println!("the trials cannot be listed: {error:#}");
            return ExitCode::from(101);
        }
    };
    let wanted = Wanted::parse(std::env::args().skip(1));
    let started = Instant::now();
    let total = trials.len();
    let chosen: VecDeque<Trial> = trials
        .into_iter()
        .filter(|trial| wanted.includes(&trial.name))
        .collect();
    let filtered_out = total - chosen.len();
    if wanted.is_list {
        for trial in &chosen {
            println!("{}: test", trial.name);
        }
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", chosen.len());
    let threads = wanted
        .threads
        .or_else(|| std::thread::available_parallelism().ok().map(usize::from))
        .unwrap_or(1)
        .clamp(1, 16);
    let queue = Mutex::new(chosen);
    let ended = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let next = queue
                        .lock()
                        .unwrap_or_else(|poison| poison.into_inner())
                        .pop_front();
                    let Some(Trial { name, run }) = next else {
                        break;
                    };
                    let outcome = catch_unwind(AssertUnwindSafe(run))
                        .unwrap_or_else(|_| Outcome::Failed("it panicked (see above)".to_owned()));
                    match &outcome {
                        Outcome::Passed(note) if note.is_empty() => println!("test {name} ... ok"),
                        Outcome::Passed(note) => println!("test {name} ... ok ({note})"),
                        Outcome::Failed(_) => println!("test {name} ... FAILED"),
                        Outcome::PassedOver(why) => println!("test {name} ... ignored, {why}"),
                    }
                    ended
                        .lock()
                        .unwrap_or_else(|poison| poison.into_inner())
                        .push((name, outcome));
                }
            });
        }
    });
    let mut ended = ended
        .into_inner()
        .unwrap_or_else(|poison| poison.into_inner());
    ended.sort_by(|(a, _), (b, _)| a.cmp(b));
    let count = |kind: fn(&Outcome) -> bool| ended.iter().filter(|(_, end)| kind(end)).count();
    let passed = count(|end| matches!(end, Outcome::Passed(_)));
    let failed = count(|end| matches!(end, Outcome::Failed(_)));
    let passed_over = count(|end| matches!(end, Outcome::PassedOver(_)));
    if failed > 0 {
        println!("\nfailures:\n");
        for (name, outcome) in &ended {
            if let Outcome::Failed(words) = outcome {
                println!("---- {name} ----\n{words}\n");
            }
        }
    }
    println!(
        "\ntest result: {}. {passed} passed; {failed} failed; {passed_over} ignored; 0 measured; \
         {filtered_out} filtered out; finished in {:.2}s\n",
        if failed == 0 { "ok" } else { "FAILED" },
        started.elapsed().as_secs_f64()
    );
    ExitCode::from(if failed == 0 { 0 } else { 101 })
}

impl Wanted {
    fn parse(arguments: impl Iterator<Item = String>) -> Self {
        let mut wanted = Self::default();
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--exact" => wanted.is_exact = true,
                "--list" => wanted.is_list = true,
                "--skip" => wanted.skips.extend(arguments.next()),
                "--test-threads" => {
                    wanted.threads = arguments.next().and_then(|count| count.parse().ok());
                }
                "--format" | "--color" | "--logfile" | "-Z" => drop(arguments.next()),
                other => match other.strip_prefix("--test-threads=") {
                    Some(count) => wanted.threads = count.parse().ok(),
                    None if other.starts_with('-') => {}
                    None => wanted.filters.push(argument),
                },
            }
        }
        wanted
    }

    fn includes(&self, name: &str) -> bool {
        let fits = |pattern: &String| {
            if self.is_exact {
                name == pattern
            } else {
                name.contains(pattern.as_str())
            }
        };
        (self.filters.is_empty() || self.filters.iter().any(fits)) && !self.skips.iter().any(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_the_standard_harness_are_understood() {
        let words = [
            "single",
            "--test-threads=1",
            "--nocapture",
            "--skip",
            "crypt",
        ];
        let wanted = Wanted::parse(words.map(str::to_owned).into_iter());
        assert_eq!(wanted.threads, Some(1));
        assert!(wanted.includes("golden::single"));
        assert!(!wanted.includes("golden::crypt-single"));
        assert!(!wanted.includes("golden::names"));
    }
}
