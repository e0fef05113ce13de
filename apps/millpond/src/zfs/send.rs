//! `zfs send`.

use super::lookup::{self, head_of, one};
use super::send_progress;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use crate::text::number::{bytes, count};
use millpond_control::properties::{DatasetKind, Kinds};
use millpond_control::{
    Reply, Request, ResumeToken, SendPackage, SendPlan, SendProblem, SendStream,
};
use std::io::IsTerminal;
use std::os::fd::{AsFd, OwnedFd};

/// Options that say how blocks are sent, or what a package has. A partly received state determines the first itself.
const NOT_WITH_SAVED: [&str; 11] = ["e", "L", "c", "w", "p", "R", "b", "h", "i", "I", "d"];
/// The status of a token that is not usable.
const CORRUPT: u8 = 255;

/// Writes a snapshot as a stream to standard output.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let token = parsed.value("t");
    let name = match parsed.operands.as_slice() {
        [] if token.is_some() => "",
        [name] if token.is_none() => name,
        [] => return Err(Failure::Usage("missing snapshot argument".into())),
        _ => return Err(Failure::Usage("too many arguments".into())),
    };
    if parsed.has("D") {
        let text = "WARNING: deduplicated send is no longer supported.  A regular,\n\
             non-deduplicated stream will be generated.\n";
        writeln!(session.err, "{text}")?;
    }
    let is_dry = parsed.has("n");
    if !is_dry && std::io::stdout().is_terminal() {
        let text =
            "Error: Stream can not be written to a terminal.\nYou must redirect standard output.";
        return Err(Failure::Refused(text.into()));
    }
    let stream = match token {
        None if parsed.has("S") => unfinished(session, name, parsed)?,
        None => stream_of(session, name, parsed)?,
        Some(token) => resumed(session, parsed, token)?,
    };
    let refused = |problem| refusal(&stream, &problem);
    let is_parsable = parsed.has("P");
    let shows_plan = parsed.has("v") || is_dry && is_parsable;
    let mut style = send_progress::Style {
        each_second: parsed.has("v"),
        in_name: parsed.has("V"),
        in_bar: !parsed.has("v") && !is_parsable && std::io::stderr().is_terminal(),
        is_parsable,
        total_bytes: None,
    };
    let needs_total = style.in_name || style.in_bar;
    if shows_plan || is_dry || needs_total || stream.package.skips_missing {
        let plan = session.service()?.send_plan(&stream).map_err(refused)?;
        for dataset in &plan.skipped {
            let snapshot = stream.name.split('@').next_back().unwrap_or_default();
            writeln!(
                session.err,
                "WARNING: skipping dataset {dataset}: snapshot {dataset}@{snapshot} does not exist"
            )?;
            // An increment takes over what was destroyed, and cannot tell what was skipped. OpenZFS does not say so.
            if stream.from.is_some() {
                writeln!(
                    session.err,
                    "\t'zfs receive -F' of this stream destroys the copy of {dataset}, with all datasets below it"
                )?;
            }
        }
        style.total_bytes = Some(total_bytes(&plan));
        let lines = plan_lines(&stream, &plan, is_parsable);
        match is_dry {
            _ if !shows_plan => {}
            true => session.out.write_all(lines.as_bytes())?,
            false => session.err.write_all(lines.as_bytes())?,
        }
    }
    if is_dry {
        return Ok(0);
    }
    session.out.flush()?;
    let output = std::io::stdout().as_fd().try_clone_to_owned()?;
    let reply = send_progress::pass_on(session, &stream.name, output, style, |session, output| {
        transfer(session, &stream, output)
    })?;
    reply.map_err(refused)?;
    Ok(0)
}

fn stream_of(session: &mut Session, name: &str, parsed: &Parsed) -> Result<SendStream, Failure> {
    if parsed.values("i").chain(parsed.values("I")).count() > 1 {
        return Err(Failure::Usage(String::new()));
    }
    let sent = [
        DatasetKind::Filesystem,
        DatasetKind::Volume,
        DatasetKind::Snapshot,
    ];
    lookup::open(session, name, Kinds::only(&sent), &[])?;
    let is_raw = parsed.has("w");
    let redaction = parsed.value("d");
    if redaction.is_some() && is_raw {
        let text = "Error: raw sends may not be redacted.";
        return Err(Failure::Refused(text.into()));
    }
    let given = parsed.value("I").or(parsed.value("i"));
    let package = package_of(name, parsed)?;
    let has_several = parsed.has("I") || package.is_recursive;
    if has_several && given.is_some_and(|from| from.contains('#')) {
        let text = "Error: multiple snapshots cannot be sent from a bookmark.";
        return Err(Failure::Refused(text.into()));
    }
    let stream = SendStream {
        name: name.to_owned(),
        from: given.map(|from| match from {
            short if short.starts_with(['@', '#']) => format!("{}{from}", head_of(name)),
            bare if is_bare(bare) => format!("{}@{from}", head_of(name)),
            _ => from.to_owned(),
        }),
        has_between: parsed.has("I"),
        large_blocks: is_raw || parsed.has("L"),
        embedded: is_raw || parsed.has("e"),
        compressed: is_raw || parsed.has("c"),
        raw: is_raw,
        package,
        redaction: redaction.map(|bookmark| redaction_bookmark(name, bookmark)),
        ..SendStream::default()
    };
    if given.is_some_and(is_bare) {
        let text = "Warning: incremental source didn't specify type, assuming snapshot. \
                    Use '@' or '#' prefix to avoid ambiguity.";
        writeln!(session.err, "{text}")?;
    }
    if let Some(from) = &stream.from
        && one(session, from, &[])?.is_none()
    {
        return Err(refusal(&stream, &SendProblem::NoSource));
    }
    Ok(stream)
}

