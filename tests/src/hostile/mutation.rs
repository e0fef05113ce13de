//! Random hostile changes at sensitive positions.

use super::dice::Dice;
use super::image::{Changed, gang_pointer, pointers_in};
use millpond_ondisk::{BlockPointer, Level, ObjectType};

/// Makes between one and four changes, determined by the seed.
pub fn lie(changed: &mut Changed<'_>, seed: u64) {
    let mut dice = Dice::new(seed);
    for _ in 0..=dice.below(4) {
        match dice.below(10) {
            0 | 1 => dnode_field(changed, &mut dice),
            2 | 3 => bonus_word(changed, &mut dice),
            4 | 5 => word(changed, &mut dice),
            6 => byte(changed, &mut dice),
            7 => pointer(changed, &mut dice),
            8 => table_entry(changed, &mut dice),
            _ => pointer_field(changed, &mut dice),
        }
    }
}

/// A random block, with each type equally likely. Otherwise content blocks would dominate.
fn any_block(changed: &Changed<'_>, dice: &mut Dice) -> usize {
    let blocks = &changed.image().blocks;
    let mut kinds: Vec<(ObjectType, Level)> = blocks
        .iter()
        .map(|block| (block.pointer.object_type(), block.pointer.level()))
        .collect();
    kinds.sort_by_key(|(kind, level)| (kind.0, level.0));
    kinds.dedup();
    match dice.pick(&kinds).copied() {
        Some((kind, level)) => {
            let list = changed.image().of_type(kind, level.0);
            dice.pick(&list).copied().unwrap_or(0)
        }
        None => 0,
    }
}

/// A random used dnode: block and first byte.
fn any_dnode(changed: &Changed<'_>, dice: &mut Dice) -> Option<(usize, usize)> {
    if dice.below(8) == 0 {
        let sets = changed.image().of_type(ObjectType::OBJECT_SET, 0);
        return Some((*dice.pick(&sets)?, [0, 1024, 1536][dice.below(3)]));
    }
    let blocks = changed.image().of_type(ObjectType::DNODE, 0);
    let block = *dice.pick(&blocks)?;
    let content = changed.content(block);
    let used: Vec<usize> = (0..content.len() / 512)
        .map(|slot| slot * 512)
        .filter(|at| content[*at] != 0)
        .collect();
    Some((block, *dice.pick(&used)?))
}

fn dnode_field(changed: &mut Changed<'_>, dice: &mut Dice) {
    let Some((block, at)) = any_dnode(changed, dice) else {
        return;
    };
    let small = [0, 1, 2, 3, 6, 7, 9, 12, 17, 25, 63, 127, 255][dice.below(13)];
    match dice.below(6) {
        // Type, shift, levels, pointers, bonus type, functions, flags, sectors, extra slots, bonus length.
        0 | 1 => set_byte(changed, block, at + dice.below(13), small),
        2 => set_byte(changed, block, at + dice.below(13), dice.word() as u8),
        3 => changed.put_u64(block, at + 16, dice.nasty()),
        4 => changed.put_u64(block, at + 24, dice.nasty()),
        // Six levels over few blocks, or many blocks under few levels.
        _ => {
            set_byte(changed, block, at + 2, dice.below(8) as u8);
            changed.put_u64(block, at + 16, dice.nasty());
        }
    }
}

