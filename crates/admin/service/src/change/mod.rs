//! Changes of open pools.

pub(crate) mod apply;
mod attach;
pub(crate) mod checks;
pub(crate) mod create;
pub(crate) mod discard;
mod error;
mod keys;
mod set;
mod split;

pub(crate) use error::{change_error, device_problem};
pub(crate) use keys::root_key;
