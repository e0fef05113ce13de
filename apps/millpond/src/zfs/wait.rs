//! `zfs wait`: waits until deleted files of a file system are freed.

use super::lookup;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use crate::zpool::LOOK_EVERY;
use millpond_control::ControlError;
use millpond_control::properties::{DatasetKind, Kinds};

/// Waits until the queue of deleted files is empty, or the file system is unmounted or destroyed.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    for word in parsed.values("t").flat_map(|words| words.split(',')) {
        if word != "deleteq" {
            return Err(Failure::Usage(format!("invalid activity '{word}'")));
        }
    }
    let name = match parsed.operands.as_slice() {
        [] => return Err(Failure::Usage("missing 'filesystem' argument".into())),
        [name] => name,
        _ => return Err(Failure::Usage("too many arguments".into())),
    };
    let kinds = Kinds::only(&[DatasetKind::Filesystem]);
    lookup::open(session, name, kinds, &[])?;
    loop {
        match session.service()?.delete_queue(name) {
            Ok(0) | Err(ControlError::NoSuchPool | ControlError::NoSuchDataset) => return Ok(0),
            Ok(_) => {}
            Err(error) => {
                let text = format!("cannot wait for '{name}': {error}");
                return Err(Failure::Refused(text));
            }
        }
        (session.environment.pause)(LOOK_EVERY);
    }
}
