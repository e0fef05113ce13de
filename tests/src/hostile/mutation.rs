//! Random hostile changes at sensitive positions.

use super::image::{Changed, gang_pointer, pointers_in};
use super::rng::SeededRng;
use millpond_ondisk::{BlockPointer, Level, ObjectType};

/// Makes between one and four changes, determined by the seed.
pub fn lie(changed: &mut Changed<'_>, seed: u64) {
    let mut rng = SeededRng::new(seed);
    for _ in 0..=rng.below(4) {
        match rng.below(10) {
            0 | 1 => dnode_field(changed, &mut rng),
            2 | 3 => bonus_word(changed, &mut rng),
            4 | 5 => word(changed, &mut rng),
            6 => byte(changed, &mut rng),
            7 => pointer(changed, &mut rng),
            8 => table_entry(changed, &mut rng),
            _ => pointer_field(changed, &mut rng),
        }
    }
}

/// A random block, with each type equally likely. Otherwise content blocks would dominate.
fn any_block(changed: &Changed<'_>, rng: &mut SeededRng) -> usize {
    let blocks = &changed.image().blocks;
    let mut kinds: Vec<(ObjectType, Level)> = blocks
        .iter()
        .map(|block| (block.pointer.object_type(), block.pointer.level()))
        .collect();
    kinds.sort_by_key(|(kind, level)| (kind.0, level.0));
    kinds.dedup();
    match rng.pick(&kinds).copied() {
        Some((kind, level)) => {
            let list = changed.image().of_type(kind, level.0);
            rng.pick(&list).copied().unwrap_or(0)
        }
        None => 0,
    }
}

/// A random used dnode: block and first byte.
fn any_dnode(changed: &Changed<'_>, rng: &mut SeededRng) -> Option<(usize, usize)> {
    if rng.below(8) == 0 {
        let sets = changed.image().of_type(ObjectType::OBJECT_SET, 0);
        return Some((*rng.pick(&sets)?, [0, 1024, 1536][rng.below(3)]));
    }
    let blocks = changed.image().of_type(ObjectType::DNODE, 0);
    let block = *rng.pick(&blocks)?;
    let content = changed.content(block);
    let used: Vec<usize> = (0..content.len() / 512)
        .map(|slot| slot * 512)
        .filter(|at| content[*at] != 0)
        .collect();
    Some((block, *rng.pick(&used)?))
}

fn dnode_field(changed: &mut Changed<'_>, rng: &mut SeededRng) {
    let Some((block, at)) = any_dnode(changed, rng) else {
        return;
    };
    let small = [0, 1, 2, 3, 6, 7, 9, 12, 17, 25, 63, 127, 255][rng.below(13)];
    match rng.below(6) {
        // Type, shift, levels, pointers, bonus type, functions, flags, sectors, extra slots, bonus length.
        0 | 1 => set_byte(changed, block, at + rng.below(13), small),
        2 => set_byte(changed, block, at + rng.below(13), rng.word() as u8),
        3 => changed.put_u64(block, at + 16, rng.nasty()),
        4 => changed.put_u64(block, at + 24, rng.nasty()),
        // Six levels over few blocks, or many blocks under few levels.
        _ => {
            set_byte(changed, block, at + 2, rng.below(8) as u8);
            changed.put_u64(block, at + 16, rng.nasty());
        }
    }
}

fn bonus_word(changed: &mut Changed<'_>, rng: &mut SeededRng) {
    let Some((block, at)) = any_dnode(changed, rng) else {
        return;
    };
    let count = usize::from(changed.content(block).get(at + 3).copied().unwrap_or(1));
    let start = at + 64 + 128 * count.min(3);
    let end = (at + 512).min(changed.content(block).len());
    if start + 8 > end {
        return;
    }
    let words = (end - start) / 8;
    // The first words are the most sensitive.
    let index = rng.below(words).min(rng.below(words));
    changed.put_u64(block, start + 8 * index, rng.nasty());
}

fn word(changed: &mut Changed<'_>, rng: &mut SeededRng) {
    let block = any_block(changed, rng);
    let words = changed.content(block).len() / 8;
    let index = match rng.below(3) {
        0 => rng.below(words.min(16)),
        1 => first_used(changed, block, rng),
        _ => rng.below(words),
    };
    let value = rng.nasty();
    match rng.below(3) {
        0 => {
            // Changes sixteen or thirty-two bits of it.
            let bytes = value.to_le_bytes();
            let length = [2, 4][rng.below(2)];
            let at = 8 * index + length * rng.below(8 / length);
            if let Some(place) = changed.content_mut(block).get_mut(at..at + length) {
                place.copy_from_slice(&bytes[..length]);
            }
        }
        _ => changed.put_u64(block, 8 * index, value),
    }
}

/// The position of a non-zero word, because used words lie between many zeros.
fn first_used(changed: &Changed<'_>, block: usize, rng: &mut SeededRng) -> usize {
    let content = changed.content(block);
    let words = content.len() / 8;
    let from = rng.below(words);
    (from..words)
        .find(|index| {
            content[8 * index..8 * index + 8]
                .iter()
                .any(|byte| *byte != 0)
        })
        .unwrap_or(from)
}

fn byte(changed: &mut Changed<'_>, rng: &mut SeededRng) {
    let block = any_block(changed, rng);
    for _ in 0..=rng.below(6) {
        let at = 8 * first_used(changed, block, rng) + rng.below(8);
        let value = match rng.below(3) {
            0 => [0, b'/', b'@', 0xff, 0x80, b'.'][rng.below(6)],
            1 => rng.word() as u8,
            _ => changed.content(block).get(at).copied().unwrap_or(0) ^ 1 << rng.below(8),
        };
        set_byte(changed, block, at, value);
    }
}

