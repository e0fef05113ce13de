//! Records of a pool's history.

/// A value in the arguments of a recorded ioctl.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum HistoryValue {
    /// A name without a value.
    Flag,
    /// A number.
    Number(u64),
    /// A signed number.
    Signed(i64),
    /// True or false.
    Bool(bool),
    /// A string.
    Text(String),
    /// Numbers.
    Numbers(Vec<u64>),
    /// Strings.
    Texts(Vec<String>),
    /// Name/value pairs, nested at most 64 deep.
    List(Vec<(String, HistoryValue)>),
    /// A list of lists of name/value pairs.
    Lists(Vec<Vec<(String, HistoryValue)>>),
}

/// The kind and content of a history record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum HistoryEvent {
    /// A user's command line, arguments joined by spaces.
    Command(String),
    /// An internal event of the engine.
    Internal {
        /// Its name: `create`, `scan setup`, …
        event: String,
        /// The dataset concerned: its name and object id.
        dataset: Option<(String, u64)>,
        /// Details.
        text: String,
    },
    /// An ioctl.
    Call {
        /// Its name.
        name: String,
        /// Its arguments, if recorded.
        input: Option<Vec<(String, HistoryValue)>>,
        /// Its results, if recorded.
        output: Option<Vec<(String, HistoryValue)>>,
        /// Its error number, if it failed.
        errno: Option<i64>,
    },
}

/// A history record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HistoryRecord {
    /// Seconds since 1970.
    pub time_s: u64,
    /// The txg, for internal events.
    pub txg: Option<u64>,
    /// Duration in milliseconds, if recorded.
    pub elapsed_ms: Option<u64>,
    /// The uid, if recorded.
    pub uid: Option<u64>,
    /// The host name, if recorded.
    pub host: Option<String>,
    /// The zone (Linux writes `linux`).
    pub zone: Option<String>,
    /// What happened.
    pub event: HistoryEvent,
}
