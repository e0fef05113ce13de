//! The attributes and layouts that one object set has registered.

use crate::form::{Buffer, Content, Form, Spill};
use crate::{Attributes, ObjectBytes, SaAttribute, SaError, SaRegistration};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_object::{Block, ObjectError, ObjectSetView, ObjectView};
use millpond_ondisk::sa::{SA_LAYOUT_EMPTY, SA_LAYOUTS_MAX};
use millpond_ondisk::znode::ZnodePhys;
use millpond_ondisk::{DecodeError, Endian, ObjectId, ObjectType};
use millpond_zap::{Zap, ZapEntry};
use std::collections::{BTreeMap, HashMap};

/// The master node has the same object id in every file system.
const MASTER_NODE: ObjectId = ObjectId(1);
/// Far more attributes than a layout of any correct writer has.
const LAYOUT_LENGTH_MAX: usize = 4096;

/// The registered attributes and layouts of one object set. Read once and kept in memory: at most 65536
/// attributes and 1022 layouts.
#[derive(Clone)]
pub struct SaRegistry {
    dataset: u64,
    bytes: Arc<dyn ObjectBytes>,
    by_name: HashMap<Vec<u8>, SaRegistration>,
    /// Numbers of the attributes of [`SaAttribute::ALL`], in that order.
    known: Vec<Option<u16>>,
    layouts: BTreeMap<u16, Vec<SaRegistration>>,
}

impl std::fmt::Debug for SaRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SaRegistry")
            .field("dataset", &self.dataset)
            .field("attributes", &self.by_name.len())
            .field("layouts", &self.layouts.len())
            .finish_non_exhaustive()
    }
}

impl SaRegistry {
    /// Reads the tables of a file system's object set. Without tables (before version 5, or if nothing was
    /// written yet), the registry only reads old znodes.
    ///
    /// # Errors
    /// If a table cannot be read or contradicts itself.
    pub fn open(set: &Arc<ObjectSetView>) -> Result<Arc<Self>, SaError> {
        let table = |id: u64| -> Result<Zap, SaError> { Ok(Zap::open(set.object(ObjectId(id))?)?) };
        let bytes = Arc::new(Arc::clone(set));
        let dataset = set.dataset();
        let master = Zap::open(set.object(MASTER_NODE)?)?;
        let Some(attributes) = master.lookup_u64(b"SA_ATTRS")?.filter(|id| *id != 0) else {
            return Ok(Arc::new(Self::empty(dataset, bytes)));
        };
        let tables = table(attributes)?;
        let registry = tables.lookup_u64(b"REGISTRY")?.map(table).transpose()?;
        let layouts = tables.lookup_u64(b"LAYOUTS")?.map(table).transpose()?;
        let registry = Self::from_zaps(dataset, bytes, registry.as_ref(), layouts.as_ref())?;
        Ok(Arc::new(registry))
    }

    /// Builds a registry from its two tables, either of which may not exist yet.
    ///
    /// # Errors
    /// As [`SaRegistry::open`].
    pub fn from_zaps(
        dataset: u64,
        bytes: Arc<dyn ObjectBytes>,
        registry: Option<&Zap>,
        layouts: Option<&Zap>,
    ) -> Result<Self, SaError> {
        let mut built = Self::empty(dataset, bytes);
        let mut by_number = HashMap::new();
        if let Some(registry) = registry {
            built.read_table(registry, |built, entry| {
                built.add_attribute(entry, &mut by_number)
            })?;
        }
        if let Some(layouts) = layouts {
            built.read_table(layouts, |built, entry| built.add_layout(entry, &by_number))?;
        }
        built.note_known();
        Ok(built)
    }

    fn empty(dataset: u64, bytes: Arc<dyn ObjectBytes>) -> Self {
        Self {
            dataset,
            bytes,
            by_name: HashMap::new(),
            known: vec![None; SaAttribute::ALL.len()],
            layouts: BTreeMap::from([(SA_LAYOUT_EMPTY, Vec::new())]),
        }
    }

    /// A copy with one more layout.
    pub(crate) fn with_layout(&self, number: u16, list: Vec<SaRegistration>) -> Self {
        let mut more = self.clone();
        more.layouts.insert(number, list);
        more
    }
    /// A copy with more attributes.
    pub(crate) fn with_attributes(&self, added: &[(Vec<u8>, SaRegistration)]) -> Self {
        let mut more = self.clone();
        more.by_name.extend(added.iter().cloned());
        more.note_known();
        more
    }
    fn note_known(&mut self) {
        for (slot, attribute) in self.known.iter_mut().zip(SaAttribute::ALL) {
            let found = self.by_name.get(attribute.name().as_bytes());
            *slot = found.map(|registration| registration.number);
        }
    }
    /// The attributes of a layout, in order.
    pub(crate) fn layout(&self, number: u16) -> Option<&[SaRegistration]> {
        self.layouts.get(&number).map(Vec::as_slice)
    }

    /// Passes every entry to `add`, and checks their count against the table's header.
    fn read_table(
        &mut self,
        table: &Zap,
        mut add: impl FnMut(&mut Self, ZapEntry) -> Result<(), SaError>,
    ) -> Result<(), SaError> {
        let mut count = 0u64;
        for entry in table.iter() {
            add(self, entry?)?;
            count += 1;
        }
        if count == 0 {
            return Err(self.fail("a table is empty"));
        }
        if count != table.entry_count()? {
            return Err(self.fail("a table miscounts its entries"));
        }
        Ok(())
    }

