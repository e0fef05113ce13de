//! Records of the pool's history.

/// A value in the arguments of a recorded call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum HistoryValue {
    /// The name alone says all.
    Flag,
    /// A number.
    Number(u64),
    /// A signed number.
    Signed(i64),
    /// True or false.
    Bool(bool),
    /// Text.
    Text(String),
    /// Numbers.
    Numbers(Vec<u64>),
    /// Texts.
    Texts(Vec<String>),
    /// Names and values; at most 64 deep.
    List(Vec<(String, HistoryValue)>),
    /// Lists.
    Lists(Vec<Vec<(String, HistoryValue)>>),
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum HistoryEvent {
    /// A person's command, arguments joined by blanks.
    Command(String),
    /// Something that the engine did.
    Internal {
        /// Its name: `create`, `scan setup`, …
        event: String,
        /// The dataset concerned: its name and object number.
        dataset: Option<(String, u64)>,
        /// Details.
        text: String,
    },
    /// A call to the engine.
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

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HistoryRecord {
    /// Seconds since 1970.
    pub time_s: u64,
    /// The txg, of internal records.
    pub txg: Option<u64>,
    /// How long it took, where recorded.
    pub elapsed_ms: Option<u64>,
    /// Number of the user, where recorded.
    pub uid: Option<u64>,
    /// Name of the machine, where recorded.
    pub host: Option<String>,
    /// The zone (Linux writes `linux`).
    pub zone: Option<String>,
    /// What happened.
    pub event: HistoryEvent,
}
