//! Bounded channels.

use super::condvar::Condvar;
use super::lock::Mutex;
use crossbeam_channel::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

struct Channel<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    messages: VecDeque<T>,
    capacity: usize,
    senders: usize,
    receivers: usize,
}

/// As `crossbeam`'s.
pub struct Sender<T>(Arc<Channel<T>>);

/// As `crossbeam`'s.
pub struct Receiver<T>(Arc<Channel<T>>);

/// As `crossbeam`'s, with a capacity of at least one message.
#[must_use]
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let channel = Arc::new(Channel {
        state: Mutex::new(State {
            messages: VecDeque::new(),
            capacity: capacity.max(1),
            senders: 1,
            receivers: 1,
        }),
        changed: Condvar::new(),
    });
    (Sender(Arc::clone(&channel)), Receiver(channel))
}

impl<T> Sender<T> {
    /// As `crossbeam`'s.
    ///
    /// # Errors
    /// If all receivers were dropped.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        let mut state = self.0.state.lock();
        while state.receivers > 0 && state.messages.len() >= state.capacity {
            self.0.changed.wait(&mut state);
        }
        if state.receivers == 0 {
            return Err(SendError(message));
        }
        state.messages.push_back(message);
        drop(state);
        self.0.changed.notify_all();
        Ok(())
    }
    /// As `crossbeam`'s.
    ///
    /// # Errors
    /// If the channel is full, or all receivers were dropped.
    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        let mut state = self.0.state.lock();
        if state.receivers == 0 {
            return Err(TrySendError::Disconnected(message));
        }
        if state.messages.len() >= state.capacity {
            return Err(TrySendError::Full(message));
        }
        state.messages.push_back(message);
        drop(state);
        self.0.changed.notify_all();
        Ok(())
    }
}

impl<T> Receiver<T> {
    /// As `crossbeam`'s.
    ///
    /// # Errors
    /// If the channel is empty and all senders were dropped.
    pub fn recv(&self) -> Result<T, RecvError> {
        let mut state = self.0.state.lock();
        loop {
            if let Some(message) = self.taken(&mut state) {
                return Ok(message);
            }
            if state.senders == 0 {
                return Err(RecvError);
            }
            self.0.changed.wait(&mut state);
        }
    }
    /// As `crossbeam`'s.
    ///
    /// # Errors
    /// If the channel is empty.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut state = self.0.state.lock();
        match self.taken(&mut state) {
            Some(message) => Ok(message),
            None if state.senders == 0 => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }
    /// As `crossbeam`'s, except that each change of the channel restarts the timeout.
    ///
    /// # Errors
    /// If the timeout expires, or the channel is empty and all senders were dropped.
    pub fn recv_timeout(&self, limit: Duration) -> Result<T, RecvTimeoutError> {
        let mut state = self.0.state.lock();
        loop {
            if let Some(message) = self.taken(&mut state) {
                return Ok(message);
            }
            if state.senders == 0 {
                return Err(RecvTimeoutError::Disconnected);
            }
            if self.0.changed.wait_for(&mut state, limit).timed_out() {
                return Err(RecvTimeoutError::Timeout);
            }
        }
    }
    /// As `crossbeam`'s.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.state.lock().messages.is_empty()
    }
    /// As `crossbeam`'s.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.recv().ok())
    }
    fn taken(&self, state: &mut State<T>) -> Option<T> {
        let message = state.messages.pop_front()?;
        self.0.changed.notify_all();
        Some(message)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.state.lock().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.0.state.lock().receivers += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.state.lock().senders -= 1;
        self.0.changed.notify_all();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.receivers -= 1;
        // Messages without a receiver are dropped now, after the lock is released.
        let left = match state.receivers {
            0 => std::mem::take(&mut state.messages),
            _ => VecDeque::new(),
        };
        drop(state);
        drop(left);
        self.0.changed.notify_all();
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}
