//! Golden streams are received into new pools, which are judged, and sent again.

use crate::{Stream, first_difference, records, request_of};
use anyhow::{Context, Result, anyhow, ensure};
use millpond_compress::decompress;
use millpond_engine::{
    DestroyOptions, Naming, OpenOptions, Pool, PoolBuilder, PropertySource, ReceiveProblem,
    ReceiveRequest, Search, SendFlags, SendRequest, Unwatched, View,
};
use millpond_nvlist::{NvList, NvValue};
use millpond_ondisk::CompressionKind;
use millpond_stream::{Begin, Record, StreamFeatures, StreamKind, Taken, Write};
use millpond_tests::oracle::zdb;
use millpond_tests::runner::Outcome;
use millpond_tests::{images, recount};
use std::path::Path;

/// A golden stream with its bytes.
pub struct Golden {
    pub file: String,
    pub command: String,
    pub bytes: Vec<u8>,
}

impl Golden {
    pub fn load(folder: &Path, stream: &Stream) -> Result<Self> {
        Ok(Self {
            file: stream.file.clone(),
            command: stream.command.clone(),
            bytes: images::read_file(folder, stream.file.trim_end_matches(".zst"))?,
        })
    }

    /// The beginnings of the streams in it.
    pub fn begins(&self) -> Result<Vec<Begin>> {
        let all = records(&self.bytes)?;
        let begins = all.into_iter().filter_map(|taken| match taken.record {
            Record::Begin(begin) if begin.to_guid != 0 => Some(*begin),
            _ => None,
        });
        Ok(begins.collect())
    }
}

/// The streams to receive before this one, oldest first: each ends with the snapshot that the next one starts from.
pub fn before<'g>(all: &'g [Golden], stream: &Golden) -> Result<Vec<&'g Golden>> {
    let mut chain = vec![];
    let begins = stream.begins()?;
    let own = begins.first().context("no stream in it")?;
    let begins_raw = own.features.contains(StreamFeatures::RAW);
    let mut wanted = own.from_guid;
    while wanted != 0 {
        let mut found = None;
        // One that is redacted is the last choice.
        let is_redacted = |one: &&Golden| one.command.contains("--redact");
        let (redacted, whole): (Vec<_>, Vec<_>) = all.iter().partition(is_redacted);
        for one in whole.into_iter().chain(redacted) {
            let begins = one.begins()?;
            let Some(first) = begins.first() else {
                continue;
            };
            // A change of encrypted blocks needs the same blocks.
            let is_raw = |begin: &Begin| begin.features.contains(StreamFeatures::RAW);
            let is_other = is_raw(first) != begins_raw;
            let has_it = begins.iter().any(|begin| begin.to_guid == wanted);
            if has_it && !is_other && one.file != stream.file {
                found = Some((one, first.from_guid));
                break;
            }
        }
        let (one, from) = found.ok_or_else(|| anyhow!("no stream of {wanted:x}"))?;
        chain.push(one);
        wanted = from;
        ensure!(chain.len() < 9, "a circle of streams");
    }
    chain.reverse();
    Ok(chain)
}

/// Receives a stream below the dataset of the pool. The problem is returned, if there is one.
fn receive(pool: &Pool, bytes: &[u8]) -> Option<ReceiveProblem> {
    let request = ReceiveRequest {
        name: pool.name(),
        naming: Naming::WithoutPool,
        ..ReceiveRequest::default()
    };
    let outcome = pool.receive(&request, bytes, &mut Unwatched);
    outcome.failure.map(|failure| failure.problem)
}

/// The content of a stream without what depends on how blocks are compressed, and on which blocks of zeros are holes.
fn essence(records: Vec<Taken>) -> Result<Vec<Taken>> {
    let mut essence: Vec<Taken> = vec![];
    for mut taken in records {
        taken.at = 0;
        match &mut taken.record {
            // It is a hole here.
            Record::Redact(_) => continue,
            // Of a raw block, all of it counts.
            Record::Write(write) if write.mac != [0; 16] => {
                (write.checksum, write.flags) = (0, 0);
                (write.key, write.key_properties) = ([0; 4], 0);
            }
            Record::Write(write) => {
                let kind = CompressionKind::from_number(write.compression);
                if write.compression != 0 {
                    let mut content = vec![0; write.logical_bytes as usize];
                    decompress(
                        kind.context("no compression")?,
                        &taken.payload,
                        &mut content,
                    )
                    .map_err(|error| anyhow!("{error}"))?;
                    taken.payload = content;
                }
                *write = Write {
                    object: write.object,
                    offset: write.offset,
                    logical_bytes: write.logical_bytes,
                    ..Write::default()
                };
                // A hole, or a block of zeros that was stored.
                if taken.payload.iter().all(|byte| *byte == 0) {
                    continue;
                }
            }
            Record::Begin(begin) if begin.kind == StreamKind::Package => {
                // The guids of heads are those of this pool.
                taken.payload = described(&taken.payload)?;
                begin.payload_length = 0;
            }
            Record::End(end) => end.checksum = [0; 4],
            // The ends of sparse files are not known to a receiver.
            Record::Free(_) => continue,
            _ => {}
        }
        essence.push(taken);
    }
    Ok(essence)
}

