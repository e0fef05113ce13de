//! `millpond stream recompress`, `decompress` and `redup`: streams that are changed on their way.

use crate::session::{Ending, Failure, Session};
use crate::text::number;
use crate::verbs::global::refused;
use crate::zfs::compression_of;
use clap::Args;
use millpond_inspect::stream::filter::{
    CompressionKind, Decompress, DecompressTarget, FilterError, Recompress, RecordFilter, Redup,
};
use millpond_inspect::stream::{StreamReader, StreamWriter};
use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Read, stdin, stdout};
use std::path::PathBuf;

const BUFFER_BYTES: usize = 1 << 20;

#[derive(Debug, Args)]
pub(super) struct RecompressOptions {
    /// The level, if the name of the function has none
    #[arg(short = 'l', long, value_name = "LEVEL")]
    level: Option<String>,
    /// The compression, as a value of the property compression: lz4, zstd, gzip-9 or off, for example
    algorithm: String,
}

#[derive(Debug, Args)]
pub(super) struct DecompressOptions {
    /// Say what was decompressed
    #[arg(short = 'v', long)]
    verbose: bool,
    /// The blocks, and how they are really compressed: OBJECT,OFFSET[,TYPE] with off, gzip, lz4 (default), lzjb, zstd or
    /// zle
    #[arg(value_name = "BLOCK")]
    blocks: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct RedupOptions {
    /// Say how many records were converted
    #[arg(short = 'v', long)]
    verbose: bool,
    /// The stored stream
    file: PathBuf,
}

fn failed(error: FilterError) -> Failure {
    match error {
        // The command ends quietly if its reader is gone.
        FilterError::Output(error) => Failure::Output(error),
        error => refused(error),
    }
}

/// Copies a stream to standard output.
fn copy(
    session: &mut Session,
    input: impl Read,
    filter: &mut dyn RecordFilter,
) -> Result<(), Failure> {
    if stdout().is_terminal() {
        let text = "a stream cannot be written to a terminal: redirect standard output";
        return Err(refused(text));
    }
    let mut source = StreamReader::new(BufReader::with_capacity(BUFFER_BYTES, input));
    let output = StreamWriter::new(BufWriter::with_capacity(BUFFER_BYTES, &mut *session.out));
    output
        .filtered(&mut source, filter)
        .map(drop)
        .map_err(failed)
}

/// Compresses the stream on standard input with another function.
pub(super) fn recompress(session: &mut Session, options: &RecompressOptions) -> Ending {
    let word = match &options.level {
        Some(level) => format!("{}-{level}", options.algorithm),
        None => options.algorithm.clone(),
    };
    let (kind, level) = compression_of(&word).map_err(refused)?;
    copy(session, stdin(), &mut Recompress::new(kind, level))?;
    Ok(0)
}

fn target(word: &str) -> Result<DecompressTarget, String> {
    let bad = || format!("'{word}': a block is named as OBJECT,OFFSET or OBJECT,OFFSET,TYPE");
    let mut parts = word.split(',');
    let mut number = || parts.next()?.parse().ok();
    let (object, offset) = number().zip(number()).ok_or_else(bad)?;
    let kind = match parts.next() {
        None => CompressionKind::Lz4,
        Some(name @ ("off" | "gzip" | "lz4" | "lzjb" | "zstd" | "zle")) => compression_of(name)?.0,
        Some(name) => {
            return Err(format!(
                "'{name}': the types are off, gzip, lz4, lzjb, zstd and zle"
            ));
        }
    };
    match parts.next() {
        Some(_) => Err(bad()),
        None => Ok(DecompressTarget {
            object,
            offset,
            kind,
        }),
    }
}

/// Decompresses single blocks of the stream on standard input.
pub(super) fn decompress(session: &mut Session, options: &DecompressOptions) -> Ending {
    let targets = options.blocks.iter().map(|word| target(word));
    let targets: Vec<_> = targets.collect::<Result<_, _>>().map_err(refused)?;
    let mut filter = Decompress::new(&targets);
    copy(session, stdin(), &mut filter)?;
    let mut status = 0;
    for (target, outcome) in filter.outcomes() {
        let block = format!("the block at {} of object {}", target.offset, target.object);
        if outcome.failed > 0 {
            let name = target.kind.name();
            writeln!(
                session.err,
                "millpond: {block} is not {name}: it stays as it is"
            )?;
            status = 1;
        } else if outcome.changed == 0 {
            writeln!(session.err, "millpond: {block} is not in the stream")?;
            status = 1;
        }
        if options.verbose && outcome.changed > 0 {
            writeln!(
                session.err,
                "{block}: {} decompressed",
                number::of(outcome.changed, "record", "records")
            )?;
        }
    }
    Ok(status)
}

/// Makes a stream without references to other records from a deduplicated one.
pub(super) fn redup(session: &mut Session, options: &RedupOptions) -> Ending {
    let open = || {
        let file = File::open(&options.file);
        file.map_err(|error| refused(format!("{}: {error}", options.file.display())))
    };
    let mut filter = Redup::new(open()?);
    copy(session, open()?, &mut filter)?;
    if options.verbose {
        let count = filter.replaced();
        writeln!(
            session.err,
            "{count} references replaced by the blocks themselves"
        )?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_named_by_object_offset_and_type() {
        let expected = |object, offset, kind| DecompressTarget {
            object,
            offset,
            kind,
        };
        assert_eq!(target("8,0"), Ok(expected(8, 0, CompressionKind::Lz4)));
        assert_eq!(
            target("8,512,off"),
            Ok(expected(8, 512, CompressionKind::Off))
        );
        assert_eq!(
            target("1,2,gzip"),
            Ok(expected(1, 2, CompressionKind::Gzip(6)))
        );
        for bad in ["", "8", "8,x", "8,0,", "8,0,zip", "8,0,lz4,9", "-1,0"] {
            assert!(target(bad).is_err(), "{bad}");
        }
    }
}
