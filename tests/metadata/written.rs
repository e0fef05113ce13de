//! Writes the content of real pools again with the writing code, and compares.

use anyhow::{Context, Result, ensure};
use millpond_env::Env;
use millpond_env::sync::{Arc, Mutex};
use millpond_object::{Block, BlockAddress, ObjectError, ObjectView};
use millpond_ondisk::sa::SaHeader;
use millpond_ondisk::{BlockId, Endian, Level, Txg};
use millpond_sa::{SaAttribute, SaError, SaLayouts, SaRegistry};
use millpond_txg::{DirtyLimits, TxgGroups};
use millpond_zap::{NewZap, Zap, ZapMut, ZapSource, ZapStore, ZapValue};
use std::collections::BTreeMap;

/// An object's blocks, with changes held in memory only.
#[derive(Clone)]
struct Overlay {
    object: ObjectView,
    state: Arc<Mutex<State>>,
}

struct State {
    block_bytes: usize,
    /// `None` for blocks that became holes.
    changed: BTreeMap<u64, Option<Vec<u8>>>,
}

impl ZapSource for Overlay {
    fn read_block(&self, id: BlockId) -> Result<Arc<Block>, ObjectError> {
        let state = self.state.lock();
        let bytes = match state.changed.get(&id.0) {
            Some(content) => content
                .clone()
                .unwrap_or_else(|| vec![0; state.block_bytes]),
            None => return self.object.read_block(id),
        };
        let endian = Endian::Little;
        let has_ciphertext = false;
        Ok(Arc::new(Block {
            bytes: Arc::new(bytes),
            endian,
            has_ciphertext,
        }))
    }
    fn address(&self, id: BlockId) -> BlockAddress {
        self.object.address(Level(0), id)
    }
}

impl ZapStore for Overlay {
    fn source(&self) -> Arc<dyn ZapSource> {
        Arc::new(self.clone())
    }
    fn block_bytes(&self) -> u32 {
        self.state.lock().block_bytes as u32
    }
    fn set_block_bytes(&self, bytes: u32) -> Result<(), ObjectError> {
        self.state.lock().block_bytes = bytes as usize;
        Ok(())
    }
    fn write_block(&self, id: BlockId, content: Vec<u8>) -> Result<(), ObjectError> {
        let mut state = self.state.lock();
        assert_eq!(content.len(), state.block_bytes);
        state.changed.insert(id.0, Some(content));
        Ok(())
    }
    fn free_blocks(&self, first: BlockId, count: u64) -> Result<(), ObjectError> {
        let mut state = self.state.lock();
        state
            .changed
            .extend((first.0..first.0 + count).map(|id| (id, None)));
        Ok(())
    }
}

type Entries = BTreeMap<Vec<u8>, ZapValue>;

fn entries(zap: &Zap) -> Result<Entries> {
    zap.iter()
        .map(|entry| Ok(entry.map(|entry| (entry.name, entry.value))?))
        .collect()
}

/// Adds many entries to a real ZAP, changes and removes some, and then removes all of them.
pub fn change_zap(object: ObjectView, count: u64) -> Result<()> {
    let overlay = Overlay {
        state: Arc::new(Mutex::new(State {
            block_bytes: object.block_bytes() as usize,
            changed: BTreeMap::new(),
        })),
        object,
    };
    let zap = ZapMut::new(overlay).with_long_names();
    let before = entries(&zap.view()?)?;
    let has_word_keys = zap.view()?.has_word_keys();
    let key = |index: u64| {
        (
            format!("an added entry {index}").into_bytes(),
            [index.wrapping_mul(0x9e37_79b9_7f4a_7c15), index, 1],
        )
    };
    for index in 0..count {
        let (name, words) = key(index);
        if has_word_keys {
            zap.insert_words(&words, &ZapValue::from_u64(index))?;
        } else {
            zap.insert_u64(&name, index)?;
        }
    }
    let summary = zap.view()?.check().context("after many were added")?;
    ensure!(summary.entries == before.len() as u64 + count);
    for (name, value) in before.iter().step_by(2) {
        if has_word_keys {
            let words: Vec<u64> = name.chunks_exact(8).map(word).collect();
            ensure!(zap.remove_words(&words)?);
            zap.insert_words(&words, value)?;
        } else {
            ensure!(zap.remove(name)?);
            zap.insert(name, value)?;
        }
    }
    zap.view()?.check().context("after some came back")?;
    for index in 0..count {
        let (name, words) = key(index);
        ensure!(if has_word_keys {
            zap.remove_words(&words)?
        } else {
            zap.remove(&name)?
        });
    }
    let view = zap.view()?;
    view.check().context("after what was added was removed")?;
    ensure!(entries(&view)? == before, "entries differ");
    Ok(())
}

