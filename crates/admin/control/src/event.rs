//! Events.

/// A value of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum EventValue {
    /// A number.
    Number(u64),
    /// Numbers.
    Numbers(Vec<u64>),
    /// A string.
    Text(String),
}

/// An event of a pool since the daemon started.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Event {
    /// Its sequence number. Numbers are consecutive.
    pub id: u64,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Its class, `sysevent.fs.zfs.pool_create`.
    pub class: String,
    /// The pool.
    pub pool: String,
    /// Its values, in order.
    pub values: Vec<(String, EventValue)>,
}
