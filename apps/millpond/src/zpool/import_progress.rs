//! Shows what a long `zpool import` is doing.

use crate::progress::{Progress, Step, show_steps};
use crate::session::Session;
use millpond_control::ImportProgress;

/// Shows the steps of an import that is about to begin, until the result is dropped.
pub fn show(session: &Session, word: &str) -> Option<Progress> {
    let word = word.to_owned();
    show_steps(session, move |daemon| {
        step(&daemon.import_progress().unwrap_or_default(), &word)
    })
}

/// The step of the import of the pool that the word names.
fn step(imports: &[ImportProgress], word: &str) -> Step {
    let is_wanted =
        |import: &&ImportProgress| import.pool_name == word || word.parse() == Ok(import.pool_guid);
    let wanted = imports.iter().find(is_wanted);
    // Under a new name it may be another import, if several run at once.
    let Some(import) = wanted.or(imports.last()) else {
        return Step {
            words: "Waiting for the daemon".into(),
            ..Step::default()
        };
    };
    Step {
        words: import.notes.clone(),
        done: import.done,
        total: import.total,
        left_s: (import.multihost_s > 0).then_some(import.multihost_s),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_import_is_found_by_its_name_or_guid() {
        let import = |guid, name: &str, notes: &str| ImportProgress {
            pool_guid: guid,
            pool_name: name.into(),
            notes: notes.into(),
            ..ImportProgress::default()
        };
        let all = [
            import(5, "tank", "Searching for devices"),
            import(7, "home", "Claiming the pool"),
        ];
        assert_eq!(step(&all, "tank").words, "Searching for devices");
        assert_eq!(step(&all, "7").words, "Claiming the pool");
        assert_eq!(step(&[], "tank").words, "Waiting for the daemon");
    }
}
