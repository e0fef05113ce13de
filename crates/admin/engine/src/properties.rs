//! Properties of pools and datasets, and space by owner.
//!
//! Page `docs/format/properties.md`.

use crate::{Dataset, Error, View};
use millpond_dataset::properties::{
    DATASET_PROPERTIES, OwnerKind, OwnerSpace, Property, PropertyReader, PropertyValue, Wanted,
};
use millpond_dataset::{Bookmark, DatasetError};
use millpond_ondisk::ObjectId;
use millpond_pool::properties::table::POOL_PROPERTIES;

/// A property as `zfs get -Hp` and `zpool get -Hp` print it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiteralProperty {
    /// The full name.
    pub name: String,
    /// The value as text or digits; `-` if there is none.
    pub value: String,
    /// `local`, `default`, `inherited from …`, `received`, `-`.
    pub source: String,
}

impl View {
    /// All properties that `zpool get all` lists: native properties, user properties, features.
    ///
    /// # Errors
    /// If an object that a property is computed from cannot be read.
    pub fn literal_properties(&self) -> Result<Vec<LiteralProperty>, Error> {
        let inner = self.inner();
        let mut properties = inner.properties()?;
        for property in &mut properties {
            if property.name == "bootfs"
                && let Some(PropertyValue::Number(id)) = property.value
            {
                let dataset = self.dataset_by_id(ObjectId(id)).ok();
                property.value = dataset.map(|found| PropertyValue::Text(found.name().to_owned()));
            }
        }
        properties.extend(inner.feature_properties());
        let shape = |name: &str| POOL_PROPERTIES.iter().find(|shape| shape.name == name);
        Ok(properties
            .into_iter()
            .map(|property| LiteralProperty {
                value: property.literal(shape(&property.name)),
                source: property.source.word(),
                name: property.name,
            })
            .collect())
    }
}

impl Dataset {
    /// All properties that `zfs get all` lists. To read many datasets of one pool, use one
    /// [`PropertyReader`]: it is cheaper.
    ///
    /// # Errors
    /// If an object that a property is computed from cannot be read.
    pub fn literal_properties(&self) -> Result<Vec<LiteralProperty>, Error> {
        let mut reader = PropertyReader::new(self.pool().inner());
        if let Some(key) = self.pool().key_of(self.inner().directory())? {
            reader.add_key(self.inner().directory(), key);
        }
        let properties = reader.properties(self.inner(), Wanted::All)?;
        Ok(properties.into_iter().map(literal).collect())
    }

    /// All properties of a bookmark of this dataset. `name` is the part after `#`.
    ///
    /// # Errors
    /// If there is no such bookmark, or it cannot be read.
    pub fn literal_bookmark_properties(&self, name: &str) -> Result<Vec<LiteralProperty>, Error> {
        let bookmarks = self.bookmarks()?;
        let is_wanted = |bookmark: &&Bookmark| bookmark.name == name;
        let bookmark = bookmarks.iter().find(is_wanted).ok_or_else(|| {
            let name = format!("{}#{name}", self.name());
            DatasetError::NotFound { name }
        })?;
        let mut reader = PropertyReader::new(self.pool().inner());
        let properties = reader.bookmark_properties(bookmark, Wanted::All)?;
        Ok(properties.into_iter().map(literal).collect())
    }

    /// Usage and quota of each user, group or project, in the order of their ids.
    ///
    /// # Errors
    /// If the dataset is locked or a table cannot be read.
    pub fn space_by_owner(&self, owners: OwnerKind) -> Result<Vec<OwnerSpace>, Error> {
        let key = self.pool().key_of(self.inner().directory())?;
        Ok(self.inner().space_by_owner(owners, key)?)
    }
}

fn literal(property: Property) -> LiteralProperty {
    let row = DATASET_PROPERTIES
        .iter()
        .find(|row| row.shape.name == property.name);
    LiteralProperty {
        value: property.literal(row.map(|row| &row.shape)),
        source: property.source.word(),
        name: property.name,
    }
}