fn word(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Copies all entries of a ZAP into a new one.
pub fn copy_zap(zap: &Zap, object: ObjectView) -> Result<()> {
    if zap.has_word_keys() {
        return Ok(());
    }
    let overlay = Overlay {
        state: Arc::new(Mutex::new(State {
            block_bytes: 512,
            changed: BTreeMap::new(),
        })),
        object,
    };
    let copy = ZapMut::new(overlay).with_long_names();
    let normalisation = zap.normalisation()?;
    copy.create(&NewZap {
        normalisation,
        ..NewZap::plain(0x5bed9)
    })?;
    for entry in zap.iter() {
        let entry = entry?;
        copy.insert(&entry.name, &entry.value)?;
    }
    let view = copy.view()?;
    view.check()?;
    ensure!(entries(&view)? == entries(zap)?, "the copy differs");
    Ok(())
}

/// Builds a file's buffers from its attributes and compares the bytes.
///
/// Returns whether the file could be compared.
///
/// Old znodes, foreign byte order and attributes of other software are skipped; in pools of old software
/// (`is_old`) also layouts that current software does not create.
pub fn build_again(registry: &Arc<SaRegistry>, object: &ObjectView, is_old: bool) -> Result<bool> {
    let bonus = object.bonus()?;
    let spill = object.read_spill()?;
    let mut list = Vec::new();
    let mut ends = [0; 2];
    let buffers = [
        Some(bonus),
        spill.as_ref().map(|spill| spill.bytes.as_slice()),
    ];
    for (buffer, end) in buffers.into_iter().zip(&mut ends) {
        let Some(buffer) = buffer else {
            break;
        };
        let header = SaHeader::decode(buffer)?;
        if header.endian != Endian::Little {
            return Ok(false);
        }
        let mut layouts = registry.layouts();
        let (_, layout) = layouts
            .find(|(number, _)| *number == header.layout)
            .context("layout")?;
        for field in header.fields(buffer, layout)? {
            let attribute = SaAttribute::ALL.into_iter().find(|one| {
                let registered = registry.registration(one.name().as_bytes());
                registered.is_some_and(|one| one.number == field.number)
            });
            let Some(attribute) = attribute else {
                return Ok(false);
            };
            list.push((attribute, &buffer[field.start..field.end]));
            *end = field.end;
        }
    }
    let groups = TxgGroups::new(&Env::real(), Txg(9), DirtyLimits::default());
    let tx = groups.begin(0)?;
    // Without tables: only existing layouts can be used.
    let layouts = SaLayouts::new(Arc::clone(registry), None);
    let dnode_bytes = usize::from(object.dnode().extra_slots) * 512 + 512;
    let built = match layouts.build(&tx, dnode_bytes, &list) {
        // Old software used a different layout for this file.
        Err(SaError::Refused { .. }) if is_old => return Ok(false),
        built => built?,
    };
    // With a spill block, the end of the bonus holds leftover bytes.
    let [bonus_end, spill_end] = ends;
    let compared = if spill.is_some() {
        bonus_end
    } else {
        bonus.len()
    };
    ensure!(built.bonus.len() == bonus.len(), "length of the bonus");
    ensure!(
        built.bonus[..compared] == bonus[..compared],
        "bonus differs"
    );
    ensure!(built.spill.is_some() == spill.is_some(), "spill block");
    if let (Some(built), Some(spill)) = (built.spill, spill) {
        ensure!(
            built[..spill_end] == spill.bytes[..spill_end],
            "spill differs"
        );
        ensure!(built.len() <= spill.bytes.len(), "spill is larger");
    }
    Ok(true)
}
