//! A bound on the bytes that a pool's trees may refer to. A traversal that exceeds it treats the trees as forged.

use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The bytes that a traversal may still visit: at most the capacity of the devices. Without the bound, a traversal
/// of a tree that contains itself would never end.
#[derive(Debug)]
pub struct Budget {
    charged_bytes: AtomicU64,
    max_bytes: u64,
    is_spent: AtomicBool,
}

/// The budget is exhausted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spent {
    /// This charge exhausted it. The caller must stop the traversal.
    Now,
    /// An earlier charge exhausted it.
    Before,
}

impl Budget {
    /// A budget of `max_bytes`.
    #[must_use]
    pub fn new(max_bytes: u64) -> Self {
        Self {
            charged_bytes: AtomicU64::new(0),
            max_bytes,
            is_spent: AtomicBool::new(false),
        }
    }

    /// Charges `bytes` to the budget.
    ///
    /// # Errors
    /// [`Spent`] if fewer bytes were left. Exactly one caller receives [`Spent::Now`].
    pub fn charge(&self, bytes: u64) -> Result<(), Spent> {
        let before = self.charged_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) <= self.max_bytes {
            return Ok(());
        }
        match self.is_spent.swap(true, Ordering::Relaxed) {
            false => Err(Spent::Now),
            true => Err(Spent::Before),
        }
    }

    /// Whether a charge exhausted it.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.is_spent.load(Ordering::Relaxed)
    }
    /// The whole budget in bytes.
    #[must_use]
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_beyond_the_budget_are_refused() {
        let budget = Budget::new(100);
        assert_eq!(budget.charge(60), Ok(()));
        assert_eq!(budget.charge(40), Ok(()));
        assert!(!budget.is_spent());
        assert_eq!(budget.charge(1), Err(Spent::Now));
        assert_eq!(budget.charge(0), Err(Spent::Before));
        assert!(budget.is_spent());
    }
}