fn sorted(value: &NvValue) -> String {
    let NvValue::List(list) = value else {
        return format!("{value:?}");
    };
    let mut pairs: Vec<String> = list
        .iter()
        .map(|pair| format!("{:?} {}", pair.name, sorted(&pair.value)))
        .collect();
    pairs.sort();
    format!("{pairs:?}")
}

/// What the list of a package says, without the guids of heads.
fn described(payload: &[u8]) -> Result<Vec<u8>> {
    if payload.is_empty() {
        return Ok(vec![]);
    }
    let list = NvList::decode(payload)?;
    let mut all = format!("{:?}", (list.get("fromsnap"), list.get("tosnap")));
    if let Some(NvValue::List(datasets)) = list.get("fss") {
        // The order of names is that of a table here.
        all.extend(datasets.iter().map(|pair| sorted(&pair.value)));
    }
    Ok(all.into_bytes())
}

fn sent(view: &View, request: &SendRequest) -> Result<Vec<u8>> {
    let mut bytes = vec![];
    view.send(request, &mut bytes)?;
    Ok(bytes)
}

/// The whole content of a snapshot.
pub fn content(view: &View, name: &str) -> Result<Vec<Taken>> {
    let request = SendRequest {
        name: name.to_owned(),
        from: None,
        has_between: false,
        // A receiver of split blocks keeps them small.
        flags: SendFlags::default(),
        ..SendRequest::default()
    };
    let mut all = essence(records(&sent(view, &request)?)?)?;
    for taken in &mut all {
        if let Record::Begin(begin) = &mut taken.record {
            **begin = Begin::default();
        }
    }
    Ok(all)
}

/// Makes datasets what they were before their second snapshot.
fn back_to(pool: &Pool, root: &str, first: &str, second: &str) -> Result<()> {
    let datasets = pool.datasets();
    let names = datasets.names_below(root)?;
    let has = |name: &str, snapshot: &str| -> Result<bool> {
        let view = pool.committed()?;
        let found = view.dataset(name)?.inner().snapshot_entries()?;
        Ok(found.iter().any(|(known, _)| known == snapshot))
    };
    for name in names.iter().rev() {
        if has(name, second)? {
            datasets.destroy(&format!("{name}@{second}"), DestroyOptions::default())?;
        }
        match has(name, first)? {
            true => datasets.rollback(&format!("{name}@{first}"))?,
            false => datasets.destroy(name, DestroyOptions::default())?,
        }
    }
    Ok(())
}

/// Compares the properties that the sender has set locally. Returns their number.
fn same_properties(golden: &View, ours: &View, begins: &[Begin]) -> Result<usize> {
    let mut count = 0;
    for begin in begins {
        let full = String::from_utf8_lossy(&begin.to_name).into_owned();
        let name = full.split('@').next().unwrap_or_default();
        for property in ["compression", "user:note"] {
            let of = |view: &View| {
                view.dataset(name)?
                    .inner()
                    .property(property, false)
                    .map_err(anyhow::Error::from)
            };
            let Some((value, PropertySource::Local)) = of(golden)? else {
                continue;
            };
            let ours = of(ours)?;
            ensure!(
                ours == Some((value.clone(), PropertySource::Received)),
                "{name}: {property} is {ours:?}, not {value:?}"
            );
            count += 1;
        }
    }
    Ok(count)
}

