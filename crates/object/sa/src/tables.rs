//! The interface that stores registry and layouts.

use crate::{SaError, SaRegistration};
use millpond_txg::Transaction;

/// The two tables of one object set, for additions. [`crate::SaLayouts`] calls it under its lock. Tests
/// implement it in memory.
pub trait SaTables: Send {
    /// Stores registrations under their names. Creates the table if there is none.
    ///
    /// # Errors
    /// If the table cannot be changed.
    fn register(
        &mut self,
        tx: &Transaction,
        added: &[(Vec<u8>, SaRegistration)],
    ) -> Result<(), SaError>;
    /// Stores a layout. Creates the table if there is none.
    ///
    /// # Errors
    /// If the table cannot be changed.
    fn add_layout(&mut self, tx: &Transaction, number: u16, list: &[u16]) -> Result<(), SaError>;
    /// Makes everything stored so far part of the transaction's txg, even what was stored in a newer txg.
    ///
    /// # Errors
    /// If the table cannot be changed.
    fn carry_back(&mut self, tx: &Transaction) -> Result<(), SaError>;
}