/// What an interrupted receive left.
fn unfinished(session: &mut Session, name: &str, parsed: &Parsed) -> Result<SendStream, Failure> {
    if NOT_WITH_SAVED.iter().any(|letter| parsed.has(letter)) {
        let text = "incompatible flags combined with saved send flag";
        return Err(Failure::Usage(text.into()));
    }
    if name.contains(['@', '#']) {
        let text = "saved send must specify the dataset with partially-received state";
        return Err(Failure::Usage(text.into()));
    }
    lookup::open(session, name, lookup::heads(), &[])?;
    Ok(SendStream {
        name: name.to_owned(),
        is_unfinished: true,
        ..SendStream::default()
    })
}

/// Whether the source of an increment is given as the last component of a snapshot's name, without `@`.
fn is_bare(from: &str) -> bool {
    !from.contains(['@', '#', '/'])
}

/// The full name of a redaction bookmark of a snapshot. The name may be short.
fn redaction_bookmark(snapshot: &str, given: &str) -> String {
    match given.split_once('#') {
        None => format!("{}#{given}", head_of(snapshot)),
        Some(("", name)) => format!("{}#{name}", head_of(snapshot)),
        Some(_) => given.to_owned(),
    }
}

/// What a package has beside its streams.
fn package_of(name: &str, parsed: &Parsed) -> Result<SendPackage, Failure> {
    let package = SendPackage {
        is_recursive: parsed.has("R"),
        has_properties: parsed.has("p"),
        only_received: parsed.has("b"),
        has_holds: parsed.has("h"),
        skips_missing: parsed.has("s"),
        excluded: parsed
            .values("X")
            .flat_map(|names| names.split(','))
            .map(str::to_owned)
            .collect(),
    };
    let needs_tree = package.skips_missing || !package.excluded.is_empty();
    if needs_tree && !package.is_recursive {
        let text = "'-s' and '-X' can only be used in conjunction with '-R'";
        return Err(Failure::Usage(text.into()));
    }
    if package.excluded.iter().any(|one| one == head_of(name)) {
        let text = format!("cannot send '{name}': its own dataset cannot be excluded");
        return Err(Failure::Refused(text));
    }
    Ok(package)
}

/// The rest of an interrupted stream.
fn resumed(session: &mut Session, parsed: &Parsed, token: &str) -> Result<SendStream, Failure> {
    let token = match ResumeToken::parse(token) {
        Ok(token) => token,
        Err(reason) => {
            let text = format!("cannot resume send: resume token is corrupt ({reason})\n");
            session.err.write_all(text.as_bytes())?;
            return Err(Failure::Status(CORRUPT));
        }
    };
    if parsed.has("v") {
        let text = token_text(&token);
        match parsed.has("n") {
            true => session.out.write_all(text.as_bytes())?,
            false => session.err.write_all(text.as_bytes())?,
        }
    }
    Ok(SendStream {
        name: token.to_name,
        large_blocks: token.large_blocks,
        embedded: token.embedded || parsed.has("e"),
        compressed: token.compressed,
        raw: token.is_raw,
        resume: Some((token.object, token.offset)),
        received_bytes: token.bytes,
        guids: Some((token.to_guid, token.from_guid)),
        redacted: token.redacted,
        redacted_from: token.redacted_from,
        ..SendStream::default()
    })
}

/// What a resume token says, as OpenZFS prints it.
pub fn token_text(token: &ResumeToken) -> String {
    format!("resume token contents:\n{}", token.text)
}

