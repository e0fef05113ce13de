//! `zfs receive`.

use super::assign::Assignment;
use super::change_text::{failure, reason};
use super::key_input::of_new_dataset;
use super::lookup::{self, one, pool_of};
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use crate::text::number::{bytes, of};
use millpond_control::properties::{Edit, PropertyName};
use millpond_control::{
    ChangeError, DatasetChange, IncomingKind, PoolChange, ReceiveFailure, ReceiveNaming,
    ReceiveProblem, ReceiveStep, ReceiveStream, Received, Reply, Request, Secret,
};
use millpond_engine::Refusal;
use std::io::IsTerminal;
use std::os::fd::AsFd;

const SECOND_NS: u64 = 1_000_000_000;
/// The class of an error whose own line came before.
const UNABLE: &str = "unable to restore to destination";

/// Receives a stream from standard input.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let name = match parsed.operands.as_slice() {
        [name] => name,
        [] => return Err(Failure::Usage("missing snapshot argument".into())),
        _ => return Err(Failure::Usage("too many arguments".into())),
    };
    if parsed.has("A") {
        return abort(session, parsed, name);
    }
    let mut request = request_of(name, parsed)?;
    if request.is_corrective && ["F", "s", "u", "h"].iter().any(|letter| parsed.has(letter)) {
        let text = "cannot receive new filesystem stream: corrective recv can not be used when \
                    combined with this flag";
        return Err(Failure::Refused(text.into()));
    }
    if std::io::stdin().is_terminal() {
        let text = "Error: Backup stream can not be read from a terminal.\n\
                    You must redirect standard input.";
        return Err(Failure::Refused(text.into()));
    }
    request.key = key_of(session, &request, parsed)?;
    let input = std::io::stdin().as_fd().try_clone_to_owned()?;
    let request = Request::Receive {
        request,
        command: parsed.line.clone(),
    };
    let received = match session.service()?.transfer(&request, input, &|| false) {
        Ok(Reply::Receive(received)) => received,
        Ok(_) => {
            return Err(refused(&ReceiveFailure {
                kind: IncomingKind::Unknown,
                problem: ReceiveProblem::from(millpond_control::Failure::other_reply()),
            }));
        }
        Err(millpond_control::Failure::Change(error)) => {
            let text = format!("cannot receive: {}", reason(&error));
            return Err(Failure::Refused(text));
        }
        Err(failure) => {
            return Err(refused(&ReceiveFailure {
                kind: IncomingKind::Unknown,
                problem: failure.into(),
            }));
        }
    };
    tell(session, parsed, &received)?;
    super::tell_notes(session, &received.notes)?;
    match &received.failure {
        Some(failure) => Err(refused(failure)),
        None => Ok(u8::from(!received.notes.is_empty())),
    }
}

/// Whether the dataset can do without the received value: what is set once, or says how the content is, comes with it.
fn may_be_excluded(property: &PropertyName) -> bool {
    let PropertyName::Native(native) = property else {
        return true;
    };
    match (native.shape.edit, native.shape.name) {
        (_, "encryption") => true,
        (_, "version" | "volsize") => false,
        (edit, _) => !matches!(edit, Edit::ReadOnly | Edit::Once),
    }
}

