//! Calls and replies. A method's name is `org.millpond.` followed by the variant's name.

use crate::StreamError;
use crate::secret::Secret;
use millpond_control::{
    ChangeError, ChangeFailure, ControlError, DatasetQuery, DeviceProblem, ImportError,
    ImportRequest, KeyProblem, MountProblem, MountRequest, NewDevices, NewPoolRequest, PoolChange,
    SearchPaths,
};
use millpond_engine::OwnerKind;
use serde::{Deserialize, Serialize};

/// A call with its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "method", content = "parameters")]
#[allow(missing_docs)] // the requests of `millpond_control as control`, with their arguments
pub enum Call {
    #[serde(rename = "org.millpond.Pools")]
    Pools {},
    #[serde(rename = "org.millpond.Pool")]
    Pool { name: String },
    #[serde(rename = "org.millpond.VdevProperties")]
    VdevProperties { pool: String, guid: u64 },
    /// The answer is a list in several replies.
    #[serde(rename = "org.millpond.Datasets")]
    Datasets { query: DatasetQuery },
    /// The answer is a list in several replies.
    #[serde(rename = "org.millpond.History")]
    History { pool: String },
    #[serde(rename = "org.millpond.Holds")]
    Holds { snapshot: String },
    #[serde(rename = "org.millpond.SpaceByOwner")]
    SpaceByOwner { dataset: String, owners: OwnerKind },
    #[serde(rename = "org.millpond.Device")]
    Device { path: String },
    #[serde(rename = "org.millpond.CreatePool")]
    CreatePool {
        request: NewPoolRequest,
        command: String,
    },
    #[serde(rename = "org.millpond.CheckAdd")]
    CheckAdd { pool: String, devices: NewDevices },
    #[serde(rename = "org.millpond.Change")]
    Change {
        pool: String,
        changes: Vec<PoolChange>,
        command: String,
    },
    #[serde(rename = "org.millpond.ClearLabels")]
    ClearLabels { path: String, force: bool },
    #[serde(rename = "org.millpond.Importable")]
    Importable { places: SearchPaths },
    #[serde(rename = "org.millpond.Import")]
    Import {
        request: ImportRequest,
        command: String,
    },
    #[serde(rename = "org.millpond.Mounts")]
    Mounts {},
    #[serde(rename = "org.millpond.Mount")]
    Mount {
        dataset: String,
        request: MountRequest,
    },
    #[serde(rename = "org.millpond.Unmount")]
    Unmount { dataset: String, force: bool },
    #[serde(rename = "org.millpond.LoadKey")]
    LoadKey {
        dataset: String,
        key: Secret,
        only_check: bool,
    },
    #[serde(rename = "org.millpond.UnloadKey")]
    UnloadKey { dataset: String },
    #[serde(rename = "org.millpond.Events")]
    Events { after: u64 },
    #[serde(rename = "org.millpond.ClearEvents")]
    ClearEvents {},
    /// Asks for the daemon's version, process and user; the answer is an `About`.
    #[serde(rename = "org.millpond.About")]
    About {},
}

impl Call {
    /// Whether the call may change something, or may read data that only the daemon's user may see.
    #[must_use]
    pub fn needs_right(&self) -> bool {
        !matches!(
            self,
            Self::Pools {}
                | Self::Pool { .. }
                | Self::VdevProperties { .. }
                | Self::Datasets { .. }
                | Self::Holds { .. }
                | Self::SpaceByOwner { .. }
                | Self::Mounts {}
                | Self::About {}
        )
    }
}

/// The names of the methods that are allowed to every user; see [`Call::needs_right`].
const LOOKING: [&str; 8] = [
    "Pools",
    "Pool",
    "VdevProperties",
    "Datasets",
    "Holds",
    "SpaceByOwner",
    "Mounts",
    "About",
];

/// The part of a call before its parameters. Parameters are decoded only if the caller may use the method.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Head {
    /// The method's full name, with `org.millpond.`.
    pub method: String,
}

impl Head {
    /// The method's name without the common prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        let name = self.method.strip_prefix("org.millpond.");
        name.unwrap_or_default()
    }

    /// Like [`Call::needs_right`]. Unknown methods also need the right.
    #[must_use]
    pub fn needs_right(&self) -> bool {
        !LOOKING.contains(&self.name())
    }
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the errors of the requests
pub enum Failure {
    Control(ControlError),
    Change(ChangeError),
    ChangeFailure(ChangeFailure),
    Device(DeviceProblem),
    Import(ImportError),
    Mount(MountProblem),
    Unmount(String, MountProblem),
    Key(KeyProblem),
    /// The call is invalid, for this reason.
    Call(String),
}

/// One reply. `value` is the method's result; `more` says that another reply follows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reply {
    /// The method's result.
    #[serde(default, rename = "parameters")]
    pub value: serde_json::Value,
    /// Whether another reply follows.
    #[serde(
        default,
        rename = "continues",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub more: bool,
    /// The failure, if the call failed.
    #[serde(default, rename = "error", skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// What the daemon reports about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The daemon's version.
    pub version: String,
    /// The daemon's process id.
    pub process: u32,
    /// The daemon's uid.
    pub user: u32,
}