fn bonus_word(changed: &mut Changed<'_>, dice: &mut Dice) {
    let Some((block, at)) = any_dnode(changed, dice) else {
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
    let index = dice.below(words).min(dice.below(words));
    changed.put_u64(block, start + 8 * index, dice.nasty());
}

fn word(changed: &mut Changed<'_>, dice: &mut Dice) {
    let block = any_block(changed, dice);
    let words = changed.content(block).len() / 8;
    let index = match dice.below(3) {
        0 => dice.below(words.min(16)),
        1 => first_used(changed, block, dice),
        _ => dice.below(words),
    };
    let value = dice.nasty();
    match dice.below(3) {
        0 => {
            // Changes sixteen or thirty-two bits of it.
            let bytes = value.to_le_bytes();
            let length = [2, 4][dice.below(2)];
            let at = 8 * index + length * dice.below(8 / length);
            if let Some(place) = changed.content_mut(block).get_mut(at..at + length) {
                place.copy_from_slice(&bytes[..length]);
            }
        }
        _ => changed.put_u64(block, 8 * index, value),
    }
}

/// The position of a non-zero word, because used words lie between many zeros.
fn first_used(changed: &Changed<'_>, block: usize, dice: &mut Dice) -> usize {
    let content = changed.content(block);
    let words = content.len() / 8;
    let from = dice.below(words);
    (from..words)
        .find(|index| {
            content[8 * index..8 * index + 8]
                .iter()
                .any(|byte| *byte != 0)
        })
        .unwrap_or(from)
}

fn byte(changed: &mut Changed<'_>, dice: &mut Dice) {
    let block = any_block(changed, dice);
    for _ in 0..=dice.below(6) {
        let at = 8 * first_used(changed, block, dice) + dice.below(8);
        let value = match dice.below(3) {
            0 => [0, b'/', b'@', 0xff, 0x80, b'.'][dice.below(6)],
            1 => dice.word() as u8,
            _ => changed.content(block).get(at).copied().unwrap_or(0) ^ 1 << dice.below(8),
        };
        set_byte(changed, block, at, value);
    }
}

/// Changes an entry of a single-block table: its number or its name.
fn table_entry(changed: &mut Changed<'_>, dice: &mut Dice) {
    let tables: Vec<usize> = (0..changed.image().blocks.len())
        .filter(|number| {
            let content = &changed.image().blocks[*number].content;
            content.first_chunk().is_some_and(|first| {
                [u64::from_le_bytes(*first), u64::from_be_bytes(*first)].contains(&MICRO)
            })
        })
        .collect();
    let Some(block) = dice.pick(&tables).copied() else {
        return;
    };
    let content = changed.content(block);
    let used: Vec<usize> = (1..content.len() / 64)
        .filter(|slot| content[slot * 64 + 14] != 0)
        .collect();
    let Some(slot) = dice.pick(&used).copied() else {
        return;
    };
    match dice.below(4) {
        0 => {
            let letter = [b'/', b'@', b'.', b'%', b'$', 0xff, b'\n', 0x1b][dice.below(8)];
            set_byte(changed, block, slot * 64 + 14 + dice.below(4), letter);
        }
        1 => {
            // The number of another entry, with its kind of file.
            let Some(other) = dice.pick(&used).copied() else {
                return;
            };
            let bytes = changed.content(block)[other * 64..other * 64 + 8].to_vec();
            changed.content_mut(block)[slot * 64..slot * 64 + 8].copy_from_slice(&bytes);
        }
        _ => {
            // The upper bits are kept: in directories they are the kind of file.
            let kind = changed.content(block)[slot * 64 + 7];
            changed.put_u64(block, slot * 64, dice.nasty());
            if dice.below(2) == 0 {
                set_byte(changed, block, slot * 64 + 7, kind);
            }
        }
    }
}

/// Redirects a pointer: to another block, to its own block, or to gang blocks that contain themselves.
fn pointer(changed: &mut Changed<'_>, dice: &mut Dice) {
    let Some((block, at, old)) = any_pointer(changed, dice) else {
        return;
    };
    let blocks = changed.image().blocks.len();
    let new = match dice.below(5) {
        0 => changed.unverified_pointer(block),
        1 => {
            let mut next = Some(block);
            for _ in 0..dice.below(4) {
                next = next
                    .and_then(|number| changed.image().blocks[number].parent)
                    .map(|(parent, _)| parent);
            }
            changed.unverified_pointer(next.unwrap_or(block))
        }
        2 => gang(changed, &old, dice),
        _ => changed.image().blocks[dice.below(blocks)].pointer,
    };
    let new = match dice.below(3) {
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

fn any_pointer(changed: &Changed<'_>, dice: &mut Dice) -> Option<(usize, usize, BlockPointer)> {
    let holders: Vec<usize> = (0..changed.image().blocks.len())
        .filter(|number| {
            let pointer = &changed.image().blocks[*number].pointer;
            pointer.level() > Level(0)
                || [ObjectType::DNODE, ObjectType::OBJECT_SET].contains(&pointer.object_type())
        })
        .collect();
    let block = *dice.pick(&holders)?;
    let pointer = changed.image().blocks[block].pointer;
    let used: Vec<(usize, BlockPointer)> = pointers_in(&pointer, changed.content(block))
        .into_iter()
        .filter(|(_, pointer)| !pointer.is_hole())
        .collect();
    let (at, old) = *dice.pick(&used)?;
    Some((block, at, old))
}

/// A gang header whose children are gang blocks: itself, or others of the same kind.
fn gang(changed: &mut Changed<'_>, old: &BlockPointer, dice: &mut Dice) -> BlockPointer {
    let birth = old.physical_birth().0.max(1);
    let place = changed.reserve(512);
    let mut leader = gang_pointer(old, place, birth);
    let sectors = 1 + dice.below(64) as u64;
    leader.words[6] = leader.words[6] & !0xffff_0000 | (sectors * 3 - 1) << 16;
    let mut piece = leader;
    let children = match dice.below(3) {
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
fn pointer_field(changed: &mut Changed<'_>, dice: &mut Dice) {
    let Some((block, at, old)) = any_pointer(changed, dice) else {
        return;
    };
    let index = [0, 1, 6, 6, 6, 7, 8, 9, 10, 11, 12][dice.below(11)];
    let value = match dice.below(3) {
        0 => dice.nasty(),
        _ => old.words[index] ^ 1 << dice.below(64),
    };
    changed.put_u64(block, at + 8 * index, value);
}

fn set_byte(changed: &mut Changed<'_>, block: usize, at: usize, value: u8) {
    if let Some(place) = changed.content_mut(block).get_mut(at) {
        *place = value;
    }
}

const MICRO: u64 = (1 << 63) + 3;
