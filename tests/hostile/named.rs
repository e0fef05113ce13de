//! Specific hostile changes: ones that once caused errors, and similar ones.

use anyhow::{Context, Result, bail, ensure};
use millpond_ondisk::{BlockPointer, ObjectType};
use millpond_tests::hostile::child;
use millpond_tests::hostile::exercise::exercise;
use millpond_tests::hostile::image::{Changed, PoolImage, gang_pointer, pointers_in};

/// The names of all changes.
pub const NAMES: &[&str] = &[
    "nothing_is_changed",
    "everything_is_sealed_again",
    "a_gang_header_holds_itself",
    "a_gang_header_holds_itself_three_times",
    "the_pool_claims_2_to_the_60_objects",
    "every_dataset_claims_2_to_the_60_objects",
    "every_file_claims_to_be_endless",
    "every_directory_of_datasets_holds_its_siblings_and_itself",
    "every_block_tree_leads_to_one_block_everywhere",
    "every_indirect_block_leads_to_itself",
    "every_name_in_every_directory_leads_to_its_root",
    "every_name_has_a_slash_in_it",
];

/// Applies one of them.
pub fn run(name: &str, load: &dyn Fn(&str) -> Result<PoolImage>, confine: &dyn Fn()) -> Result<()> {
    let case = match name {
        name if name.contains("name") || name.contains("dataset") => "snapshots",
        name if name.contains("block") => "bclone",
        _ => "single",
    };
    let image = load(case)?;
    confine();
    let mut changed = image.change();
    tell(name, &mut changed)?;
    let has_opened = exercise(changed.seal());
    child::begin(if has_opened { "opened" } else { "refused" });
    if name.starts_with("nothing") || name.starts_with("everything") {
        ensure!(has_opened, "the pool does not open");
    }
    Ok(())
}

fn tell(name: &str, changed: &mut Changed<'_>) -> Result<()> {
    let all = 0..changed.image().blocks.len();
    match name {
        "nothing_is_changed" => {}
        "everything_is_sealed_again" => all.for_each(|number| {
            changed.content_mut(number);
        }),
        "a_gang_header_holds_itself" => gangs(changed, 1)?,
        "a_gang_header_holds_itself_three_times" => gangs(changed, 3)?,
        "the_pool_claims_2_to_the_60_objects" => changed.put_u64(0, BLOCK_ID_MAX_AT, 1 << 60),
        "every_dataset_claims_2_to_the_60_objects" => {
            for set in changed.image().of_type(ObjectType::OBJECT_SET, 0) {
                if set != 0 {
                    changed.put_u64(set, BLOCK_ID_MAX_AT, 1 << 60);
                }
            }
        }
        "every_file_claims_to_be_endless" => {
            for (block, at, kind) in dnodes(changed) {
                if kind == FILE {
                    changed.put_u64(block, at + BLOCK_ID_MAX_AT, u64::MAX);
                }
            }
        }
        "every_directory_of_datasets_holds_its_siblings_and_itself" => datasets(changed)?,
        "every_block_tree_leads_to_one_block_everywhere" => bombs(changed)?,
        "every_indirect_block_leads_to_itself" => {
            for number in all {
                if changed.image().blocks[number].pointer.level().0 > 0 {
                    let pointer = changed.unverified_pointer(number);
                    changed.put_pointer(number, 0, &pointer);
                }
            }
        }
        "every_name_in_every_directory_leads_to_its_root" => {
            entries(changed, |changed, block, at| {
                // One of the first objects of a file system, because its root has a small id.
                changed.put_u64(block, at, (4 << 60) | 34);
            });
        }
        "every_name_has_a_slash_in_it" => entries(changed, |changed, block, at| {
            changed.content_mut(block)[at + 14..at + 18].copy_from_slice(b"../x");
        }),
        _ => bail!("no lie has this name: {name}"),
    }
    Ok(())
}

/// Replaces the data of every file and table by gang blocks that contain themselves.
fn gangs(changed: &mut Changed<'_>, pieces: u64) -> Result<()> {
    let mut count = 0;
    for block in changed.image().of_type(ObjectType::DNODE, 0) {
        let pointer = changed.image().blocks[block].pointer;
        for (at, old) in pointers_in(&pointer, changed.content(block)) {
            // The pool must still open.
            if old.is_hole() || old.is_embedded() || block_holds_directory(changed, block, at) {
                continue;
            }
            let birth = old.physical_birth().0.max(1);
            let place = changed.reserve(512);
            let with_sectors = |sectors: u64| {
                let mut pointer = gang_pointer(&old, place, birth);
                pointer.words[6] = (pointer.words[6] & !0xffff_0000) | ((sectors - 1) << 16);
                pointer
            };
            let children = vec![with_sectors(1); pieces as usize];
            changed.add_gang_header(place, birth, &children);
            changed.put_pointer(block, at, &with_sectors(pieces));
            count += 1;
        }
    }
    ensure!(count > 0, "no pointer was changed");
    Ok(())
}

/// Whether this pointer belongs to one of the objects that are read whenever a pool is opened.
fn block_holds_directory(changed: &Changed<'_>, block: usize, at: usize) -> bool {
    changed
        .image()
        .mos_dnode(1)
        .is_some_and(|(first, _)| first == block)
        && at / 512 < 40
}