    fn add_attribute(
        &mut self,
        entry: ZapEntry,
        by_number: &mut HashMap<u16, SaRegistration>,
    ) -> Result<(), SaError> {
        let word = entry.value.first().filter(|_| entry.value.count() == 1);
        let registration = word
            .and_then(|word| SaRegistration::from_word(word).ok())
            .ok_or_else(|| self.fail("a registration makes no sense"))?;
        if by_number
            .insert(registration.number, registration)
            .is_some()
        {
            return Err(self.fail("two attributes have one number"));
        }
        if self.by_name.insert(entry.name, registration).is_some() {
            return Err(self.fail("an attribute is registered twice"));
        }
        Ok(())
    }

    fn add_layout(
        &mut self,
        entry: ZapEntry,
        by_number: &HashMap<u16, SaRegistration>,
    ) -> Result<(), SaError> {
        let number = std::str::from_utf8(&entry.name)
            .ok()
            .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|text| text.parse::<u16>().ok())
            .filter(|number| (SA_LAYOUT_EMPTY + 1..=SA_LAYOUTS_MAX).contains(number))
            .ok_or_else(|| self.fail("a layout's number is not 2 to 1023"))?;
        if entry.value.integer_bytes != 2 || entry.value.count() > LAYOUT_LENGTH_MAX {
            return Err(self.fail("a layout is no list of attributes"));
        }
        let layout = entry
            .value
            .integers()
            .map(|number| {
                let number = u16::try_from(number).ok();
                number.and_then(|number| by_number.get(&number).copied())
            })
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| self.fail("a layout names an unknown attribute"))?;
        if self.layouts.insert(number, layout).is_some() {
            return Err(self.fail("two layouts have one number"));
        }
        Ok(())
    }

    fn fail(&self, reason: &'static str) -> SaError {
        SaError::Registry {
            dataset: self.dataset,
            reason,
        }
    }

    /// Opens the attributes of a file. Reads its spill block, if it has one. A lost spill block is no error
    /// here: see [`Attributes`].
    ///
    /// # Errors
    /// [`SaError::NotAFile`] if the object has no attributes. Otherwise if they cannot be read.
    pub fn attributes(self: &Arc<Self>, object: &ObjectView) -> Result<Attributes, SaError> {
        let dnode = object.dnode();
        let bonus_type = dnode.bonus_type;
        if bonus_type == ObjectType::ZNODE {
            return self.znode(object.id(), object.bonus()?, dnode.endian);
        }
        if bonus_type != ObjectType::SA {
            return Err(SaError::NotAFile {
                dataset: self.dataset,
                object: object.id(),
                bonus_type,
            });
        }
        let bonus = Content::Bonus(object.bonus()?.to_vec());
        self.buffers(object.id(), bonus, object.read_spill())
    }

    /// Decodes the attributes of an old znode.
    pub(crate) fn znode(
        self: &Arc<Self>,
        object: ObjectId,
        bonus: &[u8],
        endian: Endian,
    ) -> Result<Attributes, SaError> {
        let znode =
            ZnodePhys::decode(bonus, endian).map_err(|error| self.corrupt(object, error))?;
        let form = Form::Znode(Box::new(znode));
        Ok(Attributes::new(Arc::clone(self), object, form))
    }

    /// Decodes the attributes in bonus and spill block.
    ///
    /// A spill block that is lost for good hides only what is in it. One that waits for a device or a key
    /// is an error: a retry finds all attributes.
    pub(crate) fn buffers(
        self: &Arc<Self>,
        object: ObjectId,
        bonus: Content,
        spill: Result<Option<Arc<Block>>, ObjectError>,
    ) -> Result<Attributes, SaError> {
        let corrupt = |error| self.corrupt(object, error);
        let bonus = Buffer::new(bonus, &self.layouts).map_err(corrupt)?;
        let spill = match spill {
            Ok(None) => Spill::None,
            Ok(Some(block)) => {
                let buffer = Buffer::new(Content::Spill(block), &self.layouts);
                Spill::Read(buffer.map_err(corrupt)?)
            }
            Err(error) if error.is_damage() => {
                mark::hit("spill-block-lost");
                Spill::Lost(error)
            }
            Err(error) => return Err(error.into()),
        };
        if let Spill::Read(spill) = &spill
            && spill.shares_a_number_with(&bonus)
        {
            let reason = "attribute in bonus and spill";
            return Err(corrupt(DecodeError::new("system attributes", reason, 4)));
        }
        let form = Form::Buffers { bonus, spill };
        Ok(Attributes::new(Arc::clone(self), object, form))
    }

    pub(crate) fn corrupt(&self, object: ObjectId, error: DecodeError) -> SaError {
        SaError::Corrupt {
            dataset: self.dataset,
            object,
            error,
        }
    }
    pub(crate) fn dataset(&self) -> u64 {
        self.dataset
    }
    pub(crate) fn bytes(&self) -> &Arc<dyn ObjectBytes> {
        &self.bytes
    }
    /// The number of an attribute in this file system, if it is registered.
    pub(crate) fn number(&self, attribute: SaAttribute) -> Option<u16> {
        let index = SaAttribute::ALL
            .iter()
            .position(|known| *known == attribute)?;
        self.known.get(index).copied().flatten()
    }

    /// The registration of an attribute by name, including attributes that only other software defines.
    #[must_use]
    pub fn registration(&self, name: &[u8]) -> Option<SaRegistration> {
        self.by_name.get(name).copied()
    }
    /// The layouts and their attributes, sorted by layout number. The empty layout 1 comes first.
    pub fn layouts(&self) -> impl Iterator<Item = (u16, &[SaRegistration])> {
        self.layouts
            .iter()
            .map(|(number, layout)| (*number, layout.as_slice()))
    }
    /// Names and registrations, in no particular order.
    pub fn registrations(&self) -> impl Iterator<Item = (&[u8], SaRegistration)> {
        self.by_name
            .iter()
            .map(|(name, registration)| (name.as_slice(), *registration))
    }
}