/// Decodes only a call's method. Parameters are skipped and not kept in memory.
///
/// # Errors
/// [`StreamError::Malformed`].
pub fn decode_head(bytes: &[u8]) -> Result<Head, StreamError> {
    serde_json::from_slice(bytes).map_err(|error| StreamError::Malformed(error.to_string()))
}

/// Decodes a call. The decoder limits nesting to 128 levels.
///
/// # Errors
/// [`StreamError::Malformed`].
pub fn decode_call(bytes: &[u8]) -> Result<Call, StreamError> {
    serde_json::from_slice(bytes).map_err(|error| StreamError::Malformed(error.to_string()))
}

/// Decodes a reply.
///
/// # Errors
/// [`StreamError::Malformed`].
pub fn decode_reply(bytes: &[u8]) -> Result<Reply, StreamError> {
    serde_json::from_slice(bytes).map_err(|error| StreamError::Malformed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_control::DatasetChange;
    use millpond_engine::Refusal;
    use proptest::prelude::*;

    fn again(call: &Call) -> Call {
        decode_call(&serde_json::to_vec(call).unwrap()).unwrap()
    }

    #[test]
    fn calls_come_as_they_went() {
        let change = PoolChange::Dataset(DatasetChange::Snapshot {
            names: vec!["tank@é\0".into()],
            properties: vec![("a:b".into(), millpond_control::Value::Number(u64::MAX))],
        });
        let call = Call::Change {
            pool: "tank".into(),
            changes: vec![change, PoolChange::Sync],
            command: "zfs snapshot".into(),
        };
        assert_eq!(again(&call), call);
        assert_eq!(again(&Call::Pools {}), Call::Pools {});
    }

    #[test]
    fn a_call_has_the_form_that_the_page_shows() {
        let text = br#"{"method":"org.millpond.Pool","parameters":{"name":"tank"}}"#;
        let call = Call::Pool {
            name: "tank".into(),
        };
        assert_eq!(decode_call(text).unwrap(), call);
        assert_eq!(serde_json::to_vec(&call).unwrap(), text);
    }

    #[test]
    fn failures_come_as_they_went_but_for_texts_of_the_program() {
        let whole = Failure::Change(ChangeError::Refused {
            name: "tank/a".into(),
            why: Refusal::SnapshotExists("s".into()),
        });
        let reply = Reply {
            value: serde_json::Value::Null,
            more: false,
            failure: Some(whole),
        };
        let bytes = serde_json::to_vec(&reply).unwrap();
        assert_eq!(decode_reply(&bytes).unwrap(), reply);
        let own = ChangeError::Refused {
            name: "tank/a".into(),
            why: Refusal::Invalid("no sense"),
        };
        assert_eq!(own.portable(), ChangeError::Failed("no sense".into()));
    }

    #[test]
    fn nesting_without_end_is_an_error() {
        let mut bytes = br#"{"method":"org.millpond.Pool","parameters":{"name":"#.to_vec();
        bytes.extend(std::iter::repeat_n(b'[', 1 << 20));
        assert!(decode_call(&bytes).is_err());
        let mut bytes = br#"{"parameters":"#.to_vec();
        bytes.extend(std::iter::repeat_n(b'[', 1 << 20));
        assert!(decode_reply(&bytes).is_err());
    }

    #[test]
    fn looking_needs_no_right_and_changing_does() {
        assert!(!Call::Pools {}.needs_right());
        assert!(Call::ClearEvents {}.needs_right());
        let call = Call::UnloadKey {
            dataset: "a".into(),
        };
        assert!(call.needs_right());
    }

    #[test]
    fn methods_need_the_same_rights_by_name() {
        let calls = [
            Call::Pools {},
            Call::Pool { name: "a".into() },
            Call::Holds {
                snapshot: "a".into(),
            },
            Call::Mounts {},
            Call::About {},
            Call::History { pool: "a".into() },
            Call::Events { after: 0 },
            Call::ClearEvents {},
            Call::Device { path: "a".into() },
        ];
        for call in calls {
            let head = decode_head(&serde_json::to_vec(&call).unwrap()).unwrap();
            assert_eq!(head.needs_right(), call.needs_right(), "{call:?}");
        }
        for name in LOOKING {
            let text = format!(r#"{{"method":"org.millpond.{name}","parameters":7}}"#);
            assert!(!decode_head(text.as_bytes()).unwrap().needs_right());
            // It is the name of a method: the error must be about the parameters.
            let error = decode_call(text.as_bytes()).unwrap_err().to_string();
            assert!(!error.contains("unknown variant"), "{error}");
        }
        assert!(decode_head(br#"{"parameters":{"method":"org.millpond.Pools"}}"#).is_err());
    }

    proptest! {
        #[test]
        fn hostile_bytes_give_errors(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(decode_call(&bytes).is_err());
            let _ = decode_reply(&bytes);
        }

        #[test]
        fn a_damaged_call_is_an_error_or_another_call(at in 0usize..80, byte in any::<u8>()) {
            let call = Call::Datasets { query: DatasetQuery {
                root: "tank".into(), depth: 1,
                kinds: millpond_kinds(), wanted: millpond_control::Wanted::All,
            }};
            let mut bytes = serde_json::to_vec(&call).unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = decode_call(&bytes);
        }
    }

    fn millpond_kinds() -> millpond_dataset::properties::Kinds {
        millpond_dataset::properties::Kinds::ALL
    }
}
