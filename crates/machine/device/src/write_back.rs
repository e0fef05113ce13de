//! Write-back errors, reported to every request that they affect.
//!
//! Linux writes back the page cache in the background. It reports an error once per open file description,
//! to the first call that asks. After that the pages count as clean and the next `fdatasync` succeeds,
//! although the device never received the bytes. A success therefore counts only if no concurrent request
//! received an error.

use millpond_env::rank;
use millpond_env::sync::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::io;

/// Wraps the flushes and durable writes of one opening of a file.
#[derive(Debug, Default)]
pub(crate) struct WriteBackGate {
    state: Mutex<State, rank::Leaf>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    under_way: BTreeSet<u64>,
    errors: u64,
}

impl WriteBackGate {
    /// The number of requests that failed.
    pub(crate) fn errors(&self) -> u64 {
        self.state.lock().errors
    }

    /// Performs `request`, and fails it if a request that overlaps it in time fails.
    ///
    /// The error that the other request received may concern these bytes. A successful request therefore
    /// waits for the end of all requests that began before it ended.
    pub(crate) fn pass(&self, request: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let (number, errors) = {
            let mut state = self.state.lock();
            let number = state.next;
            state.next = number.saturating_add(1);
            state.under_way.insert(number);
            (number, state.errors)
        };
        let outcome = request();
        let mut state = self.state.lock();
        state.under_way.remove(&number);
        state.errors = state.errors.saturating_add(u64::from(outcome.is_err()));
        self.changed.notify_all();
        outcome?;
        // A request that begins from here on cannot consume this request's error.
        let end = state.next;
        while state.under_way.first().is_some_and(|first| *first < end) {
            self.changed.wait(&mut state);
        }
        if state.errors == errors {
            return Ok(());
        }
        Err(io::Error::other(
            "the system reported lost writes to another request at the same time",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_env::sync::bounded;
    use millpond_env::thread;

    fn lost() -> io::Result<()> {
        Err(io::Error::from_raw_os_error(5))
    }

    #[test]
    fn an_error_fails_every_overlapping_request() {
        // (the other begins first, the other ends first)
        for (begins_first, ends_first) in [(true, true), (true, false), (false, true)] {
            let gate = WriteBackGate::default();
            let (begun, begins) = bounded(1);
            let (go, goes) = bounded(1);
            thread::scope(|scope| {
                let other = |outcome: fn() -> io::Result<()>| {
                    let (gate, begun, goes) = (&gate, begun.clone(), goes.clone());
                    scope.spawn(move || {
                        gate.pass(|| {
                            begun.send(()).unwrap();
                            goes.recv().unwrap();
                            outcome()
                        })
                    })
                };
                let mut failing = None;
                if begins_first {
                    failing = Some(other(lost));
                    begins.recv().unwrap();
                }
                let mine = gate.pass(|| {
                    if !begins_first {
                        failing = Some(other(lost));
                        begins.recv().unwrap();
                    }
                    go.send(()).unwrap();
                    if ends_first {
                        let ended = failing.take().unwrap().join().unwrap();
                        assert!(ended.is_err());
                    }
                    Ok(())
                });
                assert!(mine.is_err(), "{begins_first} {ends_first}");
            });
            assert_eq!(gate.errors(), 1);
            assert!(gate.pass(|| Ok(())).is_ok(), "it is told once");
        }
    }

    #[test]
    fn a_later_error_does_not_change_an_earlier_success() {
        let gate = WriteBackGate::default();
        assert!(gate.pass(|| Ok(())).is_ok());
        assert!(gate.pass(lost).is_err());
        assert_eq!(gate.errors(), 1);
    }
}
