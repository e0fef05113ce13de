//! Builds buffers from lists of attributes, and adds the layouts that they need.

use super::{SaFile, SaTables};
use crate::list::{Stored, Value, flag_project, sort_by_template};
use crate::{SaAttribute, SaError, SaRegistration, SaRegistry};
use millpond_env::mark;
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex, RwLock};
use millpond_ondisk::sa::{SA_LAYOUT_EMPTY, SA_LAYOUTS_MAX, encode_attributes, place_attributes};
use millpond_ondisk::{DecodeError, Endian, ObjectId, ObjectType, Txg};
use millpond_txg::Transaction;
use std::collections::{BTreeMap, HashMap};

/// The longest buffer, in bytes.
const BUFFER_BYTES_MAX: usize = 128 << 10;
const VALUE_BYTES_MAX: usize = 65535;

/// One change to a file's attributes. Values are little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaChange<'a> {
    /// Sets the attribute's value. If the file lacks the attribute, it is appended after all others.
    Set(SaAttribute, &'a [u8]),
    /// Removes the attribute, if the file has it.
    Remove(SaAttribute),
}

/// Buffers ready to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaBuffers {
    /// The whole bonus.
    pub bonus: Vec<u8>,
    /// The whole spill block, if one is needed.
    pub spill: Option<Vec<u8>>,
}

/// The layouts and attributes of one object set, extended as needed. Shared by all threads.
///
/// There are two locks. Readers take a snapshot under a short one. A caller that needs a new layout holds the
/// other while it changes the tables, which happens about thirty times in the life of a file system.
pub struct SaLayouts {
    dataset: u64,
    known: RwLock<Known, rank::Leaf>,
    /// `None` in file systems before version 5, which have no tables.
    tables: Mutex<Option<Box<dyn SaTables>>, rank::AttributeTables>,
}

struct Known {
    registry: Arc<SaRegistry>,
    is_complete: bool,
    /// Numbers of layouts by the attributes that they list.
    by_list: HashMap<Vec<u16>, u16>,
    /// The txgs of the layouts stored since this was opened.
    born: BTreeMap<u16, Txg>,
}

impl std::fmt::Debug for SaLayouts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SaLayouts")
            .field("dataset", &self.dataset)
            .finish_non_exhaustive()
    }
}

impl SaLayouts {
    /// Starts with the layouts and attributes that are already registered.
    #[must_use]
    pub fn new(registry: Arc<SaRegistry>, tables: Option<Box<dyn SaTables>>) -> Self {
        let mut by_list = HashMap::new();
        for (number, list) in registry
            .layouts()
            .filter(|(number, _)| *number > SA_LAYOUT_EMPTY)
        {
            by_list.entry(numbers(list)).or_insert(number);
        }
        Self {
            dataset: registry.dataset(),
            known: RwLock::new(Known {
                is_complete: is_complete(&registry),
                registry,
                by_list,
                born: BTreeMap::new(),
            }),
            tables: Mutex::new(tables),
        }
    }

    /// Adds tables to a file system that had none and was upgraded to version 5. Does nothing if tables
    /// exist.
    pub fn give_tables(&self, tables: Box<dyn SaTables>) {
        self.tables.lock().get_or_insert(tables);
    }

    /// A snapshot of the registry, for reading attributes.
    #[must_use]
    pub fn registry(&self) -> Arc<SaRegistry> {
        Arc::clone(&self.known.read().registry)
    }

    /// Builds the buffers of a new file with these attributes in this order.
    ///
    /// For all files the order is: mode, size, generation, owner, group, parent, flags, four times, links;
    /// then the attributes of the kind of file. Values are little-endian. Registers attributes and layouts as
    /// needed.
    ///
    /// # Errors
    /// [`SaError::Refused`] for values that no file can have, [`SaError::TooLarge`], or if the tables cannot
    /// be changed.
    pub fn build(
        &self,
        tx: &Transaction,
        dnode_bytes: usize,
        attributes: &[(SaAttribute, &[u8])],
    ) -> Result<SaBuffers, SaError> {
        let at = ObjectId(0);
        self.register(tx)?;
        let registry = self.registry();
        let mut values = Vec::with_capacity(attributes.len());
        for (attribute, bytes) in attributes {
            let registration = self.checked(&registry, at, *attribute, bytes)?;
            if values
                .iter()
                .any(|one: &Value| one.registration == registration)
            {
                return Err(self.refused(at, "an attribute comes twice"));
            }
            values.push(Value {
                registration,
                bytes: bytes.to_vec(),
            });
        }
        self.lay_out(tx, at, dnode_bytes, &values, None)
    }

