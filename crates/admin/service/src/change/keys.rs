//! Keys of new and changed encryption roots, from requests.

use super::apply::values;
use millpond_control::properties::PropertyName;
use millpond_control::properties::by_name;
use millpond_control::{ChangeError, Secret, Value, Values};
use millpond_engine::{Creator, KeyFormat, NewDataset, Pool, RootKey};
use millpond_env::Env;
use millpond_ondisk::ObjectSetKind;

/// The key that the properties of a request describe. `None` without a key or a key format.
pub(crate) fn root_key(
    env: &Env,
    properties: &Values,
    key: Option<&Secret>,
) -> Result<Option<RootKey>, ChangeError> {
    let find = |wanted: &str| {
        let mut pairs = properties.iter();
        pairs
            .find(|(name, _)| name == wanted)
            .map(|(_, value)| value)
    };
    let (Some(key), Some(format)) = (key, find("keyformat")) else {
        return Ok(None);
    };
    let format = number("keyformat", format).and_then(KeyFormat::from_number);
    let Some(format) = format.filter(|format| *format != KeyFormat::None) else {
        return Ok(None);
    };
    let location = match find("keylocation") {
        Some(Value::Text(place)) if place != "none" => place,
        _ => "prompt",
    };
    let rounds = find("pbkdf2iters").and_then(|value| number("pbkdf2iters", value));
    let derived = RootKey::derive(env, format, location, rounds, key.bytes());
    derived
        .map(Some)
        .map_err(|error| ChangeError::Failed(error.to_string()))
}

/// Creates a dataset: with a key of its own if the properties ask for one.
pub(crate) fn create_dataset(
    pool: &Pool,
    name: &str,
    kind: ObjectSetKind,
    (properties, key): (&Values, Option<&Secret>),
    creator: Option<&Creator>,
) -> Result<(), ChangeError> {
    let own = root_key(pool.inner().env(), properties, key)?;
    let properties = values(properties);
    pool.datasets().create_dataset(&NewDataset {
        name,
        kind,
        properties: &properties,
        root_key: own.as_ref(),
        creator,
    })?;
    Ok(())
}

/// The number of a value, which may be a word or digits.
fn number(property: &str, value: &Value) -> Option<u64> {
    match (value, by_name(property)) {
        (Value::Number(number), _) => Some(*number),
        (Value::Text(text), Some(PropertyName::Native(known))) => {
            known.shape.number_of(text).or_else(|| text.parse().ok())
        }
        (Value::Text(text), _) => text.parse().ok(),
    }
}
