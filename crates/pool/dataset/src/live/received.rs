//! What receives have left behind when a system went down.
//!
//! Page `docs/format/dsl-dataset.md`, "Half received".

use super::datasets::LiveDatasets;
use crate::DatasetError;

impl LiveDatasets {
    /// Destroys the datasets that were found half received when the pool was opened, and that no stream can
    /// go on with: nobody can use them, and nothing shows them. Those that a stream can go on with stay,
    /// hidden. Returns the names of what went. To be called once the logs that were found are dealt with.
    ///
    /// One that cannot be destroyed stays, and is tried again when the pool is next opened.
    ///
    /// # Errors
    /// If the pool is suspended or cannot be read.
    pub fn destroy_half_received(&self) -> Result<Vec<String>, DatasetError> {
        let mut gone = vec![];
        for name in std::mem::take(&mut *self.half_received.lock()) {
            match self.destroy_dataset(&name) {
                Ok(()) => gone.push(name),
                Err(DatasetError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(gone)
    }
}
