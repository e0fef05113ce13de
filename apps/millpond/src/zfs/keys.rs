//! `zfs load-key`, `zfs unload-key` and `zfs change-key`.

use super::change_text::reason;
use super::key_input::{self, Purpose, Source, format_of, is_asked};
use super::lookup::{self, heads, pool_of, text};
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_control::{
    DatasetChange, DatasetInfo, DatasetQuery, KeyProblem, PoolChange, Secret, Value, lost_root_text,
};
use millpond_engine::{KeyFormat, is_key_location};

/// Exit status on failure.
const FAILED: u8 = 255;
const WORDS: [&str; 5] = [
    "encryptionroot",
    "keylocation",
    "keyformat",
    "keystatus",
    "origin",
];
/// `keystatus` of a loaded key.
const AVAILABLE: u64 = 2;
/// How often a key is asked for at a terminal.
const ATTEMPTS: usize = 3;

/// Loads keys into the imported pools.
pub fn load(session: &mut Session, parsed: &Parsed) -> Ending {
    let only_check = parsed.has("n");
    let given = parsed.value("L").map(str::to_owned);
    let done = Done {
        word: "loaded",
        is_done: |info| is_loaded(info),
        only_check,
    };
    each(session, parsed, &done, |session, info| {
        load_one(session, info, given.as_deref(), only_check)
    })
}

/// Loads the key of a dataset, if it is an encryption root.
fn load_one(
    session: &mut Session,
    info: &DatasetInfo,
    given: Option<&str>,
    only_check: bool,
) -> Result<(), String> {
    let name = info.name.as_str();
    check_root(info, "loaded")?;
    if is_loaded(info) && !only_check {
        return Err(format!("Key already loaded for '{name}'."));
    }
    let stored = text(info, "keylocation").unwrap_or("prompt").to_owned();
    let source = Source {
        location: given.unwrap_or(&stored),
        is_given: given.is_some(),
        format: format_in(info),
    };
    let attempts = match is_asked(source.location) {
        true => ATTEMPTS,
        false => 1,
    };
    let mut outcome = Ok(());
    for attempt in 1..=attempts {
        let key = key_input::read(session, source, Purpose::Load(name))?;
        let daemon = session.pools.daemon()?;
        outcome = daemon
            .load_key(name, &Secret::new(&key), only_check)
            .map_err(words);
        match &outcome {
            Ok(()) => break,
            Err(reason) if attempt < attempts => {
                let _ = writeln!(session.err, "Key load error: {reason}");
            }
            Err(_) => {}
        }
    }
    outcome
}

/// Loads the key that a dataset needs, if it is not loaded. The error has no prefix.
pub fn load_for(session: &mut Session, name: &str) -> Result<(), String> {
    let find = |session: &Session, name: &str| {
        let found = lookup::one(session, name, &WORDS).ok().flatten();
        found.ok_or_else(|| "dataset does not exist".to_owned())
    };
    let info = find(session, name)?;
    match root_of(&info) {
        Some(root) if !is_loaded(&info) => {
            let root = find(session, root)?;
            load_one(session, &root, None, false)
        }
        _ => Ok(()),
    }
}

/// Loads the keys of a pool that are asked for at a prompt. Returns their number.
pub fn load_asked(session: &mut Session, pool: &str) -> Result<u64, Failure> {
    let all = lookup::below(session, pool, DatasetQuery::WHOLE_TREE, heads(), &WORDS)?;
    let mut loaded = 0;
    for info in all.unwrap_or_default() {
        let is_asked = text(&info, "keylocation").is_none_or(|place| place == "prompt");
        if root_of(&info) != Some(&info.name) || is_loaded(&info) || !is_asked {
            continue;
        }
        match load_one(session, &info, None, false) {
            Ok(()) => loaded += 1,
            Err(reason) => writeln!(session.err, "Key load error: {reason}")?,
        }
    }
    Ok(loaded)
}

