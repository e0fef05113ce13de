//! Requests answered by opening pools for one command.

mod changes;
mod pools;

pub use changes::LocalChanges;
pub use pools::LocalPools;
