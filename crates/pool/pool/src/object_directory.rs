//! The object directory of the MOS, and the objects that opening a pool reads through it.
//!
//! Page `docs/format/pool-directory.md`.

use crate::PoolError;
use crate::error::Reading;
use crate::features::Features;
use crate::packed::read_packed_list;
use millpond_checksum::Salt;
use millpond_env::sync::Arc;
use millpond_nvlist::NvList;
use millpond_object::ObjectSetView;
use millpond_ondisk::pool_directory::{OBJECT_DIRECTORY, key};
use millpond_ondisk::{DecodeError, ObjectId, PoolVersion};
use millpond_zap::{Zap, ZapValue};

const WHAT: &str = "object directory";

/// The object directory of a committed state.
#[derive(Debug)]
pub(crate) struct ObjectDirectory {
    mos: Arc<ObjectSetView>,
    table: Zap,
}

impl ObjectDirectory {
    pub(crate) fn open(mos: &Arc<ObjectSetView>) -> Result<Self, PoolError> {
        let object = mos.object(OBJECT_DIRECTORY).reading(WHAT)?;
        Ok(Self {
            mos: Arc::clone(mos),
            table: Zap::open(object).reading(WHAT)?,
        })
    }
    pub(crate) fn value(&self, key: &str) -> Result<Option<ZapValue>, PoolError> {
        self.table.lookup(key.as_bytes()).reading(WHAT)
    }
    /// The names of all entries, in hash order.
    pub(crate) fn names(&self) -> Result<Vec<String>, PoolError> {
        let names = self.table.iter().map(|entry| {
            let name = entry.reading(WHAT)?.name;
            Ok(String::from_utf8_lossy(&name).into_owned())
        });
        names.collect()
    }
    pub(crate) fn number(&self, key: &str) -> Result<Option<u64>, PoolError> {
        Ok(self.value(key)?.and_then(|value| value.first()))
    }
    /// The object that an entry names; `None` if it is absent or 0.
    pub(crate) fn find_object(&self, key: &str) -> Result<Option<ObjectId>, PoolError> {
        let id = self.number(key)?.filter(|id| *id != 0);
        Ok(id.map(ObjectId))
    }
    /// The object of an entry that every pool has.
    pub(crate) fn object(&self, key: &str) -> Result<ObjectId, PoolError> {
        self.find_object(key)?.ok_or_else(|| PoolError::NoEntry {
            key: key.to_owned(),
        })
    }

    pub(crate) fn config(&self) -> Result<NvList, PoolError> {
        read_packed_list(&self.mos, self.object(key::CONFIG)?, "configuration")
    }
    /// The features of a pool of this version.
    pub(crate) fn features(&self, version: u64) -> Result<Features, PoolError> {
        if !PoolVersion(version).has_features() {
            return Ok(Features::default());
        }
        Features::load(
            &self.mos,
            self.object(key::FEATURES_FOR_READ)?,
            self.object(key::FEATURES_FOR_WRITE)?,
            self.object(key::FEATURE_DESCRIPTIONS)?,
            self.find_object(key::FEATURE_ENABLED_TXG)?,
        )
    }
    /// The configurations of spares or cache devices. `key` is also the name in the list.
    pub(crate) fn auxiliaries(&self, key: &'static str) -> Result<Vec<NvList>, PoolError> {
        let Some(id) = self.find_object(key)? else {
            return Ok(vec![]);
        };
        let list = read_packed_list(&self.mos, id, key)?;
        let devices = list.opt_list_array(key).ok().flatten();
        Ok(devices.unwrap_or(&[]).to_vec())
    }
    pub(crate) fn salt(&self) -> Result<Option<Salt>, PoolError> {
        let what = "checksum salt";
        let Some(value) = self
            .table
            .lookup(key::CHECKSUM_SALT.as_bytes())
            .reading(what)?
        else {
            return Ok(None);
        };
        let bytes: Result<[u8; 32], _> = value.bytes.as_slice().try_into();
        let salt = bytes.map_err(|_| DecodeError::new(what, "not 32 bytes", 0));
        salt.map(|salt| Some(Salt(salt))).reading(what)
    }
}
