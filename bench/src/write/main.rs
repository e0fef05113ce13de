//! Compares the writing engine with file systems of the kernel.
//!
//! Usage: `write [--rounds N] [--folder FOLDER] [--only ROW]`.
//!
//! Each round creates every contender on new image files, does the same work on it, and removes it. A table
//! in Markdown goes to standard output; progress and absent contenders go to standard error. Contenders
//! alternate, so that a busy machine slows all of them.
#![forbid(unsafe_code)]

mod engine;
mod kernel;
mod table;
mod work;

use anyhow::Result;
use std::path::PathBuf;
use table::Table;
use work::{Contender, Subject};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (mut rounds, mut only) = (5u32, None);
    let mut folder = PathBuf::from("/dev/shm");
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(anyhow::anyhow!("{argument}: what?"));
        match argument.as_str() {
            "--rounds" => rounds = value()?.parse()?,
            "--folder" => folder = value()?.into(),
            "--only" => only = Some(value()?),
            _ => anyhow::bail!("unknown argument {argument}"),
        }
    }
    let scratch = folder.join(format!("millpond-write-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;
    let outcome = run(rounds, &scratch, only.as_deref());
    std::fs::remove_dir_all(&scratch)?;
    print!("{}", outcome?.markdown());
    Ok(())
}

fn run(rounds: u32, scratch: &std::path::Path, only: Option<&str>) -> Result<Table> {
    let mut contenders = vec![Contender::Millpond];
    if std::env::var_os("BENCH_ALONE").is_none() {
        for kernel in [Contender::Btrfs, Contender::Xfs] {
            match kernel::check(kernel) {
                Ok(()) => contenders.push(kernel),
                Err(why) => eprintln!("write: {kernel} is absent: {why}"),
            }
        }
    }
    let mut table = Table::default();
    for round in 1..=rounds {
        for contender in &contenders {
            for compressed in [false, true] {
                if compressed && *contender == Contender::Xfs {
                    continue;
                }
                eprintln!(
                    "write: round {round} of {rounds}: {contender}, compression {compressed}"
                );
                let mut subject: Box<dyn Subject> = match contender {
                    Contender::Millpond => Box::new(engine::Engine::make(scratch, compressed)?),
                    kernel => Box::new(kernel::Kernel::make(*kernel, scratch, compressed)?),
                };
                let measurements = work::run(&mut *subject, compressed, only)?;
                subject.finish()?;
                for measurement in measurements {
                    table.add(*contender, measurement);
                }
            }
        }
    }
    Ok(table)
}
