//! How many are answered at once.

use millpond_env::sync::Arc;
use millpond_env::sync::atomic::{AtomicUsize, Ordering};

/// One of the connections that are answered at once; free again when it goes, on the way out of a panic, too.
pub struct Seat(Arc<AtomicUsize>);

impl Seat {
    /// One of so many, if one is free.
    pub fn take(taken: &Arc<AtomicUsize>, seats: usize) -> Option<Self> {
        let seat = Self(Arc::clone(taken));
        (taken.fetch_add(1, Ordering::Relaxed) < seats).then_some(seat)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_free_again_when_it_is_left() {
        let taken = Arc::default();
        let first = Seat::take(&taken, 1).unwrap();
        assert!(Seat::take(&taken, 1).is_none());
        drop(first);
        assert!(Seat::take(&taken, 1).is_some());
    }
}