/// Changes an entry of a single-block table: its number or its name.
fn table_entry(changed: &mut Changed<'_>, rng: &mut SeededRng) {
    let tables: Vec<usize> = (0..changed.image().blocks.len())
        .filter(|number| {
            let content = &changed.image().blocks[*number].content;
            content.first_chunk().is_some_and(|first| {
                [u64::from_le_bytes(*first), u64::from_be_bytes(*first)].contains(&MICRO)
            })
        })
        .collect();
    let Some(block) = rng.pick(&tables).copied() else {
        return;
    };
    let content = changed.content(block);
    let used: Vec<usize> = (1..content.len() / 64)
        .filter(|slot| content[slot * 64 + 14] != 0)
        .collect();
    let Some(slot) = rng.pick(&used).copied() else {
        return;
    };
    match rng.below(4) {
        0 => {
            let letter = [b'/', b'@', b'.', b'%', b'$', 0xff, b'\n', 0x1b][rng.below(8)];
            set_byte(changed, block, slot * 64 + 14 + rng.below(4), letter);
        }
        1 => {
            // The number of another entry, with its kind of file.
            let Some(other) = rng.pick(&used).copied() else {
                return;
            };
            let bytes = changed.content(block)[other * 64..other * 64 + 8].to_vec();
            changed.content_mut(block)[slot * 64..slot * 64 + 8].copy_from_slice(&bytes);
        }
        _ => {
            // The upper bits are kept: in directories they are the kind of file.
            let kind = changed.content(block)[slot * 64 + 7];
            changed.put_u64(block, slot * 64, rng.nasty());
            if rng.below(2) == 0 {
                set_byte(changed, block, slot * 64 + 7, kind);
            }
        }
    }
}

/// Redirects a pointer: to another block, to its own block, or to gang blocks that contain themselves.
fn pointer(changed: &mut Changed<'_>, rng: &mut SeededRng) {
    let Some((block, at, old)) = any_pointer(changed, rng) else {
        return;
    };
    let blocks = changed.image().blocks.len();
    let new = match rng.below(5) {
        0 => changed.unverified_pointer(block),
        1 => {
            let mut next = Some(block);
            for _ in 0..rng.below(4) {
                next = next
                    .and_then(|number| changed.image().blocks[number].parent)
                    .map(|(parent, _)| parent);
            }
            changed.unverified_pointer(next.unwrap_or(block))
        }
        2 => gang(changed, &old, rng),
        _ => changed.image().blocks[rng.below(blocks)].pointer,
    };
    let new = match rng.below(3) {
        0 => new,
        // With the properties of the old pointer, and the size of the new or the old target.
        choice => {
            let mut dressed = new;
            let mut mask: u64 = 0x9f << 56 | 0xff << 48;
            if choice == 2 {
                mask |= 0xffff;
            }
            dressed.words[6] = new.words[6] & !mask | old.words[6] & mask;
            dressed
        }
    };
    changed.put_pointer(block, at, &new);
}

fn any_pointer(changed: &Changed<'_>, rng: &mut SeededRng) -> Option<(usize, usize, BlockPointer)> {
    let holders: Vec<usize> = (0..changed.image().blocks.len())
        .filter(|number| {
            let pointer = &changed.image().blocks[*number].pointer;
            pointer.level() > Level(0)
                || [ObjectType::DNODE, ObjectType::OBJECT_SET].contains(&pointer.object_type())
        })
        .collect();
    let block = *rng.pick(&holders)?;
    let pointer = changed.image().blocks[block].pointer;
    let used: Vec<(usize, BlockPointer)> = pointers_in(&pointer, changed.content(block))
        .into_iter()
        .filter(|(_, pointer)| !pointer.is_hole())
        .collect();
    let (at, old) = *rng.pick(&used)?;
    Some((block, at, old))
}

/// A gang header whose children are gang blocks: itself, or others of the same kind.
fn gang(changed: &mut Changed<'_>, old: &BlockPointer, rng: &mut SeededRng) -> BlockPointer {
    let birth = old.physical_birth().0.max(1);
    let place = changed.reserve(512);
    let mut leader = gang_pointer(old, place, birth);
    let sectors = 1 + rng.below(64) as u64;
    leader.words[6] = leader.words[6] & !0xffff_0000 | (sectors * 3 - 1) << 16;
    let mut piece = leader;
    let children = match rng.below(3) {
        0 => vec![leader],
        1 => {
            piece.words[6] = piece.words[6] & !0xffff_0000 | (sectors - 1) << 16;
            vec![piece; 3]
        }
        _ => {
            piece.words[6] = piece.words[6] & !0xffff_0000 | (sectors * 3 - 1) << 16;
            let second = changed.reserve(512);
            changed.add_gang_header(second, birth, &[piece]);
            vec![gang_pointer(&piece, second, birth)]
        }
    };
    changed.add_gang_header(place, birth, &children);
    leader
}

/// Changes one word of a pointer.
fn pointer_field(changed: &mut Changed<'_>, rng: &mut SeededRng) {
    let Some((block, at, old)) = any_pointer(changed, rng) else {
        return;
    };
    let index = [0, 1, 6, 6, 6, 7, 8, 9, 10, 11, 12][rng.below(11)];
    let value = match rng.below(3) {
        0 => rng.nasty(),
        _ => old.words[index] ^ 1 << rng.below(64),
    };
    changed.put_u64(block, at + 8 * index, value);
}

fn set_byte(changed: &mut Changed<'_>, block: usize, at: usize, value: u8) {
    if let Some(place) = changed.content_mut(block).get_mut(at) {
        *place = value;
    }
}

const MICRO: u64 = (1 << 63) + 3;
