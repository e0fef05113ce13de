//! Removes unfinished receives left over from a system crash.
//!
//! Page `docs/format/dsl-dataset.md`, "Half received".

use crate::DatasetError;
use crate::datasets::Datasets;

impl Datasets {
    /// Destroys the datasets with an unfinished receive that were found when the pool was opened and that
    /// no stream can resume. Returns their names.
    ///
    /// Such datasets are unusable and hidden. Those that a stream can resume stay, hidden. Call this after
    /// the logs that were found have been processed. A dataset that cannot be destroyed stays and is tried
    /// again when the pool is opened next.
    ///
    /// # Errors
    /// If the pool is suspended or cannot be read.
    pub fn destroy_half_received(&self) -> Result<Vec<String>, DatasetError> {
        let mut gone = vec![];
        let names = std::mem::take(&mut *self.half_received.lock());
        for name in names {
            match self.destroy_dataset(&name) {
                Ok(()) => gone.push(name),
                Err(DatasetError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(gone)
    }
}
