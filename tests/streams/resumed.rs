//! A receive that OpenZFS left unfinished is completed by its stream, and that stream is sent again.

use crate::{first_difference, golden_view, records};
use anyhow::{Result, anyhow, ensure};
use millpond_dataset::properties::ResumeToken;
use millpond_engine::{
    OpenOptions, Pool, ReceiveProblem, ReceiveRequest, ResumeFrom, Search, SendFlags, SendRequest,
    Unwatched, View, WriteOptions,
};
use millpond_tests::oracle::zdb;
use millpond_tests::runner::Outcome;
use millpond_tests::{images, recount};
use std::path::Path;

const POOL: &str = "presume";

fn rest(token: &ResumeToken, from: Option<String>) -> SendRequest {
    SendRequest {
        name: token.to_name.clone(),
        from,
        flags: SendFlags {
            large_blocks: token.large_blocks,
            embedded: token.embedded,
            compressed: token.compressed,
            raw: token.is_raw,
        },
        resume: Some(ResumeFrom {
            object: token.object,
            offset: token.offset,
        }),
        guids: Some((token.to_guid, token.from_guid)),
        ..SendRequest::default()
    }
}

fn sent(view: &View, name: &str) -> Result<Vec<u8>> {
    let mut bytes = vec![];
    let request = SendRequest {
        name: name.to_owned(),
        ..SendRequest::default()
    };
    view.send(&request, &mut bytes)?;
    Ok(bytes)
}

pub fn outcome(folder: &Path) -> Result<Outcome> {
    let token = |file: &str| -> Result<ResumeToken> {
        let text = String::from_utf8(images::read_file(folder, file)?)?;
        ResumeToken::parse(text.lines().next().unwrap_or_default()).map_err(|e| anyhow!("{e}"))
    };
    let (full, incremental) = (token("token.txt")?, token("token-incremental.txt")?);
    let remainder = images::read_file(folder, "remainder.zsend")?;
    let (view, disks) = golden_view(folder)?;
    let mut ours = vec![];
    view.send(&rest(&full, None), &mut ours)?;
    if ours != remainder {
        let (theirs, ours) = (records(&remainder)?, records(&ours)?);
        return Ok(Outcome::Failed(first_difference(&theirs, &ours)));
    }
    drop((view, disks));
    let own = tempfile::tempdir()?;
    let packed = images::read_file(folder, "d0.img")?;
    std::fs::write(own.path().join("d0.img"), packed)?;
    let search = Search::new([own.path()]);
    let (options, writing) = (OpenOptions::default(), WriteOptions::default());
    let pool = Pool::open(&search, POOL, &options, &writing)?;
    let receive = |name: &str, bytes: &[u8]| {
        let request = ReceiveRequest {
            name: format!("{POOL}/{name}"),
            is_resumable: true,
            ..ReceiveRequest::default()
        };
        let outcome = pool.receive(&request, bytes, &mut Unwatched);
        outcome.failure.map(|failure| failure.problem)
    };
    // Another stream is refused, and leaves the state.
    let mut other = rest(&full, None);
    other.resume = Some(ResumeFrom {
        object: full.object + 1,
        offset: 0,
    });
    let mut wrong = vec![];
    pool.send(&other, &mut wrong)?;
    let problem = receive("partial", &wrong);
    ensure!(
        problem == Some(ReceiveProblem::NotResumable(format!("{POOL}/partial"))),
        "{problem:?}"
    );
    // It is cut once more, and continues from there.
    let problem = receive("partial", &remainder[..200_000]);
    let Some(ReceiveProblem::Interrupted(later)) = problem else {
        return Ok(Outcome::Failed(format!("{problem:?}")));
    };
    let later = ResumeToken::parse(&later).map_err(|error| anyhow!("{error}"))?;
    ensure!(later.bytes > full.bytes, "{later:?}");
    for (name, token) in [("partial", &later), ("whole", &incremental)] {
        let mut bytes = vec![];
        pool.send(&rest(token, None), &mut bytes)?;
        if let Some(problem) = receive(name, &bytes) {
            return Ok(Outcome::Failed(format!("{name}: {problem:?}")));
        }
    }
    pool.export()?;
    let view = View::open(&search, POOL, &options)?;
    let faults = recount::faults_of(view.inner());
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    for (name, number) in [("partial", 1), ("whole", 2)] {
        let theirs = sent(&view, &format!("{POOL}/src@{number}"))?;
        let snapshot = String::from_utf8_lossy(incremental.to_name.as_bytes()).into_owned();
        let last = snapshot
            .split('@')
            .next_back()
            .unwrap_or_default()
            .to_owned();
        let last = if number == 1 { "1".to_owned() } else { last };
        let ours = sent(&view, &format!("{POOL}/{name}@{last}"))?;
        // They differ in the name alone.
        ensure!(
            ours.len() == theirs.len(),
            "{name}: {} and {}",
            ours.len(),
            theirs.len()
        );
    }
    drop(view);
    zdb::judge(own.path(), POOL)?.require("resumed");
    Ok(Outcome::Passed(
        "sent byte for byte, and received twice".into(),
    ))
}
