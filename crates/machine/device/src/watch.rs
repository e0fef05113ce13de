//! How the requests of a batch get on.

use std::ops::Range;

/// Told when requests of a batch go to their devices and when they come back; numbers are places in the batch.
///
/// Calls come on the thread that gave the batch. What begins ends; a request that the
/// system gave back undone begins a second time. A request that reaches no device (it lies beyond its end) need not be told of.
pub trait Watch {
    /// These are with their devices from now on; until now they waited for their turn.
    fn begun(&self, requests: Range<usize>);
    /// These are not any more.
    fn ended(&self, requests: Range<usize>);
}

/// Nobody watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn begun(&self, _: Range<usize>) {}
    fn ended(&self, _: Range<usize>) {}
}

/// A part of a batch that begins at `start`, seen as a batch.
pub(crate) struct Part<'a> {
    pub(crate) whole: &'a dyn Watch,
    pub(crate) start: usize,
}

impl Part<'_> {
    fn shifted(&self, requests: Range<usize>) -> Range<usize> {
        self.start + requests.start..self.start + requests.end
    }
}

impl Watch for Part<'_> {
    fn begun(&self, requests: Range<usize>) {
        self.whole.begun(self.shifted(requests));
    }
    fn ended(&self, requests: Range<usize>) {
        self.whole.ended(self.shifted(requests));
    }
}
