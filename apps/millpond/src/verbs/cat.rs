//! `millpond cat`: writes files and volumes to standard output.

use super::content::Content;
use super::global::refused;
use super::parse;
use super::pools::{Pools, Target, explained};
use super::{Global, json};
use crate::session::{Ending, Failure, Session};
use clap::{ArgMatches, Args, Command};
use millpond_engine::{FileKind, Symlinks};
use millpond_env::sync::{Receiver, Sender, bounded};
use millpond_env::thread;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, Write};

// No doc comment: it would become the help of the command.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Files, POOL/DATASET[@SNAP]:/PATH, and volumes, POOL/VOLUME[@SNAP]
    #[arg(required = true, value_name = "ADDRESS")]
    pub(super) addresses: Vec<OsString>,
}

/// Defines the command.
pub fn command() -> Command {
    let command = Command::new("cat")
        .about("Write files or volumes to standard output")
        .after_help(
            "A file with an unreadable block is written up to that block; then the next file follows.",
        );
    Options::augment_args(command)
}

/// Writes all named files and volumes.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let global = &global.reading_once();
    write(session, global, &parse(matches)?, &mut Pools::new(global))
}

/// Writes files and volumes of these pools.
pub(super) fn write(
    session: &mut Session,
    global: &Global,
    options: &Options,
    pools: &mut Pools,
) -> Ending {
    let mut status = 0;
    for word in &options.addresses {
        let content = match content(pools, word) {
            Ok(content) => content,
            Err(Failure::Refused(text)) => {
                status = 1;
                report_error(session, global, word, &text)?;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        if let Err(reason) = write_all(&content, session.out)? {
            status = 1;
            session.out.flush()?;
            let shown = word.to_string_lossy();
            let text = format!("millpond: {shown}: {reason}");
            report_error(session, global, word, &text)?;
        }
    }
    Ok(status)
}

/// Reports an error on standard error, with `--json` as an object.
///
/// Standard output carries only the content.
fn report_error(
    session: &mut Session,
    global: &Global,
    word: &OsString,
    text: &str,
) -> io::Result<()> {
    if !global.is_json {
        return writeln!(session.err, "{text}");
    }
    let mut map = serde_json::Map::new();
    json::put_name(&mut map, "path", word.as_encoded_bytes());
    map.insert("problem".into(), text.into());
    writeln!(session.err, "{}", serde_json::Value::Object(map))
}

fn content(pools: &mut Pools, word: &OsString) -> Result<Content, Failure> {
    match pools.target(word, Symlinks::Follow)? {
        Target::Volume(dataset) => {
            let volume = dataset.volume();
            let volume = volume.map_err(|error| refused(explained(&error)))?;
            Ok(Content::from(&volume))
        }
        Target::File(file) if file.node.kind() == FileKind::Regular => {
            Ok(Content::from(&file.node))
        }
        Target::File(file) => {
            let what = match file.node.kind() {
                FileKind::Directory => "is a directory",
                _ => "is no plain file",
            };
            let word = word.to_string_lossy();
            Err(refused(format!("{word}: {what}")))
        }
    }
}

/// A part of the output. Parts are written in order.
enum Part {
    Zeros(u64),
    Data(Receiver<Result<Vec<u8>, String>>),
    Lost(String),
}

struct Wish {
    offset_bytes: u64,
    length_bytes: usize,
    answer: Sender<Result<Vec<u8>, String>>,
}

/// Writes the content, which several threads read up to [`AHEAD`] chunks ahead.
///
/// The inner error says why reading stopped.
fn write_all(content: &Content, out: &mut dyn Write) -> io::Result<Result<(), String>> {
    if content.size_bytes <= CHUNK_BYTES {
        let mut bytes = vec![0; content.size_bytes as usize];
        return match content.object.read(0, &mut bytes) {
            Ok(()) => out.write_all(&bytes).map(Ok),
            // Read it again block by block, to write the blocks before the bad one.
            Err(_) => write_parts(content, out),
        };
    }
    write_parts(content, out)
}

fn write_parts(content: &Content, out: &mut dyn Write) -> io::Result<Result<(), String>> {
    thread::scope(|scope| {
        // Created inside the scope: dropping the sender ends the threads on every return path.
        let (wishes, taken) = bounded::<Wish>(AHEAD);
        for _ in 0..(thread::parallelism() * 2).clamp(2, 8) {
            let taken = taken.clone();
            scope.spawn(move || {
                for wish in taken {
                    let mut bytes = vec![0; wish.length_bytes];
                    let read = content.object.read(wish.offset_bytes, &mut bytes);
                    let answer = read.map(|()| bytes).map_err(|error| error.to_string());
                    // After an error the receiver is gone.
                    let _ = wish.answer.send(answer);
                }
            });
        }
        drop(taken);
        let block = content.object.block_bytes().max(1);
        // Chunks hold whole blocks, so that an error affects one block and no block is read twice.
        let chunk = (CHUNK_BYTES / block).max(1) * block;
        let mut parts = VecDeque::new();
        let mut at = 0;
        let mut piece = content.next_piece(0);
        loop {
            while parts.len() < AHEAD && at < content.size_bytes {
                let Some(now) = &piece else {
                    parts.push_back((at, Part::Zeros(content.size_bytes - at)));
                    at = content.size_bytes;
                    break;
                };
                if at < now.offset_bytes {
                    parts.push_back((at, Part::Zeros(now.offset_bytes - at)));
                    at = now.offset_bytes;
                    continue;
                }
                if let Some(reason) = &now.lost {
                    parts.push_back((at, Part::Lost(reason.clone())));
                    at = content.size_bytes;
                    break;
                }
                let end = now.offset_bytes + now.length_bytes;
                let to = (at / chunk + 1).saturating_mul(chunk).min(end);
                let (answer, part) = bounded(1);
                let wish = Wish {
                    offset_bytes: at,
                    length_bytes: (to - at) as usize,
                    answer,
                };
                if wishes.send(wish).is_err() {
                    return Err(io::Error::other("the threads that read are gone"));
                }
                parts.push_back((at, Part::Data(part)));
                at = to;
                if at == end {
                    piece = content.next_piece(end);
                }
            }
            let Some((offset, part)) = parts.pop_front() else {
                return Ok(Ok(()));
            };
            match part {
                Part::Zeros(count) => write_zeros(out, count)?,
                Part::Lost(reason) => return Ok(Err(reason)),
                Part::Data(answer) => match answer.recv() {
                    Ok(Ok(bytes)) => out.write_all(&bytes)?,
                    _ => return write_up_to_the_bad_block(content, out, offset),
                },
            }
        }
    })
}

/// Writes the blocks before the first bad block from here on, and reports the bad block.
fn write_up_to_the_bad_block(
    content: &Content,
    out: &mut dyn Write,
    mut at: u64,
) -> io::Result<Result<(), String>> {
    let block = content.object.block_bytes().max(1);
    let mut bytes = vec![0; block as usize];
    while at < content.size_bytes {
        let count = (content.size_bytes - at).min(block - at % block);
        let part = &mut bytes[..count as usize];
        match content.object.read(at, part) {
            Ok(()) => out.write_all(part)?,
            Err(error) => return Ok(Err(format!("stopped at byte {at}: {error}"))),
        }
        at += count;
    }
    // The second read succeeded, for example because a device is back.
    Ok(Ok(()))
}

fn write_zeros(out: &mut dyn Write, mut count: u64) -> io::Result<()> {
    while count > 0 {
        let now = count.min(ZEROS.len() as u64);
        out.write_all(&ZEROS[..now as usize])?;
        count -= now;
    }
    Ok(())
}

static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
/// Bytes per read, unless a block is larger (16 MiB at most).
const CHUNK_BYTES: u64 = 1 << 20;
/// Number of chunks read ahead.
const AHEAD: usize = 16;
