//! (being written)
/// The unwrapped keys of one dataset family.
#[derive(Debug)]
pub struct DatasetKey {}