fn refusal(stream: &SendStream, problem: &SendProblem) -> Failure {
    let from = stream.from.as_deref().unwrap_or_default();
    let warned = |reason: &str| format!("warning: cannot send '{}': {reason}", stream.name);
    let resumed = |reason: &str| format!("cannot resume send: {reason}");
    let is_resumed = stream.guids.is_some();
    Failure::Refused(match problem {
        SendProblem::Denied => warned("permission denied"),
        SendProblem::NoDataset if is_resumed => resumed(&format!(
            "'{}' used in the initial send no longer exists",
            stream.name
        )),
        SendProblem::Replaced => resumed(&format!(
            "'{}' is no longer the same snapshot used in the initial send",
            stream.name
        )),
        SendProblem::SourceGone(guid) => {
            resumed(&format!("incremental source {guid:#x} no longer exists"))
        }
        SendProblem::NoDataset => {
            format!("cannot open '{}': dataset does not exist", stream.name)
        }
        SendProblem::NoSource if from.contains('#') => {
            warned(&format!("incremental source ({from}) does not exist"))
        }
        SendProblem::NoSource => format!("cannot open '{from}': dataset does not exist"),
        SendProblem::NoRedactionBookmark => warned(&format!(
            "redaction bookmark ({}) does not exist",
            stream.redaction.as_deref().unwrap_or_default()
        )),
        SendProblem::NotSnapshot => {
            format!(
                "cannot send '{}': a package is sent of a snapshot only",
                stream.name
            )
        }
        SendProblem::MissingSnapshot(dataset, snapshot) => format!(
            "cannot send {} recursively: snapshot {dataset}@{snapshot} does not exist",
            stream.name
        ),
        SendProblem::EncryptedProperties(dataset) => format!(
            "cannot send {}: encrypted dataset {dataset} may not be sent with properties without the raw flag",
            stream.name
        ),
        SendProblem::NotPartlyReceived => format!(
            "cannot send '{}': it has no partially-received state",
            stream.name
        ),
        SendProblem::Locked => warned("dataset key must be loaded"),
        SendProblem::NotEarlier if stream.package.is_recursive => format!(
            "WARNING: could not send {}:\nincremental source ({from}) is not earlier than it",
            stream.name
        ),
        SendProblem::NotEarlier => warned("not an earlier snapshot from the same fs"),
        SendProblem::Mounted => warned("target is busy; if a filesystem, it must not be mounted"),
        // What read the stream has said why it ended. A signal ends OpenZFS's program as silently.
        SendProblem::NoReader => return Failure::Status(1),
        SendProblem::Failed(reason) => warned(reason),
    })
}

/// About how many bytes all streams have.
fn total_bytes(plan: &SendPlan) -> u64 {
    let sizes = plan.steps.iter().filter_map(|step| step.bytes);
    sizes.fold(0, u64::saturating_add)
}

/// The lines that say what is sent, and how long it will be.
fn plan_lines(stream: &SendStream, plan: &SendPlan, is_parsable: bool) -> String {
    let mut lines = String::new();
    let total = total_bytes(plan);
    let package = &stream.package;
    let is_package = stream.has_between
        || package.is_recursive
        || package.has_properties
        || package.only_received
        || package.has_holds;
    for step in &plan.steps {
        let name = &step.name;
        let size = step.bytes.filter(|size| *size > 0);
        let short = |from: &str| from.split('@').next_back().unwrap_or_default().to_owned();
        let from = step.from.as_deref();
        let from = from.map(|from| match (is_package, is_parsable) {
            (true, true) => short(from),
            (true, false) => format!("@{}", short(from)),
            (false, _) => from.to_owned(),
        });
        let line = match (from, is_parsable) {
            (Some(from), true) => format!("incremental\t{from}\t{name}"),
            (None, true) => format!("full\t{name}"),
            (Some(from), false) => format!("send from {from} to {name}"),
            (None, false) => format!("full send of {name}"),
        };
        let size = match (size, is_parsable) {
            (None, _) => String::new(),
            (Some(size), true) => format!("\t{size}"),
            (Some(size), false) => format!(" estimated size is {}", bytes(size)),
        };
        lines += &format!("{line}{size}\n");
    }
    match (total, is_parsable) {
        (0, _) => {}
        (_, true) => lines += &format!("size\t{total}\n"),
        (_, false) => lines += &format!("total estimated size is {}\n", count(total)),
    }
    lines
}

fn transfer(
    session: &Session,
    stream: &SendStream,
    output: OwnedFd,
) -> Result<Result<u64, SendProblem>, Failure> {
    let request = Request::Send {
        request: stream.clone(),
    };
    let reply = session.service()?.transfer(&request, output, &|| false);
    Ok(match reply {
        Ok(Reply::Send(length)) => Ok(length),
        Ok(_) => Err(millpond_control::Failure::other_reply().into()),
        Err(failure) => Err(failure.into()),
    })
}
