//! Sync tasks: changes of the MOS that run inside the txg that is being written.
//!
//! The thread that requests the change runs it itself. The sync thread grants it permission to change the
//! MOS and waits until the task is done. A task may therefore borrow from its caller's stack, and at most
//! one thread changes the MOS at any time.

use crate::PoolError;
use crate::pool::Pool;
use crate::sync::context::{SyncContext, TxgSyncState};
use millpond_env::rank;
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_ondisk::Txg;
use std::collections::VecDeque;

/// When in a txg a task runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskTime {
    /// Before anything else.
    First,
    /// After the datasets.
    AfterDatasets,
}

/// The queue of callers that wait to run their tasks, oldest first.
#[derive(Default)]
pub(crate) struct TaskQueue {
    waiting: Mutex<VecDeque<Arc<Ticket>>, rank::Leaf>,
}

/// The queue entry of one caller.
pub(crate) struct Ticket {
    /// The txg that was open when the caller queued its task. The task runs in this txg or a later one, so
    /// it sees every change that its caller had seen.
    txg: Txg,
    state: Mutex<TicketState, rank::Leaf>,
    changed: Condvar,
}

enum TicketState {
    Waiting,
    /// The caller may run its task.
    Ready(Arc<TxgSyncState>),
    /// The caller is running its task.
    Running,
    /// The task has finished, or the pool ended before running it.
    Done(Result<(), PoolError>),
}

impl TaskQueue {
    pub(crate) fn enter(&self, txg: Txg) -> Arc<Ticket> {
        let ticket = Arc::new(Ticket {
            txg,
            state: Mutex::new(TicketState::Waiting),
            changed: Condvar::new(),
        });
        self.waiting.lock().push_back(Arc::clone(&ticket));
        ticket
    }

    /// The tickets of `txg` or earlier, in order.
    fn due(&self, txg: Txg) -> Vec<Arc<Ticket>> {
        let mut waiting = self.waiting.lock();
        let (due, later) = waiting.drain(..).partition(|ticket| ticket.txg <= txg);
        *waiting = later;
        due.into()
    }

    /// Runs the tasks of all due tickets. Stops at the first that fails: its partial change must not be
    /// committed.
    ///
    /// # Errors
    /// The error of the failed task.
    pub(crate) fn run_due(&self, sync_state: &Arc<TxgSyncState>) -> Result<(), PoolError> {
        let mut due = self.due(sync_state.txg).into_iter();
        while let Some(ticket) = due.next() {
            if let Err(error) = ticket.wait_for_caller(sync_state) {
                due.for_each(|ticket| ticket.finish(Err(error.clone())));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends every wait with `error`.
    pub(crate) fn fail_all(&self, error: &PoolError) {
        let all: Vec<_> = self.waiting.lock().drain(..).collect();
        for ticket in all {
            ticket.finish(Err(error.clone()));
        }
    }
}

impl Pool {
    /// Like [`Pool::sync_task`], for a task that runs before anything else of its txg: the MOS is that of the last
    /// commit.
    pub(crate) fn early_sync_task<R>(
        &self,
        run: impl FnOnce(&SyncContext<'_>) -> Result<R, PoolError>,
    ) -> Result<R, PoolError> {
        self.run_task(TaskTime::First, run)
    }

    /// Ends the wait of all callers whose tasks have not run.
    pub(crate) fn fail_tasks(&self, error: &PoolError) {
        self.early_tasks.fail_all(error);
        self.tasks.fail_all(error);
    }
}

impl Ticket {
    /// The sync thread's side: waits until the caller has run its task.
    fn wait_for_caller(&self, sync_state: &Arc<TxgSyncState>) -> Result<(), PoolError> {
        let mut state = self.state.lock();
        *state = TicketState::Ready(Arc::clone(sync_state));
        self.changed.notify_all();
        loop {
            if let TicketState::Done(outcome) = &*state {
                return outcome.clone();
            }
            self.changed.wait(&mut state);
        }
    }

    fn finish(&self, outcome: Result<(), PoolError>) {
        *self.state.lock() = TicketState::Done(outcome);
        self.changed.notify_all();
    }

    /// The caller's side: waits for permission, runs the task and returns control to the sync thread.
    /// Returns the txg that the task ran in.
    ///
    /// # Errors
    /// The task's error, or the reason why the pool did not run it.
    pub(crate) fn run<R>(
        &self,
        pool: &Pool,
        task: impl FnOnce(&SyncContext<'_>) -> Result<R, PoolError>,
    ) -> Result<(R, Txg), PoolError> {
        let sync_state = {
            let mut state = self.state.lock();
            loop {
                match &*state {
                    TicketState::Ready(sync_state) => {
                        let sync_state = Arc::clone(sync_state);
                        *state = TicketState::Running;
                        break sync_state;
                    }
                    TicketState::Done(outcome) => {
                        outcome.clone()?;
                        return Err(PoolError::Suspended {
                            reason: "a task's turn was lost".into(),
                        });
                    }
                    TicketState::Waiting | TicketState::Running => self.changed.wait(&mut state),
                }
            }
        };
        let txg = sync_state.txg;
        // If the task panics, the guard keeps the sync thread from waiting forever.
        let guard = TicketGuard { ticket: self };
        let ctx = SyncContext { pool, sync_state };
        let retrying = pool.store.retrying_thread();
        let outcome = task(&ctx);
        drop((ctx, retrying));
        guard.give_back(outcome.as_ref().map(|_| ()).map_err(Clone::clone));
        outcome.map(|value| (value, txg))
    }
}

struct TicketGuard<'a> {
    ticket: &'a Ticket,
}

impl TicketGuard<'_> {
    fn give_back(self, outcome: Result<(), PoolError>) {
        self.ticket.finish(outcome);
        std::mem::forget(self);
    }
}

impl Drop for TicketGuard<'_> {
    fn drop(&mut self) {
        self.ticket.finish(Err(PoolError::Suspended {
            reason: "a sync task panicked".into(),
        }));
    }
}