fn request_of(name: &str, parsed: &Parsed) -> Result<ReceiveStream, Failure> {
    let naming = match (parsed.has("d"), parsed.has("e")) {
        (true, true) => return Err(Failure::Usage("-d and -e are mutually exclusive".into())),
        (true, false) => ReceiveNaming::WithoutPool,
        (false, true) => ReceiveNaming::LastComponent,
        (false, false) => ReceiveNaming::Given,
    };
    let mut request = ReceiveStream {
        name: name.to_owned(),
        naming,
        is_forced: parsed.has("F"),
        is_dry: parsed.has("n"),
        is_resumable: parsed.has("s"),
        is_corrective: parsed.has("c"),
        mount: !parsed.has("u"),
        force_unmount: parsed.has("M"),
        without_holds: parsed.has("h"),
        ..ReceiveStream::default()
    };
    let mut names: Vec<&str> = vec![];
    let mut once = |name| match names.contains(&name) {
        true => {
            let text = format!("property '{name}' specified multiple times");
            Err(Failure::Usage(text))
        }
        false => {
            names.push(name);
            Ok(())
        }
    };
    for word in parsed.values("x") {
        if word.contains('=') {
            let text = format!("invalid property '{word}'");
            return Err(Failure::Usage(text));
        }
        once(word)?;
        let known = millpond_control::properties::by_name(word);
        let Some(known) = known.filter(may_be_excluded) else {
            let text = format!("cannot receive: cannot receive: invalid property '{word}'");
            return Err(Failure::Refused(text));
        };
        request.excluded.push(known.text().to_owned());
    }
    for word in parsed.values("o") {
        let Some((name, value)) = word.split_once('=') else {
            let text = format!("missing '=' for property=value argument '{word}'");
            return Err(Failure::Usage(text));
        };
        once(name)?;
        if name == "origin" {
            request.origin = Some(value.to_owned());
            continue;
        }
        let known = Assignment::understand(name, value).map_err(|reason| {
            let is_unknown = reason.starts_with("invalid property");
            Failure::Refused(match is_unknown {
                true => format!("cannot receive: cannot receive: {reason}"),
                false => format!(
                    "cannot receive new filesystem stream: {reason}\n\
                     cannot receive new filesystem stream: invalid property value"
                ),
            })
        })?;
        match known.value() {
            Some(pair) => request.properties.push(pair),
            None => {
                let text = format!("cannot receive: cannot receive: invalid property '{name}'");
                return Err(Failure::Refused(text));
            }
        }
    }
    Ok(request)
}

/// The key of a dataset that the properties make an encryption root. Standard input has the stream, so it comes from a file.
fn key_of(
    session: &mut Session,
    request: &ReceiveStream,
    parsed: &Parsed,
) -> Result<Option<Secret>, Failure> {
    let words = parsed.values("o").filter_map(|word| word.split_once('='));
    let pairs: Vec<(String, String)> = words
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let is_given = |wanted: &str| pairs.iter().any(|(name, _)| name == wanted);
    if pairs
        .iter()
        .any(|one| one.0 == "keylocation" && one.1 == "prompt")
    {
        let text = "cannot receive: Cannot use 'prompt' keylocation because stdin is in use.";
        return Err(Failure::Refused(text.into()));
    }
    if !["encryption", "keyformat", "pbkdf2iters"]
        .into_iter()
        .any(is_given)
    {
        return Ok(None);
    }
    if is_given("keyformat") && !is_given("keylocation") {
        let text = "cannot receive: the key of a new encryption root is read from a file: give \
                    '-o keylocation=file:///path', because stdin is in use.";
        return Err(Failure::Refused(text.into()));
    }
    let head = request.name.split('@').next().unwrap_or_default();
    let parent = match request.naming {
        ReceiveNaming::Given => head.rsplit_once('/').map(|(parent, _)| parent),
        _ => Some(head),
    };
    let key = of_new_dataset(session, parent, &pairs, false);
    key.map_err(|reason| {
        Failure::Refused(format!("cannot receive new filesystem stream: {reason}"))
    })
}

/// Gives up an interrupted receive.
fn abort(session: &mut Session, parsed: &Parsed, name: &str) -> Ending {
    if one(session, name, &[])?.is_none() {
        let text = format!("cannot open '{name}': dataset does not exist");
        return Err(Failure::Usage(text));
    }
    lookup::open(session, name, lookup::heads(), &[])?;
    let change = PoolChange::Dataset(DatasetChange::AbortReceive {
        name: name.to_owned(),
    });
    let service = session.service()?;
    match service.change(pool_of(name), &[change], &parsed.line) {
        Ok(_) => Ok(0),
        Err(failed) => {
            let has_none = matches!(
                failed.error,
                ChangeError::Refused {
                    why: Refusal::NotResumable,
                    ..
                }
            );
            Err(match has_none {
                true => {
                    let text =
                        format!("'{name}' does not have any resumable receive state to abort");
                    Failure::Refused(text)
                }
                false => failure(&format!("cannot destroy '{name}'"), &failed),
            })
        }
    }
}

