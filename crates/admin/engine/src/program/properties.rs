//! `zfs.get_prop`, `zfs.exists` and `zfs.debug`, and properties that a program changes.

use super::Running;
use super::arguments::Signature;
use super::submodules::array;
use millpond_dataset::properties::table::DATASET_PROPERTIES;
use millpond_dataset::properties::{
    DatasetKind, Property, PropertyName, QuotaSubject, Wanted, by_name,
};
use millpond_dataset::{
    Dataset, DatasetError, ProgramDataset, PropertyReader, PropertySource, PropertyValue, Refused,
};
use millpond_lua::{Error as LuaError, Lua, Value};
use millpond_pool::properties::Edit;

const EXISTS: Signature = Signature {
    name: "zfs.exists",
    strings: &["dataset"],
    flags: &[],
};
const GET_PROP: Signature = Signature {
    name: "zfs.get_prop",
    strings: &["dataset", "property"],
    flags: &[],
};
const DEBUG: Signature = Signature {
    name: "zfs.debug",
    strings: &["debug string"],
    flags: &[],
};

/// Numbers of programs have a sign: large ones become negative.
pub(super) fn number(number: u64) -> Value {
    Value::Integer(number.cast_signed())
}

/// The names of the native properties that datasets of a kind have.
pub(super) fn of_kind(kind: ProgramDataset) -> impl Iterator<Item = &'static str> {
    let kind = match kind {
        ProgramDataset::FileSystem => DatasetKind::Filesystem,
        ProgramDataset::Volume => DatasetKind::Volume,
        ProgramDataset::Snapshot => DatasetKind::Snapshot,
    };
    let all = DATASET_PROPERTIES.iter();
    let own = all.filter(move |property| property.kinds.contains(kind));
    own.map(|property| property.shape.name)
}

impl Running<'_> {
    /// Ends a program that names a dataset of another pool.
    pub(super) fn check_pool(&self, lua: &Lua<'_>, name: &str) -> Result<(), LuaError> {
        let pool = name.split(['/', '@', '#']).next().unwrap_or(name);
        match pool == self.pool {
            true => Ok(()),
            false => {
                let text = format!("dataset '{name}' is not in the target pool '{}'", self.pool);
                Err(lua.error(text))
            }
        }
    }

    /// What a dataset is. Ends a program that names one that is not there.
    pub(super) fn kind_of(&self, lua: &Lua<'_>, name: &str) -> Result<ProgramDataset, LuaError> {
        self.check_pool(lua, name)?;
        let kind = self.tasks.kind(name);
        let kind = kind.map_err(|error| lua.error(error.to_string()))?;
        kind.ok_or_else(|| lua.error(format!("dataset '{name}' does not exist")))
    }
}

