//! A work queue for several threads: files found by the walk, and chunks of large files.

use millpond_env::sync::{Condvar, Mutex};
use std::collections::VecDeque;

/// A bounded queue of files and chunks.
///
/// Chunks come first, so that files are finished before new ones are begun.
pub struct Queue<F, C> {
    state: Mutex<State<F, C>>,
    changed: Condvar,
}

struct State<F, C> {
    files: VecDeque<F>,
    chunks: VecDeque<C>,
    /// Whether no more files will be added.
    is_closed: bool,
    /// Jobs in progress, which may still add chunks.
    active: usize,
}

/// One unit of work.
pub enum Job<F, C> {
    /// A file.
    File(F),
    /// A part of one.
    Chunk(C),
}

/// Marks a job as done when dropped, also on a panic. Otherwise the other threads would wait forever.
pub struct JobGuard<'a, F, C>(&'a Queue<F, C>);

impl<F, C> Queue<F, C> {
    pub fn new() -> Self {
        Self {
            state: Mutex::new(State {
                files: VecDeque::new(),
                chunks: VecDeque::new(),
                is_closed: false,
                active: 0,
            }),
            changed: Condvar::new(),
        }
    }

    /// Adds a file. Blocks while the queue is full.
    pub fn push_file(&self, file: F) {
        let mut state = self.state.lock();
        while state.files.len() >= FILES_MAX {
            self.changed.wait(&mut state);
        }
        state.files.push_back(file);
        self.changed.notify_all();
    }

    /// Adds a chunk. If the queue is full, returns the chunk and the caller copies it itself.
    pub fn push_chunk(&self, chunk: C) -> Result<(), C> {
        let mut state = self.state.lock();
        if state.chunks.len() >= CHUNKS_MAX {
            return Err(chunk);
        }
        state.chunks.push_back(chunk);
        self.changed.notify_all();
        Ok(())
    }

    /// Marks the end of files.
    pub fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Takes the next job; `None` when all work is done.
    pub fn take(&self) -> Option<(Job<F, C>, JobGuard<'_, F, C>)> {
        let mut state = self.state.lock();
        loop {
            let chunk = state.chunks.pop_front().map(Job::Chunk);
            let job = chunk.or_else(|| state.files.pop_front().map(Job::File));
            if let Some(job) = job {
                state.active += 1;
                self.changed.notify_all();
                return Some((job, JobGuard(self)));
            }
            if state.is_closed && state.active == 0 {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }
}

impl<F, C> Drop for JobGuard<'_, F, C> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.active -= 1;
        if state.active == 0 {
            self.0.changed.notify_all();
        }
    }
}

const FILES_MAX: usize = 256;
const CHUNKS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_env::sync::atomic::{AtomicU64, Ordering};
    use millpond_env::thread;

    #[test]
    fn every_file_and_every_chunk_of_it_is_done_once() {
        let queue: Queue<u64, u64> = Queue::new();
        let sum = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some((job, _taken)) = queue.take() {
                        let file = match job {
                            Job::Chunk(number) => {
                                sum.fetch_add(number, Ordering::Relaxed);
                                continue;
                            }
                            Job::File(number) => number,
                        };
                        for part in 0..10 {
                            if let Err(number) = queue.push_chunk(file * part) {
                                sum.fetch_add(number, Ordering::Relaxed);
                            }
                        }
                    }
                });
            }
            for number in 0..1000 {
                queue.push_file(number);
            }
            queue.close();
        });
        assert_eq!(sum.into_inner(), 45 * (999 * 1000 / 2));
    }
}