/// Prints what was done, with `-v`.
fn tell(session: &mut Session, parsed: &Parsed, received: &Received) -> std::io::Result<()> {
    for step in &received.steps {
        if let ReceiveStep::PropertyRefused {
            dataset,
            property,
            reason,
        } = step
        {
            let line = format!("cannot receive {property} property on {dataset}: {reason}\n");
            session.err.write_all(line.as_bytes())?;
        }
    }
    if !parsed.has("v") {
        return Ok(());
    }
    let is_dry = parsed.has("n");
    for step in &received.steps {
        let lines = match step {
            ReceiveStep::FoundOrigin { name } => format!("found clone origin {name}\n"),
            ReceiveStep::PropertyRefused { .. } => continue,
            ReceiveStep::Repaired {
                name,
                blocks,
                bytes: repaired,
            } => {
                let blocks = of(*blocks, "block", "blocks");
                format!("repaired {blocks} of {name}, {}\n", bytes(*repaired))
            }
            ReceiveStep::Present { name } => format!("snap {name} already exists; ignoring\n"),
            ReceiveStep::Destroyed { name, is_done } => {
                format!("attempting destroy {name}\n{}\n", outcome(*is_done))
            }
            ReceiveStep::Promoted { name, is_done } => {
                format!("attempting promote {name}\n{}\n", outcome(*is_done))
            }
            ReceiveStep::Renamed { from, to, is_done } => {
                format!("attempting rename {from} to {to}\n{}\n", outcome(*is_done))
            }
            ReceiveStep::Stream {
                is_full,
                sent_name,
                name,
                bytes: length,
                time_ns,
            } => {
                let verb = if is_dry { "would receive" } else { "receiving" };
                let kind = if *is_full { "full" } else { "incremental" };
                let corrective = if parsed.has("c") { "corrective " } else { "" };
                let mut lines =
                    format!("{verb} {corrective}{kind} stream of {sent_name} into {name}\n");
                if let Some(length) = length {
                    let rate =
                        u128::from(*length) * u128::from(SECOND_NS) / u128::from((*time_ns).max(1));
                    lines += &format!(
                        "received {} stream in {:.2} seconds ({}/sec)\n",
                        bytes(*length),
                        *time_ns as f64 / SECOND_NS as f64,
                        bytes(u64::try_from(rate).unwrap_or(u64::MAX))
                    );
                }
                lines
            }
        };
        session.out.write_all(lines.as_bytes())?;
    }
    session.out.flush()
}

fn outcome(is_done: bool) -> &'static str {
    if is_done { "success" } else { "failed" }
}

fn refused(failure: &ReceiveFailure) -> Failure {
    let action = match failure.kind {
        IncomingKind::Unknown => "cannot receive",
        IncomingKind::New => "cannot receive new filesystem stream",
        IncomingKind::Incremental => "cannot receive incremental stream",
        IncomingKind::Resuming => "cannot receive resume stream",
    };
    use ReceiveProblem as P;
    let text = match &failure.problem {
        P::NoParent(name) => {
            let text = format!("cannot open '{name}': dataset does not exist\n{action}: {UNABLE}");
            return Failure::Refused(text);
        }
        P::NoSnapshotToRepair(name) => {
            let text = format!(
                "cannot open '{name}': dataset does not exist\n\
                 {action}: corrective recv must specify an existing snapshot to heal"
            );
            return Failure::Refused(text);
        }
        P::NoGivenOrigin(name) => {
            let text = format!("cannot receive: specified origin fs ({name}) does not exist");
            return Failure::Refused(text);
        }
        P::SnapshotExists(name) => {
            let text = format!("cannot restore to {name}: destination already exists");
            return Failure::Refused(text);
        }
        P::Mounted(mountpoint, why) => {
            let text = format!("cannot unmount '{mountpoint}': {why}\n{action}: {UNABLE}");
            return Failure::Refused(text);
        }
        problem => text_of(problem),
    };
    Failure::Refused(format!("{action}: {text}"))
}