/// The functions, with their names in the table `zfs`.
pub(super) fn functions<'r>(
    lua: &mut Lua<'r>,
    running: &'r Running<'r>,
) -> Result<[(&'static str, Value); 3], LuaError> {
    let exists = lua.function(EXISTS.name, move |lua, values| {
        let given = EXISTS.read(lua, values)?;
        let name = &given.strings[0];
        running.check_pool(lua, name)?;
        let found = running.tasks.kind(name);
        let found = found.map_err(|error| lua.error(error.to_string()))?;
        Ok(vec![Value::Boolean(found.is_some())])
    })?;
    let get_prop = lua.function(GET_PROP.name, move |lua, values| {
        let given = GET_PROP.read(lua, values)?;
        get(lua, running, &given.strings[0], &given.strings[1])
    })?;
    let debug = lua.function(DEBUG.name, move |lua, values| {
        let given = DEBUG.read(lua, values)?;
        tracing::info!(pool = %running.pool, text = %given.strings[0], "a channel program says");
        Ok(vec![])
    })?;
    Ok([("exists", exists), ("get_prop", get_prop), ("debug", debug)])
}

/// The value and the source of a property; two times nil if the dataset does not have it.
fn get(
    lua: &mut Lua<'_>,
    running: &Running<'_>,
    name: &str,
    property: &str,
) -> Result<Vec<Value>, LuaError> {
    running.kind_of(lua, name)?;
    let failed = |lua: &Lua<'_>, error: DatasetError| lua.error(error.to_string());
    let wanted = by_name(property)
        .ok_or_else(|| lua.error(format!("property '{property}' does not exist")))?;
    if let PropertyName::User(wanted) = &wanted {
        let all = running.tasks.user_properties(name);
        let all = all.map_err(|error| failed(lua, error))?;
        let found = all.into_iter().find(|(name, ..)| name == wanted);
        let Some((_, value, source)) = found else {
            return Ok(vec![Value::Nil, Value::Nil]);
        };
        let (value, source) = (
            lua.string(value.as_bytes())?,
            lua.string(source.as_bytes())?,
        );
        return Ok(vec![value, source]);
    }
    if let PropertyName::Native(native) = &wanted
        && native.shape.name == "mounted"
    {
        return Ok(vec![Value::Nil, Value::Nil]);
    }
    let found = read(running, name, &wanted).map_err(|error| failed(lua, error))?;
    match found.filter(|found| has_value(&wanted, found)) {
        Some(found) => shown(lua, name, &wanted, &found),
        None => Ok(vec![Value::Nil, Value::Nil]),
    }
}

/// Whether a value tells something: not that there is no quota of an owner, or that nothing is counted.
fn has_value(wanted: &PropertyName, found: &Property) -> bool {
    let value = match &found.value {
        Some(PropertyValue::Number(value)) => *value,
        _ => return true,
    };
    match wanted {
        PropertyName::PerOwner {
            subject: QuotaSubject::BytesLimit | QuotaSubject::ObjectsLimit,
            ..
        } => value != 0,
        PropertyName::Native(native) => {
            let is_count = matches!(native.shape.name, "filesystem_count" | "snapshot_count");
            !is_count || value != u64::MAX
        }
        _ => true,
    }
}

/// Reads a native property. These come from the state before the program: what it changed is not in them.
fn read(running: &Running<'_>, name: &str, wanted: &PropertyName) -> Refused<Option<Property>> {
    let view = running.before;
    let dataset = Dataset::find(view.inner(), name)?;
    let mut reader = PropertyReader::new(view.inner());
    if let Ok(Some(key)) = view.key_of(dataset.directory()) {
        reader.add_key(dataset.directory(), key);
    }
    let found = reader.properties(&dataset, Wanted::Named(std::slice::from_ref(wanted)))?;
    Ok(found.into_iter().next())
}

fn shown(
    lua: &mut Lua<'_>,
    name: &str,
    wanted: &PropertyName,
    found: &Property,
) -> Result<Vec<Value>, LuaError> {
    let shape = match wanted {
        PropertyName::Native(native) => Some(&native.shape),
        _ => None,
    };
    let value = match &found.value {
        None => Value::Nil,
        Some(PropertyValue::Text(text)) if shape.is_some_and(|shape| shape.name == "clones") => {
            let names: Vec<String> = text.split(',').map(str::to_owned).collect();
            array(lua, &names)?
        }
        Some(PropertyValue::Text(text)) => lua.string(text.as_bytes())?,
        Some(PropertyValue::Number(value)) => match shape.and_then(|shape| shape.word_of(*value)) {
            Some(word) => lua.string(word.as_bytes())?,
            None => number(*value),
        },
    };
    let source = match &found.source {
        // What cannot be set has no place where it was set.
        _ if shape.is_some_and(|shape| shape.edit == Edit::ReadOnly) => None,
        PropertySource::Local | PropertySource::Received => Some(name),
        PropertySource::Inherited(from) => Some(from.as_str()),
        PropertySource::Default => Some("default"),
        PropertySource::None => None,
    };
    let source = match (source, &value) {
        (Some(source), value) if *value != Value::Nil => lua.string(source.as_bytes())?,
        _ => Value::Nil,
    };
    Ok(vec![value, source])
}