/// Unloads keys.
pub fn unload(session: &mut Session, parsed: &Parsed) -> Ending {
    let done = Done {
        word: "unloaded",
        is_done: |info| !is_loaded(info),
        only_check: false,
    };
    each(session, parsed, &done, |session, info| {
        check_root(info, "unloaded")?;
        unload_one(session, &info.name)
    })
}

/// Unloads the key of an encryption root. The error has no prefix.
pub fn unload_one(session: &Session, root: &str) -> Result<(), String> {
    let daemon = session.pools.daemon()?;
    daemon.unload_key(root).map_err(words)
}

/// Changes the key of an encryption root, makes a dataset one, or makes it inherit again.
pub fn change(session: &mut Session, parsed: &Parsed) -> Ending {
    let name = match parsed.operands.as_slice() {
        [name] => name,
        [] => return Err(Failure::Usage("Missing dataset argument".into())),
        _ => return Err(Failure::Usage("Too many arguments".into())),
    };
    if parsed.has("i") && parsed.has("o") {
        let text = "Properties not allowed for inheriting";
        return Err(Failure::Usage(text.into()));
    }
    lookup::open(session, name, heads(), &[])?;
    if parsed.has("l")
        && let Err(reason) = load_for(session, name)
    {
        writeln!(session.err, "Key load error: {reason}")?;
        return Err(Failure::Status(FAILED));
    }
    let info = lookup::open(session, name, heads(), &WORDS)?;
    let outcome = change_of(session, parsed, &info).and_then(|change| {
        let change = PoolChange::Dataset(change);
        let service = session.pools.service()?;
        let done = service.change(pool_of(name), &[change], &parsed.line);
        done.map(|_| ()).map_err(|failed| reason(&failed.error))
    });
    if let Err(reason) = outcome {
        writeln!(session.err, "Key change error: {reason}")?;
        return Err(Failure::Status(FAILED));
    }
    Ok(0)
}

/// The change that a command asks for. What can be refused without the new key is refused before it is asked for.
fn change_of(
    session: &mut Session,
    parsed: &Parsed,
    info: &DatasetInfo,
) -> Result<DatasetChange, String> {
    let name = info.name.clone();
    let mut properties = vec![];
    let (mut format, mut location, mut rounds) = (None, None, None);
    for word in parsed.values("o") {
        let (property, value) = word.split_once('=').unwrap_or((word, ""));
        match property {
            "keyformat" => format = Some(value),
            "keylocation" => location = Some(value),
            "pbkdf2iters" => rounds = Some(value),
            _ => {
                let text =
                    "Only keyformat, keylocation and pbkdf2iters may be set with this command.";
                return Err(text.into());
            }
        }
    }
    let Some(root) = root_of(info) else {
        return Err("Dataset not encrypted.".into());
    };
    if text(info, "origin").is_some_and(|origin| origin != "-" && !origin.is_empty()) {
        return Err("Keys cannot be changed on clones.".into());
    }
    if parsed.has("i") {
        return Ok(DatasetChange::InheritKey { name });
    }
    let is_root = root == name;
    if !is_loaded(info) {
        return Err("Key must be loaded.".into());
    }
    let format = match format {
        None if !is_root => return Err("Keyformat required for new encryption root.".into()),
        None => format_in(info),
        Some(word) => match format_of(word).filter(|format| *format != KeyFormat::None) {
            Some(format) => format,
            None => {
                return Err("'keyformat' must be one of 'none | raw | hex | passphrase'".into());
            }
        },
    };
    let stored = text(info, "keylocation").unwrap_or("prompt").to_owned();
    let source = Source {
        location: location.unwrap_or(match is_root {
            true => &stored,
            false => "prompt",
        }),
        is_given: location.is_some(),
        format,
    };
    if !is_key_location(source.location) {
        return Err("invalid keylocation".into());
    }
    properties.push(("keyformat".to_owned(), Value::Number(format.number())));
    properties.push((
        "keylocation".to_owned(),
        Value::Text(source.location.to_owned()),
    ));
    if let Some(rounds) = rounds {
        if format != KeyFormat::Passphrase {
            return Err("Cannot specify pbkdf2iters with a non-passphrase keyformat.".into());
        }
        let number = rounds
            .parse()
            .map_err(|_| format!("bad numeric value '{rounds}'"))?;
        properties.push(("pbkdf2iters".to_owned(), Value::Number(number)));
    }
    let key = key_input::read(session, source, Purpose::Change(&name))?;
    Ok(DatasetChange::ChangeKey {
        name,
        properties,
        key: Secret::new(&key),
    })
}

