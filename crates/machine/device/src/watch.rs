//! Progress reports of the requests of a batch.

use std::ops::Range;

/// Receives a callback when requests of a batch start and end; the numbers are indices into the batch.
///
/// Calls come on the thread that submitted the batch. Every request that begins also ends. A request that
/// the system returned undone begins a second time. A request that reaches no device, because it exceeds
/// the device's end, need not be reported.
pub trait Watch {
    /// These requests are in flight from now on; before, they were queued.
    fn begun(&self, requests: Range<usize>);
    /// These requests are no longer in flight.
    fn ended(&self, requests: Range<usize>);
}

/// A [`Watch`] that ignores all reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn begun(&self, _: Range<usize>) {}
    fn ended(&self, _: Range<usize>) {}
}
