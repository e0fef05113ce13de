//! Messages: a [`Request`] one way, [`ReplyMessage`]s the other.

use crate::StreamError;
use millpond_control::{Failure, Request, Rights};
use serde::{Deserialize, Serialize};

/// The part of a request before its parameters. Parameters are decoded only if the caller may make the request.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Head {
    /// The request's name, with `org.millpond.`.
    pub method: String,
}

impl Head {
    /// Who may make the request.
    #[must_use]
    pub fn rights(&self) -> Rights {
        Request::rights_of(&self.method)
    }
}

/// One reply. `value` is the reply or a list of replies; `more` says that another message follows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplyMessage {
    /// The reply, or some replies of a stream.
    #[serde(default, rename = "parameters")]
    pub value: serde_json::Value,
    /// Whether another message follows.
    #[serde(
        default,
        rename = "continues",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub more: bool,
    /// The failure, if the request failed.
    #[serde(default, rename = "error", skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// Decodes only a request's name. Parameters are skipped and not kept in memory.
///
/// # Errors
/// [`StreamError::Malformed`].
pub fn decode_head(bytes: &[u8]) -> Result<Head, StreamError> {
    serde_json::from_slice(bytes).map_err(|error| StreamError::Malformed(error.to_string()))
}

/// Decodes a request. The decoder limits nesting to 128 levels.
///
/// # Errors
/// [`StreamError::Malformed`].
pub fn decode_request(bytes: &[u8]) -> Result<Request, StreamError> {
    serde_json::from_slice(bytes).map_err(|error| StreamError::Malformed(error.to_string()))
}

/// Decodes a reply.
///
/// # Errors
/// [`StreamError::Malformed`].
pub fn decode_reply(bytes: &[u8]) -> Result<ReplyMessage, StreamError> {
    serde_json::from_slice(bytes).map_err(|error| StreamError::Malformed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_control::{
        ChangeError, DatasetChange, DatasetQuery, PoolChange, SearchPaths, Value, Wanted,
    };
    use millpond_dataset::Refusal;
    use millpond_dataset::properties::Kinds;
    use proptest::prelude::*;

    fn again(request: &Request) -> Request {
        decode_request(&serde_json::to_vec(request).unwrap()).unwrap()
    }

    #[test]
    fn requests_decode_to_what_was_encoded() {
        let change = PoolChange::Dataset(DatasetChange::Snapshot {
            names: vec!["tank@é\0".into()],
            properties: vec![("a:b".into(), Value::Number(u64::MAX))],
        });
        let request = Request::Change {
            pool: "tank".into(),
            changes: vec![change, PoolChange::Sync { forced: false }],
            command: "zfs snapshot".into(),
        };
        assert_eq!(again(&request), request);
        assert_eq!(again(&Request::Pools {}), Request::Pools {});
    }

    #[test]
    fn a_request_has_the_documented_form() {
        let text = br#"{"method":"org.millpond.Pool","parameters":{"name":"tank"}}"#;
        let request = Request::Pool {
            name: "tank".into(),
        };
        assert_eq!(decode_request(text).unwrap(), request);
        assert_eq!(serde_json::to_vec(&request).unwrap(), text);
        let text = br#"{"method":"org.millpond.Importable","parameters":{"places":{"paths":["/images"],"cache_file":null}}}"#;
        let search = SearchPaths {
            paths: vec!["/images".into()],
            cache_file: None,
        };
        let request = Request::Importable { search };
        assert_eq!(decode_request(text).unwrap(), request);
        assert_eq!(serde_json::to_vec(&request).unwrap(), text);
    }

    #[test]
    fn failures_decode_to_their_portable_form() {
        let whole = Failure::Change(ChangeError::Refused {
            name: "tank/a".into(),
            why: Refusal::SnapshotExists("s".into()),
        });
        let reply = ReplyMessage {
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
        let portable = Failure::Change(own).portable();
        assert_eq!(
            portable,
            Failure::Change(ChangeError::Failed("no sense".into()))
        );
    }

    #[test]
    fn deep_nesting_is_an_error() {
        let mut bytes = br#"{"method":"org.millpond.Pool","parameters":{"name":"#.to_vec();
        bytes.extend(std::iter::repeat_n(b'[', 1 << 20));
        assert!(decode_request(&bytes).is_err());
        let mut bytes = br#"{"parameters":"#.to_vec();
        bytes.extend(std::iter::repeat_n(b'[', 1 << 20));
        assert!(decode_reply(&bytes).is_err());
    }

    #[test]
    fn the_rights_of_a_request_are_those_of_its_name() {
        let text = |name: &str| format!(r#"{{"method":"{name}","parameters":7}}"#);
        for name in Request::NAMES {
            // It is a known name: the error must be about the parameters.
            let error = decode_request(text(name).as_bytes())
                .unwrap_err()
                .to_string();
            assert!(!error.contains("unknown variant"), "{error}");
            let head = decode_head(text(name).as_bytes()).unwrap();
            assert_eq!(head.rights(), Request::rights_of(name));
        }
        let open_to_all: Vec<_> = Request::NAMES
            .iter()
            .filter(|name| Request::rights_of(name) == Rights::Anyone)
            .map(|name| name.trim_start_matches("org.millpond."))
            .collect();
        let expected = [
            "Pools",
            "Pool",
            "VdevProperties",
            "Holds",
            "Permissions",
            "SpaceByOwner",
            "Mounts",
            "DeleteQueue",
            "About",
            "ArcStatistics",
            "ImportProgress",
            "ChangeProgress",
            "Tunables",
            "Datasets",
        ];
        assert_eq!(open_to_all, expected);
        assert_eq!(Request::rights_of("org.millpond.Pools "), Rights::Owner);
        assert!(decode_head(br#"{"parameters":{"method":"org.millpond.Pools"}}"#).is_err());
    }

    proptest! {
        #[test]
        fn hostile_bytes_give_errors(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(decode_request(&bytes).is_err());
            let _ = decode_reply(&bytes);
        }

        #[test]
        fn a_damaged_request_is_an_error_or_another_request(at in 0usize..80, byte in any::<u8>()) {
            let request = Request::Datasets { query: DatasetQuery {
                root: "tank".into(), depth: 1, kinds: Kinds::ALL, wanted: Wanted::All,
                names_damaged: false,
            }};
            let mut bytes = serde_json::to_vec(&request).unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = decode_request(&bytes);
        }
    }
}