/// The encryption root of a dataset; `None` if it is not encrypted.
fn root_of(info: &DatasetInfo) -> Option<&str> {
    text(info, "encryptionroot").filter(|root| *root != "-")
}

fn is_loaded(info: &DatasetInfo) -> bool {
    lookup::number(info, "keystatus") == Some(AVAILABLE)
        || text(info, "keystatus") == Some("available")
}

fn format_in(info: &DatasetInfo) -> KeyFormat {
    let number = lookup::number(info, "keyformat").map(|number| number.to_string());
    let word = number.as_deref().or_else(|| text(info, "keyformat"));
    word.and_then(format_of).unwrap_or(KeyFormat::None)
}

/// Keys are loaded and unloaded for encryption roots only.
fn check_root(info: &DatasetInfo, done: &str) -> Result<(), String> {
    let name = &info.name;
    match root_of(info) {
        None if format_in(info) != KeyFormat::None => Err(lost_root_text(name)),
        None => Err(format!("'{name}' is not encrypted.")),
        Some(root) if root != name => Err(format!(
            "Keys must be {done} for encryption root of '{name}' ({root})."
        )),
        Some(_) => Ok(()),
    }
}

fn words(problem: KeyProblem) -> String {
    match problem {
        KeyProblem::NoSuchDataset => "dataset does not exist".into(),
        KeyProblem::Denied => "permission denied".into(),
        KeyProblem::Text(text) => text,
        _ => "the key cannot be used".into(),
    }
}

/// What a command does with each key.
struct Done {
    /// The word for a key with which it is done.
    word: &'static str,
    /// Whether it is done with a key already. Such keys are passed over, unless their root was named.
    is_done: fn(&DatasetInfo) -> bool,
    /// Whether keys are only tried: then none is passed over.
    only_check: bool,
}

fn each(
    session: &mut Session,
    parsed: &Parsed,
    done: &Done,
    mut run: impl FnMut(&mut Session, &DatasetInfo) -> Result<(), String>,
) -> Ending {
    let verb = done.word.trim_end_matches("ed");
    let roots = match parsed.operands.as_slice() {
        [] if parsed.has("a") => crate::zpool::known(session)?,
        [name] if !parsed.has("a") => vec![name.clone()],
        [] => {
            return Err(Failure::Usage(
                "Missing dataset argument or -a option".into(),
            ));
        }
        _ => return Err(Failure::Usage("too many arguments".into())),
    };
    let is_one = !parsed.has("a") && !parsed.has("r");
    let mut chosen = vec![];
    for root in &roots {
        if is_one {
            chosen.push(lookup::open(session, root, heads(), &WORDS)?);
            continue;
        }
        lookup::open(session, root, heads(), &[])?;
        let all = lookup::below(session, root, DatasetQuery::WHOLE_TREE, heads(), &WORDS)?;
        let is_meant = |info: &DatasetInfo| {
            let is_root = text(info, "encryptionroot") == Some(info.name.as_str());
            is_root && (done.only_check || !(done.is_done)(info))
        };
        chosen.extend(all.unwrap_or_default().into_iter().filter(is_meant));
    }
    let mut failed = 0;
    for info in &chosen {
        if let Err(reason) = run(session, info) {
            writeln!(session.err, "Key {verb} error: {reason}")?;
            failed += 1;
        }
    }
    if !is_one || done.only_check {
        let good = chosen.len() - failed;
        let word = match done.only_check {
            true => "verified",
            false => done.word,
        };
        writeln!(
            session.out,
            "{good} / {} key(s) successfully {word}",
            chosen.len()
        )?;
    }
    match failed {
        0 => Ok(0),
        _ => Err(Failure::Status(FAILED)),
    }
}