/// Receives a stream and all that must come before it, judges the pool, and sends it again.
pub fn outcome(folder: &Path, all: &[Golden], stream: &Golden) -> Result<Outcome> {
    let begins = stream.begins()?;
    let last = begins.last().context("no stream in it")?;
    let name = String::from_utf8_lossy(&last.to_name).into_owned();
    let pool_name = name.split(['/', '@']).next().unwrap_or_default().to_owned();
    let own = tempfile::tempdir()?;
    let image = own.path().join("d0.img");
    std::fs::File::create(&image)?.set_len(256 << 20)?;
    let pool = PoolBuilder::new(&pool_name).single(&image).create()?;
    let chain = match before(all, stream) {
        Ok(chain) => chain,
        Err(error) => return Ok(Outcome::PassedOver(error.to_string())),
    };
    // The older snapshot is redacted here, and not at the sender: this is said in what is sent again.
    let completes = chain.iter().any(|one| one.command.contains("--redact"));
    for one in chain {
        if let Some(problem) = receive(&pool, &one.bytes) {
            return Ok(Outcome::Failed(format!("{} before: {problem:?}", one.file)));
        }
    }
    let is_tree_of_two = [" -R -i ", " -R -I "];
    if is_tree_of_two
        .iter()
        .any(|words| stream.command.contains(words))
    {
        back_to(&pool, "sends/tree", "t1", "t2")?;
    }
    match receive(&pool, &stream.bytes) {
        None => {}
        Some(ReceiveProblem::Unsupported(what)) => return Ok(Outcome::PassedOver(what)),
        Some(problem) => return Ok(Outcome::Failed(format!("{problem:?}"))),
    }
    pool.export()?;
    let search = Search::new([own.path()]);
    let view = View::open(&search, &pool_name, &OpenOptions::default())?;
    if last.features.contains(StreamFeatures::RAW) {
        let keys = millpond_tests::record::load(folder)?.keys;
        let (_, key) = keys.iter().next().context("no key of the case")?;
        for begin in &begins {
            let name = String::from_utf8_lossy(&begin.to_name).into_owned();
            view.load_key(&name, &key.bytes)?;
        }
    }
    let faults = recount::faults_of(view.inner());
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    for begin in &begins {
        let name = String::from_utf8_lossy(&begin.to_name).into_owned();
        let found = view.dataset(&name)?;
        ensure!(
            found.inner().guid().0 == begin.to_guid,
            "{name}: another guid"
        );
        let created = found.inner().phys().creation_time;
        ensure!(created == begin.creation_s, "{name}: another time");
    }
    let (golden, _disks) = crate::golden_view(folder)?;
    if [" -p ", " -R "]
        .iter()
        .any(|option| stream.command.contains(option))
    {
        let known = same_properties(&golden, &view, &begins)?;
        // The raw one has none of these.
        let is_raw = last.features.contains(StreamFeatures::RAW);
        ensure!(known > 0 || is_raw, "no property came along");
    }
    // What was left out is compared below.
    let is_redacted = last.features.contains(StreamFeatures::REDACTED);
    let (theirs, ours) = (content(&golden, &name)?, content(&view, &name)?);
    if theirs == ours && is_redacted || theirs != ours && !is_redacted {
        return Ok(Outcome::Failed(first_difference(&theirs, &ours)));
    }
    // The order of datasets below is that of a table here.
    let request = request_of(&stream.command);
    let request = request.filter(|one| !one.package.is_recursive && !completes);
    let Some(request) = request else {
        drop(view);
        zdb::judge(own.path(), &pool_name)?.require(&stream.file);
        return Ok(Outcome::Passed("received".to_owned()));
    };
    // A bookmark is not received, but its snapshot is.
    let request = SendRequest {
        from: request.from.map(|from| from.replace("#b", "@")),
        // It is redacted already.
        redaction: None,
        ..request
    };
    let ours = sent(&view, &request)?;
    drop(view);
    zdb::judge(own.path(), &pool_name)?.require(&stream.file);
    if ours == stream.bytes {
        return Ok(Outcome::Passed(
            "received, and sent again byte for byte".into(),
        ));
    }
    let (theirs, ours) = (essence(records(&stream.bytes)?)?, essence(records(&ours)?)?);
    let differs = || Outcome::Failed(format!("sent again: {}", first_difference(&theirs, &ours)));
    Ok(match crate::spills_sent_plainly(&theirs, &ours)? {
        _ if theirs == ours => Outcome::Passed("received, and sent again".to_owned()),
        Some(count) => Outcome::Passed(format!(
            "received, and sent again, {count} spill blocks as such"
        )),
        None => differs(),
    })
}