fn text_of(problem: &ReceiveProblem) -> String {
    use ReceiveProblem as P;
    match problem {
        P::Denied => "permission denied".into(),
        P::NoStream => "failed to read from stream".into(),
        P::BadMagic => "invalid stream (bad magic number)".into(),
        P::BadName => "invalid stream (bad snapshot name)".into(),
        P::BadList => "invalid stream (malformed nvlist)".into(),
        P::UnknownFeatures(features, unknown) => format!(
            "stream has unsupported feature, feature flags = {features:x} (unknown flags = {unknown:x})"
        ),
        P::Deduplicated => "stream has deprecated feature: dedup, try 'zstream redup [send in a \
                            file] | zfs recv [...]'"
            .into(),
        P::SeveralSnapshots => "cannot specify snapshot name for multi-snapshot stream".into(),
        P::OtherSnapshot => {
            "local snapshot doesn't match the snapshot in the provided stream".into()
        }
        P::NotRepaired { name, blocks } => format!(
            "damaged blocks of {name} could not be repaired with this stream: {blocks}\n\
             A stream that has blocks as they are stored (zfs send -c, of encrypted datasets -w) repairs more."
        ),
        P::NoBase(name) => format!("specified fs ({name}) does not exist"),
        P::ParentIsVolume(name) => format!("parent '{name}' is not a filesystem"),
        P::NoDestination(name) => format!("destination '{name}' does not exist"),
        P::Exists(name) => {
            format!("destination '{name}' exists\nmust specify -F to overwrite it")
        }
        P::ResumeReplaces(name) => format!(
            "Resuming recv on existing destination '{name}'\nmust specify -F to overwrite it"
        ),
        P::HasSnapshots(_, example) => {
            format!("destination has snapshots (eg. {example})\nmust destroy them to overwrite it")
        }
        P::IsClone(name) => {
            format!("destination '{name}' is a clone\nmust destroy it to overwrite it")
        }
        P::HasChildren(_, example) => {
            format!("destination has children (eg. {example})\ncannot overwrite with a ZVOL")
        }
        P::IsRoot(name) => {
            format!("destination {name} is the root dataset\ncannot overwrite with a ZVOL")
        }
        P::EncryptionReplaced => "zfs receive -F cannot be used to destroy an encrypted \
                                  filesystem or overwrite an unencrypted one with an encrypted one"
            .into(),
        P::RawOntoPlain => {
            "cannot perform raw receive on top of existing unencrypted dataset".into()
        }
        P::OtherKey => "encryption key does not match existing key".into(),
        P::IvSetMissing => "IV set guid missing. See errata 4 at \
                            https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-ER."
            .into(),
        P::IvSetMismatch => "IV set guid mismatch. See the 'zfs receive' man page section\n \
                             discussing the limitations of raw encrypted send streams."
            .into(),
        P::RawProperty(name) => {
            format!("encryption property '{name}' cannot be set or excluded for raw streams.")
        }
        P::NoOrigin(name) => format!("local origin for clone {name} does not exist"),
        P::NoSource(name) => {
            format!("most recent snapshot of {name} does not\nmatch incremental source")
        }
        P::Modified(name) => {
            format!("destination {name} has been modified\nsince most recent snapshot")
        }
        P::PartlyReceived(name) => {
            format!("destination {name} contains partially-complete state from \"zfs receive -s\".")
        }
        P::NeedsLargeBlocks => "incremental send stream requires -L (--large-block), to match \
                                previous receive."
            .into(),
        P::FeatureDisabled => "pool must be upgraded to receive this stream.".into(),
        P::EmbeddedEncrypted => {
            "incompatible embedded data stream feature with encrypted receive.".into()
        }
        P::Locked => "inherited key must be loaded".into(),
        P::OverQuota(name) => format!("destination {name} space quota exceeded."),
        P::NoSpace => "out of space".into(),
        P::Invalid(why) => format!("invalid backup stream ({why})"),
        P::Checksum => "checksum mismatch".into(),
        P::Truncated => "incomplete stream".into(),
        P::Interrupted(token) => format!(
            "checksum mismatch or incomplete stream.\nPartially received snapshot is saved.\n\
             A resuming stream can be generated on the sending system by running:\n    \
             zfs send -t {token}"
        ),
        P::NotResumable(name) => {
            format!("'{name}' has no interrupted receive that this stream continues")
        }
        P::Busy(name) => format!("destination {name} is busy"),
        P::Unsupported(what) => format!("{what} are not implemented yet"),
        P::Property(why) | P::Failed(why) => why.clone(),
        P::NoParent(name)
        | P::NoSnapshotToRepair(name)
        | P::NoGivenOrigin(name)
        | P::SnapshotExists(name)
        | P::Mounted(name, _) => name.clone(),
    }
}