    /// Changes attributes of a file.
    ///
    /// If no change alters the length of an attribute, the bytes are overwritten in place. Otherwise all
    /// attributes are laid out again, and the spill block may be added or removed.
    ///
    /// A new project id goes to its fixed position, and the flag that announces it is set. An old znode is
    /// converted to system attributes. An old znode of a symbolic link keeps its form, in which only
    /// attributes of fixed length can be set.
    ///
    /// # Errors
    /// As [`SaLayouts::build`]. Also if the file's attributes cannot be read or are corrupt.
    pub fn change(
        &self,
        tx: &Transaction,
        file: &dyn SaFile,
        changes: &[SaChange<'_>],
    ) -> Result<(), SaError> {
        match file.bonus_type() {
            ObjectType::SA => {}
            ObjectType::ZNODE => return self.change_znode(tx, file, changes),
            bonus_type => {
                return Err(SaError::NotAFile {
                    dataset: self.dataset,
                    object: file.id(),
                    bonus_type,
                });
            }
        }
        let registry = self.registry();
        if self.change_in_place(&registry, file, changes)? {
            return Ok(());
        }
        self.register(tx)?;
        self.change_all(tx, &self.registry(), file, changes)
    }

    /// Replaces all attributes of a file with these. See [`SaLayouts::build`].
    ///
    /// # Errors
    /// As [`SaLayouts::build`].
    pub fn replace(
        &self,
        tx: &Transaction,
        file: &dyn SaFile,
        attributes: &[(SaAttribute, &[u8])],
    ) -> Result<(), SaError> {
        let buffers = self.build(tx, file.dnode_bytes(), attributes)?;
        store(file, buffers, file.spill()?.is_some())
    }

    /// Makes the changes in place if none of them needs another layout. Returns whether it did.
    fn change_in_place(
        &self,
        registry: &SaRegistry,
        file: &dyn SaFile,
        changes: &[SaChange<'_>],
    ) -> Result<bool, SaError> {
        let corrupt = |error| registry.corrupt(file.id(), error);
        let mut in_bonus = Patch::default();
        let mut left = Vec::new();
        let bonus = file.bonus();
        let stored = Stored::read(&bonus, registry).map_err(corrupt)?;
        for change in changes {
            let SaChange::Set(attribute, bytes) = *change else {
                return Ok(false);
            };
            let Some(number) = registry.number(attribute) else {
                return Ok(false);
            };
            match stored.field(number) {
                Some(field) => {
                    if stored.endian != Endian::Little || field.end - field.start != bytes.len() {
                        return Ok(false);
                    }
                    in_bonus.0.push((field.start, bytes));
                }
                None => left.push((number, bytes)),
            }
        }
        if !left.is_empty() {
            let Some(spill) = file.spill()? else {
                return Ok(false);
            };
            let stored = Stored::read(&spill.bytes, registry).map_err(corrupt)?;
            let mut in_spill = Patch::default();
            for (number, bytes) in left {
                match stored.field(number) {
                    Some(field)
                        if stored.endian == Endian::Little
                            && field.end - field.start == bytes.len() =>
                    {
                        in_spill.0.push((field.start, bytes));
                    }
                    _ => return Ok(false),
                }
            }
            file.set_spill(Some(in_spill.apply(&spill.bytes)))?;
        }
        if !in_bonus.0.is_empty() {
            file.set_bonus(in_bonus.apply(&bonus))?;
        }
        Ok(true)
    }

    /// Lays out all attributes again.
    fn change_all(
        &self,
        tx: &Transaction,
        registry: &SaRegistry,
        file: &dyn SaFile,
        changes: &[SaChange<'_>],
    ) -> Result<(), SaError> {
        let id = file.id();
        let corrupt = |error| registry.corrupt(id, error);
        let read = |bytes: &[u8]| Stored::read(bytes, registry)?.values(bytes);
        let mut values = read(&file.bonus()).map_err(corrupt)?;
        let spill = file.spill()?;
        if let Some(spill) = &spill {
            for value in read(&spill.bytes).map_err(corrupt)? {
                if values
                    .iter()
                    .any(|one| one.registration == value.registration)
                {
                    let reason = "attribute in bonus and spill";
                    return Err(corrupt(DecodeError::new("system attributes", reason, 4)));
                }
                values.push(value);
            }
        }
        let mut gets_project = false;
        for change in changes {
            match *change {
                SaChange::Set(attribute, bytes) => {
                    let registration = self.checked(registry, id, attribute, bytes)?;
                    let mut there = values.iter_mut();
                    match there.find(|one| one.registration.number == registration.number) {
                        Some(value) => value.bytes = bytes.to_vec(),
                        None => {
                            gets_project |= attribute == SaAttribute::ProjectId;
                            values.push(Value {
                                registration,
                                bytes: bytes.to_vec(),
                            });
                        }
                    }
                }
                SaChange::Remove(attribute) => {
                    let number = registry.number(attribute);
                    values.retain(|one| Some(one.registration.number) != number);
                }
            }
        }
        if gets_project {
            sort_by_template(&mut values, registry);
            flag_project(&mut values, registry);
        }
        let old_spill = spill.as_ref().map(|block| block.bytes.len());
        let buffers = self.lay_out(tx, id, file.dnode_bytes(), &values, old_spill)?;
        store(file, buffers, spill.is_some())
    }

    /// Builds the buffers of a list of attributes.
    pub(crate) fn lay_out(
        &self,
        tx: &Transaction,
        id: ObjectId,
        dnode_bytes: usize,
        values: &[Value],
        old_spill: Option<usize>,
    ) -> Result<SaBuffers, SaError> {
        let too_large = || SaError::TooLarge {
            dataset: self.dataset,
            object: id,
        };
        let lengths: Vec<_> = values
            .iter()
            .map(|one| (one.bytes.len(), one.registration.is_variable()))
            .collect();
        let placed = place_attributes(&lengths, dnode_bytes);
        let (inside, outside) = values.split_at(placed.bonus_attributes.min(values.len()));
        let mut bonus = self.encode(tx, id, inside)?;
        // Beside a spill block, the bonus takes all remaining space.
        bonus.resize(placed.bonus_bytes.max(bonus.len()), 0);
        if placed.spill_bytes.is_none() {
            return Ok(SaBuffers { bonus, spill: None });
        }
        mark::hit("attributes-spill");
        let mut spill = self.encode(tx, id, outside)?;
        let block_bytes = spill
            .len()
            .next_multiple_of(512)
            .max(old_spill.unwrap_or(0));
        if block_bytes > BUFFER_BYTES_MAX {
            return Err(too_large());
        }
        spill.resize(block_bytes, 0);
        Ok(SaBuffers {
            bonus,
            spill: Some(spill),
        })
    }

    fn encode(&self, tx: &Transaction, id: ObjectId, values: &[Value]) -> Result<Vec<u8>, SaError> {
        let list: Vec<_> = values.iter().map(|one| one.registration).collect();
        let layout = self.layout_of(tx, &list)?;
        let attributes: Vec<_> = values
            .iter()
            .map(|one| (one.registration, one.bytes.as_slice()))
            .collect();
        encode_attributes(layout, &attributes).map_err(|error| self.refused(id, error.reason))
    }

    /// Returns the number of a layout that is in the tables as of the transaction's txg, adding it if needed.
    fn layout_of(&self, tx: &Transaction, list: &[SaRegistration]) -> Result<u16, SaError> {
        if list.is_empty() {
            return Ok(SA_LAYOUT_EMPTY);
        }
        let key = numbers(list);
        if let Some(number) = self.known.read().usable(&key, tx.txg()) {
            return Ok(number);
        }
        let mut tables = self.tables.lock();
        let tables = tables.as_mut().ok_or_else(|| self.no_tables())?;
        let (found, next, registry) = {
            let known = self.known.read();
            // All layouts but the empty one are stored.
            let next = known.registry.layouts().count() + usize::from(SA_LAYOUT_EMPTY);
            if let Some(number) = known.usable(&key, tx.txg()) {
                return Ok(number);
            }
            (
                known.by_list.get(&key).copied(),
                next,
                Arc::clone(&known.registry),
            )
        };
        if let Some(number) = found {
            // Stored by a transaction of a newer txg, which may be lost although this one's txg commits.
            tables.carry_back(tx)?;
            for born in self.known.write().born.values_mut() {
                *born = (*born).min(tx.txg());
            }
            return Ok(number);
        }
        let number = u16::try_from(next)
            .ok()
            .filter(|number| *number <= SA_LAYOUTS_MAX)
            .ok_or_else(|| self.refused(ObjectId(0), "all layouts are used up"))?;
        if registry.layout(number).is_some() {
            return Err(SaError::Registry {
                dataset: self.dataset,
                reason: "layouts are not numbered one after another",
            });
        }
        tables.add_layout(tx, number, &key)?;
        let registry = Arc::new(registry.with_layout(number, list.to_vec()));
        let mut known = self.known.write();
        known.registry = registry;
        known.by_list.insert(key, number);
        known.born.insert(number, tx.txg());
        Ok(number)
    }

    /// Registers all attributes, if any of them is missing.
    pub(crate) fn register(&self, tx: &Transaction) -> Result<(), SaError> {
        if self.known.read().is_complete {
            return Ok(());
        }
        let mut tables = self.tables.lock();
        let tables = tables.as_mut().ok_or_else(|| self.no_tables())?;
        let registry = self.registry();
        if is_complete(&registry) {
            return Ok(());
        }
        let mut taken: Vec<u16> = registry
            .registrations()
            .map(|(_, one)| one.number)
            .collect();
        let mut count = taken.len().max(16);
        let mut added = Vec::new();
        for attribute in SaAttribute::ALL {
            if registry.number(attribute).is_some() {
                continue;
            }
            let mut registration = attribute.registration();
            if registration.number >= 16 {
                registration.number = u16::try_from(count)
                    .map_err(|_| self.refused(ObjectId(0), "all attributes are used up"))?;
                count += 1;
            }
            if taken.contains(&registration.number) {
                return Err(SaError::Registry {
                    dataset: self.dataset,
                    reason: "attributes are not numbered one after another",
                });
            }
            taken.push(registration.number);
            added.push((attribute.name().as_bytes().to_vec(), registration));
        }
        tables.register(tx, &added)?;
        let mut known = self.known.write();
        known.registry = Arc::new(registry.with_attributes(&added));
        known.is_complete = true;
        Ok(())
    }

    /// Returns an attribute's registration, if the attribute may have this value.
    pub(crate) fn checked(
        &self,
        registry: &SaRegistry,
        id: ObjectId,
        attribute: SaAttribute,
        bytes: &[u8],
    ) -> Result<SaRegistration, SaError> {
        let registration = registry
            .registration(attribute.name().as_bytes())
            .ok_or_else(|| self.refused(id, "attribute is not registered"))?;
        let fits = if registration.is_variable() {
            bytes.len() <= VALUE_BYTES_MAX
        } else {
            bytes.len() == usize::from(registration.length)
        };
        if fits {
            Ok(registration)
        } else {
            Err(self.refused(id, "the attribute has another length"))
        }
    }

    pub(crate) fn refused(&self, object: ObjectId, reason: &'static str) -> SaError {
        SaError::Refused {
            dataset: self.dataset,
            object,
            reason,
        }
    }
    fn no_tables(&self) -> SaError {
        self.refused(ObjectId(0), "the file system has no tables of attributes")
    }
}

impl Known {
    fn usable(&self, list: &[u16], txg: Txg) -> Option<u16> {
        let number = *self.by_list.get(list)?;
        let is_old_enough = self.born.get(&number).is_none_or(|born| *born <= txg);
        is_old_enough.then_some(number)
    }
}

/// Bytes to overwrite, all within the buffer.
#[derive(Default)]
pub(crate) struct Patch<'a>(pub(crate) Vec<(usize, &'a [u8])>);

impl Patch<'_> {
    pub(crate) fn apply(&self, buffer: &[u8]) -> Vec<u8> {
        let mut patched = buffer.to_vec();
        for (start, bytes) in &self.0 {
            if let Some(place) = patched.get_mut(*start..start + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        }
        patched
    }
}

/// Stores new buffers. Frees space in one place before it takes space in the other.
fn store(file: &dyn SaFile, buffers: SaBuffers, had_spill: bool) -> Result<(), SaError> {
    if buffers.spill.is_none() {
        if had_spill {
            file.set_spill(None)?;
        }
        file.set_bonus(buffers.bonus)?;
    } else {
        file.set_bonus(buffers.bonus)?;
        file.set_spill(buffers.spill)?;
    }
    Ok(())
}

fn numbers(list: &[SaRegistration]) -> Vec<u16> {
    list.iter().map(|one| one.number).collect()
}

fn is_complete(registry: &SaRegistry) -> bool {
    SaAttribute::ALL
        .iter()
        .all(|one| registry.number(*one).is_some())
}
