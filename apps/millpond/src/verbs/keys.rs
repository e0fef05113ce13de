//! Keys of encrypted datasets, from files, from the property `keylocation` or from a prompt.

use super::Global;
use super::global::refused;
use crate::session::Failure;
use millpond_control::properties::PropertyValue;
use millpond_engine::{Dataset, View};
use millpond_service::{read_key, read_key_file};
use std::ffi::OsStr;
use std::fs::File;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use zeroize::Zeroizing;

/// A key given by an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyOption {
    /// The dataset as the option names it.
    dataset: String,
    /// `prompt`, or a path, which may begin with `file://`.
    source: Vec<u8>,
}

impl KeyOption {
    /// Parses `DATASET=SOURCE`.
    pub(super) fn parse(word: &OsStr) -> Result<Self, Failure> {
        let bytes = word.as_bytes();
        let wrong = || {
            let word = word.to_string_lossy();
            Failure::Usage(format!(
                "--key {word}: DATASET=FILE, DATASET=file:///PATH or DATASET=prompt is wanted"
            ))
        };
        let at = bytes.iter().position(|byte| *byte == b'=');
        let at = at.ok_or_else(wrong)?;
        let dataset = std::str::from_utf8(&bytes[..at]).map_err(|_| wrong())?;
        let source = &bytes[at + 1..];
        if dataset.is_empty() || source.is_empty() {
            return Err(wrong());
        }
        Ok(Self {
            dataset: dataset.to_owned(),
            source: source.to_vec(),
        })
    }

    /// Loads the key if its dataset is in this pool.
    ///
    /// `called` is the name or guid the user gave for the pool.
    pub(super) fn load(&self, pool: &View, called: &str) -> Result<(), Failure> {
        let Some(name) = self.name_in_pool(called, pool.name()) else {
            return Ok(());
        };
        if self.source == b"prompt" {
            return load(pool, &name, &ask(&name)?);
        }
        let path = self.source.strip_prefix(b"file://");
        load_file(pool, &name, path.unwrap_or(&self.source), true)
    }

    /// The dataset's name with the pool's own name in front, or `None` if it is in another pool.
    fn name_in_pool(&self, called: &str, pool: &str) -> Option<String> {
        let end = self.dataset.find(['/', '@']).unwrap_or(self.dataset.len());
        let (first, rest) = self.dataset.split_at(end);
        (first == called || first == pool).then(|| format!("{pool}{rest}"))
    }
}

/// Loads the key of a dataset for which no option gave one.
///
/// Uses the file in `keylocation` if that is allowed. Otherwise prompts, if there is a terminal.
pub(super) fn unlock(dataset: &Dataset, global: &Global) -> Result<(), Failure> {
    let pool = dataset.pool();
    let root = root_name(dataset).unwrap_or_else(|| dataset.name().to_owned());
    if global.is_keylocation_used {
        match keylocation(dataset).as_deref() {
            None | Some("prompt" | "none") => {}
            Some(location) => match location.strip_prefix("file://") {
                Some(path) => return load_file(pool, &root, path.as_bytes(), false),
                None => {
                    return Err(refused(format!(
                        "the key of '{root}' lies at {location}, which cannot be read from here: \
                         use --key"
                    )));
                }
            },
        }
    }
    if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
        return load(pool, &root, &ask(&root)?);
    }
    Err(refused(format!(
        "'{}' is encrypted and locked: give its key with --key {root}=file:///PATH or \
         --key {root}=prompt, or let --use-keylocation find it",
        dataset.name()
    )))
}

/// Loads a key from a file.
///
/// A path from `keylocation` comes from the pool and is not trusted: only a regular file is read then.
fn load_file(pool: &View, dataset: &str, path: &[u8], is_given: bool) -> Result<(), Failure> {
    let path = Path::new(OsStr::from_bytes(path));
    millpond_daemon::hide_memory();
    let key = match is_given {
        true => File::open(path).and_then(|mut file| read_key(&mut file)),
        false => read_key_file(path),
    };
    let key = key.map_err(|error| {
        let path = path.display();
        refused(format!(
            "cannot read the key of '{dataset}' from {path}: {error}"
        ))
    })?;
    load(pool, dataset, &without_newline(pool, dataset, key))
}

fn load(pool: &View, dataset: &str, key: &[u8]) -> Result<(), Failure> {
    pool.load_key(dataset, key).map_err(refused)?;
    Ok(())
}

/// Removes the newline that editors append, which is not part of the key. Raw keys stay unchanged.
fn without_newline(
    pool: &View,
    dataset: &str,
    mut bytes: Zeroizing<Vec<u8>>,
) -> Zeroizing<Vec<u8>> {
    let is_raw = pool
        .dataset(dataset)
        .ok()
        .and_then(|dataset| dataset.inner().directory().crypt_key().ok().flatten())
        .is_some_and(|key| key.key_format == millpond_engine::KeyFormat::Raw);
    if !is_raw && bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    bytes
}

/// The name of the dataset whose key unlocks this one.
fn root_name(dataset: &Dataset) -> Option<String> {
    let root = dataset.inner().directory().encryption_root().ok()??;
    Some(root.name().to_owned())
}

fn keylocation(dataset: &Dataset) -> Option<String> {
    let root = dataset.inner().directory().encryption_root().ok()??;
    let stored = root.stored_properties().ok()?;
    match stored.get("keylocation") {
        Some((PropertyValue::Text(text), _)) => Some(text.clone()),
        _ => None,
    }
}

fn ask(dataset: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
    crate::prompt::ask(&format!("Key of '{dataset}': "))
        .map_err(|error| refused(format!("cannot ask for the key of '{dataset}': {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_option_names_a_dataset_and_a_source() {
        let option = KeyOption::parse(OsStr::new("p/a=file:///k/x=y")).unwrap();
        assert_eq!(
            (option.dataset.as_str(), &option.source[..]),
            ("p/a", &b"file:///k/x=y"[..])
        );
        for wrong in ["p/a", "=prompt", "p="] {
            assert!(KeyOption::parse(OsStr::new(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_key_is_used_for_the_pool_of_its_dataset() {
        let name = |dataset: &str, called: &str| {
            let option = KeyOption::parse(OsStr::new(&format!("{dataset}=k"))).unwrap();
            option.name_in_pool(called, "p")
        };
        assert_eq!(name("p/a", "p"), Some("p/a".into()));
        assert_eq!(name("77/a", "77"), Some("p/a".into()));
        assert_eq!(name("p/a", "77"), Some("p/a".into()));
        assert_eq!(name("pq/a", "p"), None);
    }
}