/// Gives every directory below the root the root's own table of children.
fn datasets(changed: &mut Changed<'_>) -> Result<()> {
    let mut root = None;
    let mut others = Vec::new();
    for block in changed.image().of_type(ObjectType::DNODE, 0) {
        let content = changed.content(block);
        for at in (0..content.len()).step_by(512) {
            if content[at] == 0 || ObjectType(content[at + 4]) != ObjectType::DSL_DIRECTORY {
                continue;
            }
            let bonus = at + 64 + 128 * usize::from(content[at + 3]);
            let word = |index: usize| {
                let bytes = content[bonus + 8 * index..].first_chunk();
                u64::from_le_bytes(*bytes.unwrap_or(&[0; 8]))
            };
            match word(PARENT) {
                0 => root = Some(word(CHILDREN)),
                _ => others.push((block, bonus)),
            }
        }
    }
    let table = root.context("no root directory")?;
    ensure!(others.len() > 1, "no directories below the root");
    for (block, bonus) in others {
        changed.put_u64(block, bonus + 8 * CHILDREN, table);
    }
    Ok(())
}

/// Makes indirect blocks and dnode arrays as large as possible.
///
/// The holes of every indirect block are filled with its first pointer, and every dnode array gets the
/// maximum number of levels.
fn bombs(changed: &mut Changed<'_>) -> Result<()> {
    let mut count = 0;
    for number in 0..changed.image().blocks.len() {
        let pointer = changed.image().blocks[number].pointer;
        // The pool must still open, so its own objects stay unchanged.
        if pointer.level().0 == 0 || changed.image().set_of(number) == Some(0) {
            continue;
        }
        let found = pointers_in(&pointer, changed.content(number));
        let Some((_, first)) = found.into_iter().find(|(_, pointer)| !pointer.is_hole()) else {
            continue;
        };
        fill(changed, number, &first);
        count += 1;
    }
    ensure!(count > 0, "no indirect block");
    // Six levels for the dnode arrays: each is a block full of pointers to the one below.
    for set in changed.image().of_type(ObjectType::OBJECT_SET, 0) {
        if set == 0 {
            continue;
        }
        let pointer = changed.image().blocks[set].pointer;
        let Some((at, mut root)) = pointers_in(&pointer, changed.content(set))
            .into_iter()
            .next()
        else {
            continue;
        };
        let shift = changed.content(set)[1];
        let top = root.level().0;
        for level in top + 1..=5 {
            let mut bytes = Vec::new();
            while bytes.len() < 1 << shift {
                bytes.extend_from_slice(&root.encode());
            }
            root = stored(changed, bytes, &root, level);
        }
        changed.content_mut(set)[2] = 6;
        changed.put_u64(set, BLOCK_ID_MAX_AT, 1 << 50);
        changed.put_pointer(set, at, &root);
    }
    Ok(())
}

fn fill(changed: &mut Changed<'_>, number: usize, pointer: &BlockPointer) {
    for at in (0..changed.content(number).len()).step_by(128) {
        if changed.content(number)[at..at + 16]
            .iter()
            .all(|byte| *byte == 0)
        {
            changed.put_pointer(number, at, pointer);
        }
    }
}

/// Stores a new indirect block and returns a pointer to it.
fn stored(
    changed: &mut Changed<'_>,
    bytes: Vec<u8>,
    like: &BlockPointer,
    level: u8,
) -> BlockPointer {
    let sectors = (bytes.len() / 512) as u64;
    let words = millpond_checksum::checksum(
        millpond_ondisk::ChecksumKind::Fletcher4,
        &bytes,
        like.endian(),
        None,
    );
    let mut pointer = *like;
    pointer.words[0] = sectors;
    pointer.words[1] = changed.add(bytes) / 512;
    pointer.words[2..6].fill(0);
    let kept = like.words[6] & (1 << 63 | 0xff << 48);
    pointer.words[6] =
        kept | (sectors - 1) | (sectors - 1) << 16 | 2 << 32 | 7 << 40 | u64::from(level) << 56;
    pointer.words[12..].copy_from_slice(&words.unwrap_or_default());
    pointer
}

/// Every used dnode: block, first byte, type.
fn dnodes(changed: &Changed<'_>) -> Vec<(usize, usize, u8)> {
    let mut found = Vec::new();
    for block in changed.image().of_type(ObjectType::DNODE, 0) {
        let content = changed.content(block);
        for at in (0..content.len()).step_by(512) {
            if content[at] != 0 {
                found.push((block, at, content[at]));
            }
        }
    }
    found
}

/// Calls `each` for every entry of every single-block directory of files.
fn entries(changed: &mut Changed<'_>, each: impl Fn(&mut Changed<'_>, usize, usize)) {
    for block in changed.image().of_type(ObjectType(DIRECTORY), 0) {
        if changed.content(block).first_chunk() != Some(&MICRO.to_le_bytes()) {
            continue;
        }
        for at in (64..changed.content(block).len()).step_by(64) {
            if changed.content(block)[at + 14] != 0 {
                each(changed, block, at);
            }
        }
    }
}

/// Offset in a dnode: the highest data block id.
const BLOCK_ID_MAX_AT: usize = 16;
/// Word offsets in a DSL directory.
const PARENT: usize = 2;
const CHILDREN: usize = 4;
/// Object types of files and of directories of files.
const FILE: u8 = 19;
const DIRECTORY: u8 = 20;
const MICRO: u64 = (1 << 63) + 3;
