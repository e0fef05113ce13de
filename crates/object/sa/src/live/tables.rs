//! Where registry and layouts are stored.

use crate::{SaError, SaRegistration};
use millpond_txg::Transaction;

/// The two tables of one object set, as they are added to. [`crate::SaLayouts`] calls under its lock.
/// Tests put them in memory behind it.
pub trait SaTables: Send {
    /// Stores registrations under their names; makes the table if there is none.
    ///
    /// # Errors
    /// If it cannot be changed.
    fn register(
        &mut self,
        tx: &Transaction,
        added: &[(Vec<u8>, SaRegistration)],
    ) -> Result<(), SaError>;
    /// Stores a layout; makes the table if there is none.
    ///
    /// # Errors
    /// If it cannot be changed.
    fn add_layout(&mut self, tx: &Transaction, number: u16, list: &[u16]) -> Result<(), SaError>;
    /// Makes everything stored so far part of the transaction's txg, although some of it was stored in a
    /// younger one.
    ///
    /// # Errors
    /// If it cannot be changed.
    fn carry_back(&mut self, tx: &Transaction) -> Result<(), SaError>;
}
