//! zle: stores runs of zeros by their length and all other bytes unchanged.

use crate::DecompressError;

/// Control bytes below this announce literals, the others zeros.
const LITERALS_MAX: usize = 64;
/// The longest run of zeros that one control byte holds.
const ZEROS_MAX: usize = 256 - LITERALS_MAX;

pub(crate) fn decompress(source: &[u8], destination: &mut [u8]) -> Result<(), DecompressError> {
    let corrupt = |reason| DecompressError::corrupt("zle", reason);
    let mut rest = source;
    let mut room = destination;
    while !room.is_empty() {
        let (control, after) = rest.split_first().ok_or(corrupt("too short"))?;
        let control = usize::from(*control);
        if control < LITERALS_MAX {
            let (literals, after) = after
                .split_at_checked(control.saturating_add(1))
                .ok_or(corrupt("literals go past the block"))?;
            let (to, left) = room
                .split_at_mut_checked(literals.len())
                .ok_or(corrupt("decodes to more than the logical size"))?;
            to.copy_from_slice(literals);
            (rest, room) = (after, left);
        } else {
            let zeros = control.saturating_sub(LITERALS_MAX).saturating_add(1);
            let (to, left) = room
                .split_at_mut_checked(zeros)
                .ok_or(corrupt("decodes to more than the logical size"))?;
            to.fill(0);
            (rest, room) = (after, left);
        }
    }
    Ok(())
}

pub(crate) fn compress(source: &[u8], destination: &mut [u8]) -> Option<usize> {
    let mut rest = source;
    let mut written = 0usize;
    while !rest.is_empty() {
        let zeros = rest
            .iter()
            .take(ZEROS_MAX)
            .take_while(|byte| **byte == 0)
            .count();
        if zeros > 0 {
            let control =
                u8::try_from(zeros.saturating_add(LITERALS_MAX).saturating_sub(1)).ok()?;
            *destination.get_mut(written)? = control;
            written = written.saturating_add(1);
            rest = rest.get(zeros..)?;
            continue;
        }
        let literals = literal_run(rest);
        let end = written.checked_add(literals)?.checked_add(1)?;
        let (control, body) = destination.get_mut(written..end)?.split_first_mut()?;
        *control = u8::try_from(literals.saturating_sub(1)).ok()?;
        body.copy_from_slice(rest.get(..literals)?);
        written = end;
        rest = rest.get(literals..)?;
    }
    Some(written)
}

/// Returns how many bytes to store unchanged. A single zero between other bytes costs the same inside the run
/// as in a separate control byte, and saves the next run's control byte.
fn literal_run(bytes: &[u8]) -> usize {
    let window = bytes.get(..LITERALS_MAX).unwrap_or(bytes);
    window
        .windows(2)
        .position(|pair| pair == [0, 0])
        .unwrap_or(window.len())
}
