//! The rotating hand: writes buffers and log blocks, and forgets what lies ahead of it.
//!
//! The order makes every crash harmless. Buffers and log blocks become stable first, then the header leads to
//! them. A header that is older than the buffers leads to entries of overwritten ones, whose bytes fail the
//! checksum of their block.

use crate::Buffer;
use crate::device::CacheDevice;
use crate::index::{BlockKey, BufferLocation};
use millpond_checksum::{checksum, seal_label};
use millpond_compress::{ZstdHeader, ZstdLevel, compress};
use millpond_device::DeviceError;
use millpond_env::sync::atomic::Ordering;
use millpond_ondisk::l2arc::{
    CacheEntry, CacheLayout, CacheLogBlock, DeviceHeader, HEADER_OFFSET_BYTES, LOG_BLOCK_BYTES,
    LogBlockPointer,
};
use millpond_ondisk::{ChecksumKind, CompressionKind, Endian};

/// Buffers are written in runs of this size, in bytes, or one at a time if they are larger.
const RUN_BYTES: usize = 1 << 20;

/// The state of the area. What is in it is known from the header, from the log blocks and from what was written.
#[derive(Debug)]
pub(crate) struct Hand {
    /// Where the next buffer goes.
    pub(crate) offset_bytes: u64,
    /// The area from the hand up to here is free.
    pub(crate) evict_bytes: u64,
    /// Whether nothing was overwritten yet.
    pub(crate) is_first_sweep: bool,
    /// The log blocks on the device, the newest last.
    pub(crate) logs: Vec<LogBlockPointer>,
    /// Entries of buffers that no log block describes yet.
    pending: Vec<CacheEntry>,
    /// Their aligned sizes, in bytes.
    pending_bytes: u64,
    /// Whether the content is known: nothing is written before.
    pub(crate) is_ready: bool,
}

impl Hand {
    pub(crate) fn new(layout: &CacheLayout) -> Self {
        Self {
            offset_bytes: layout.start_bytes,
            evict_bytes: layout.start_bytes,
            is_first_sweep: true,
            logs: vec![],
            pending: vec![],
            pending_bytes: 0,
            is_ready: false,
        }
    }

    /// The newest log block and the one before it.
    pub(crate) fn newest(&self) -> [LogBlockPointer; 2] {
        let mut newest = self.logs.iter().rev().copied();
        [
            newest.next().unwrap_or_default(),
            newest.next().unwrap_or_default(),
        ]
    }

    /// Whether a log block pointer leads into the area, to a log block whose buffers were not overwritten.
    pub(crate) fn is_valid(&self, layout: &CacheLayout, log: &LogBlockPointer) -> bool {
        let start = log.payload_start_bytes;
        let last = log.end_bytes().saturating_sub(1);
        let is_inside = log.stored_bytes() <= LOG_BLOCK_BYTES as u64
            && log.offset_bytes >= layout.start_bytes
            && start >= layout.start_bytes
            && last <= layout.end_bytes;
        let (hand, evict) = (self.offset_bytes, self.evict_bytes);
        is_inside
            && (self.is_first_sweep
                || !(is_between(hand, start, last)
                    || is_between(evict, start, last)
                    || is_between(start, hand, evict)
                    || is_between(last, hand, evict)))
    }
}

/// Whether `offset` lies in a range of the area that may go around its end.
pub(crate) fn is_between(offset: u64, low: u64, high: u64) -> bool {
    match low.cmp(&high) {
        std::cmp::Ordering::Less => (low..=high).contains(&offset),
        std::cmp::Ordering::Equal => offset == high,
        std::cmp::Ordering::Greater => offset >= low || offset <= high,
    }
}

/// Bytes that go to the device with one write.
struct Run {
    offset_bytes: u64,
    bytes: Vec<u8>,
    buffers: Vec<(BlockKey, BufferLocation)>,
}

impl Run {
    fn new() -> Self {
        Self {
            offset_bytes: 0,
            bytes: Vec::new(),
            buffers: vec![],
        }
    }
}

impl CacheDevice {
    /// The most bytes that [`CacheDevice::feed`] takes at once: a quarter of the area.
    #[must_use]
    pub fn feed_bytes_max(&self) -> u64 {
        self.layout.area_bytes() / 4
    }

    /// Writes copies of blocks. Those that do not fit any more, and those that it has already, are left out.
    /// Returns the bytes that were written.
    ///
    /// Errors are counted; what was not written is not found later.
    pub fn feed(&self, buffers: &[Buffer]) -> u64 {
        if !self.is_writable || !self.is_usable() {
            return 0;
        }
        let mut hand = self.hand.lock();
        if !hand.is_ready {
            return 0;
        }
        let chosen = self.choose(buffers);
        let bytes: u64 = chosen.iter().map(|buffer| self.aligned_bytes(buffer)).sum();
        if bytes == 0 {
            return 0;
        }
        let log_entries = self.layout.log_entries();
        let logs = (chosen.len() as u64 + hand.pending.len() as u64)
            .checked_div(log_entries)
            .unwrap_or(0);
        self.evict_ahead(&mut hand, bytes + logs * LOG_BLOCK_BYTES as u64);
        let outcome = self
            .write_buffers(&mut hand, &chosen)
            .and_then(|()| self.device.flush())
            .and_then(|()| self.write_header(&hand));
        self.counters.feeds.add(1);
        self.note(&hand);
        match outcome {
            Ok(()) => bytes,
            Err(_) => {
                // Which log blocks are on the device is not known: none is used any more.
                self.counters.write_errors.add(1);
                hand.logs.clear();
                hand.pending.clear();
                hand.pending_bytes = 0;
                self.note(&hand);
                self.note_error();
                0
            }
        }
    }

    fn aligned_bytes(&self, buffer: &Buffer) -> u64 {
        self.layout.aligned(buffer.bytes.len() as u64)
    }

    /// The buffers that are written: not those that it has, and not more than fit.
    fn choose<'a>(&self, buffers: &'a [Buffer]) -> Vec<&'a Buffer> {
        let index = self.index.lock();
        let index_bytes_max = self.index_bytes_max.load(Ordering::Relaxed);
        let count_max = index.room_within(index_bytes_max);
        let mut bytes_left = self.feed_bytes_max();
        let mut chosen: Vec<&Buffer> = vec![];
        let mut keys = std::collections::HashSet::new();
        for buffer in buffers {
            let bytes = self.aligned_bytes(buffer);
            let is_sound = buffer.bytes.len() as u64 == buffer.properties.stored_bytes;
            if !is_sound || index.get(&buffer.key).is_some() || bytes > bytes_left {
                continue;
            }
            if chosen.len() == count_max {
                break;
            }
            if !keys.insert(buffer.key) {
                continue;
            }
            bytes_left -= bytes;
            chosen.push(buffer);
        }
        chosen
    }

    /// Makes `bytes` ahead of the hand free, at its present place or at the start of the area.
    fn evict_ahead(&self, hand: &mut Hand, bytes: u64) {
        let (start, end) = (self.layout.start_bytes, self.layout.end_bytes);
        let evict = |range| {
            let count = self.index.lock().evict(range);
            self.counters.evicted.add(count);
        };
        if hand.offset_bytes.saturating_add(bytes) > end {
            if !hand.is_first_sweep {
                evict(hand.offset_bytes..end);
            }
            (hand.offset_bytes, hand.evict_bytes) = (start, start);
            hand.is_first_sweep = false;
        }
        if !hand.is_first_sweep {
            hand.evict_bytes = hand
                .evict_bytes
                .max(hand.offset_bytes.saturating_add(bytes));
            evict(hand.offset_bytes..hand.evict_bytes);
        }
        let mut logs = std::mem::take(&mut hand.logs);
        logs.retain(|log| hand.is_valid(&self.layout, log));
        hand.logs = logs;
    }

    fn write_buffers(&self, hand: &mut Hand, chosen: &[&Buffer]) -> Result<(), DeviceError> {
        let mut run = Run::new();
        for buffer in chosen {
            let bytes = self.aligned_bytes(buffer);
            if !run.bytes.is_empty() && run.bytes.len() as u64 + bytes > RUN_BYTES as u64 {
                self.write_run(&mut run)?;
            }
            let offset_bytes = self.append(hand, &mut run, &buffer.bytes, bytes);
            let place = BufferLocation {
                offset_bytes,
                properties: buffer.properties,
            };
            run.buffers.push((buffer.key, place));
            if self.layout.log_entries() == 0 {
                continue;
            }
            hand.pending.push(entry(buffer, offset_bytes));
            hand.pending_bytes += bytes;
            if hand.pending.len() as u64 >= self.layout.log_entries() {
                self.append_log_block(hand, &mut run);
            }
        }
        self.write_run(&mut run)
    }

    /// Adds bytes to a run, with zeros up to `aligned_bytes`. Returns their offset on the device.
    fn append(&self, hand: &mut Hand, run: &mut Run, bytes: &[u8], aligned_bytes: u64) -> u64 {
        let offset_bytes = hand.offset_bytes;
        if run.bytes.is_empty() {
            run.offset_bytes = offset_bytes;
        }
        let length = run.bytes.len();
        run.bytes.extend_from_slice(bytes);
        run.bytes
            .resize(length + usize::try_from(aligned_bytes).unwrap_or(0), 0);
        hand.offset_bytes += aligned_bytes;
        offset_bytes
    }

    fn append_log_block(&self, hand: &mut Hand, run: &mut Run) {
        let entries = std::mem::take(&mut hand.pending);
        let payload_start_bytes = entries.first().map_or(0, |entry| entry.offset_bytes);
        let block = CacheLogBlock {
            previous: hand.newest()[1],
            entries,
        };
        let plain = block.encode();
        let limit = LOG_BLOCK_BYTES - self.layout.header_bytes().min(LOG_BLOCK_BYTES - 1);
        let small = compress(CompressionKind::Lz4, ZstdLevel::DEFAULT, &plain, limit);
        let (bytes, compression) = match small {
            Some(small) => (small, CompressionKind::Lz4),
            None => (plain, CompressionKind::Off),
        };
        let aligned_bytes = self.layout.aligned(bytes.len() as u64);
        let start = run.bytes.len();
        let offset_bytes = self.append(hand, run, &bytes, aligned_bytes);
        let stored = run.bytes.get(start..).unwrap_or_default();
        let mut log = LogBlockPointer::new(offset_bytes, aligned_bytes, compression);
        log.payload_start_bytes = payload_start_bytes;
        log.payload_bytes = std::mem::take(&mut hand.pending_bytes);
        log.checksum = log_checksum(stored);
        hand.logs.push(log);
        self.counters.log_writes.add(1);
    }

    fn write_run(&self, run: &mut Run) -> Result<(), DeviceError> {
        let run = std::mem::replace(run, Run::new());
        if run.bytes.is_empty() {
            return Ok(());
        }
        self.counters.writes.add(1);
        self.device.write(run.offset_bytes, &run.bytes)?;
        self.counters.write_bytes.add(run.bytes.len() as u64);
        let mut index = self.index.lock();
        for (key, place) in run.buffers {
            index.insert(key, place);
        }
        Ok(())
    }

    /// Writes the header. What it leads to must be stable.
    pub(crate) fn write_header(&self, hand: &Hand) -> Result<(), DeviceError> {
        if !self.is_writable {
            return Ok(());
        }
        let header = DeviceHeader {
            pool_guid: self.id.pool_guid,
            vdev_guid: self.id.vdev_guid,
            log_entries: self.layout.log_entries(),
            evict_bytes: hand.evict_bytes,
            is_first_sweep: hand.is_first_sweep,
            start_bytes: self.layout.start_bytes,
            end_bytes: self.layout.end_bytes,
            newest: hand.newest(),
            log_bytes: hand.logs.iter().map(LogBlockPointer::stored_bytes).sum(),
            log_blocks: hand.logs.len() as u64,
            trim_time_s: 0,
            trim_state: 0,
        };
        let Some(mut bytes) = header.encode(self.layout.header_bytes()) else {
            return Ok(());
        };
        if seal_label(&mut bytes, HEADER_OFFSET_BYTES).is_err() {
            return Ok(());
        }
        self.counters.writes.add(1);
        self.device.write(HEADER_OFFSET_BYTES, &bytes)?;
        self.counters.write_bytes.add(bytes.len() as u64);
        Ok(())
    }

    /// Copies what statistics show of the hand.
    pub(crate) fn note(&self, hand: &Hand) {
        let used = match hand.is_first_sweep {
            true => hand.offset_bytes - self.layout.start_bytes,
            false => (self.layout.area_bytes())
                .saturating_sub(hand.evict_bytes.saturating_sub(hand.offset_bytes)),
        };
        self.used_bytes.store(used, Ordering::Relaxed);
        self.log_blocks
            .store(hand.logs.len() as u64, Ordering::Relaxed);
    }
}

/// The entry in a log block.
fn entry(buffer: &Buffer, offset_bytes: u64) -> CacheEntry {
    let fields = buffer.properties;
    let is_zstd = fields.compression == CompressionKind::Zstd.number() && !fields.is_protected;
    let header = is_zstd.then(|| ZstdHeader::decode(&buffer.bytes).ok());
    CacheEntry {
        dva_words: buffer.key.dva_words,
        birth: buffer.key.birth,
        properties: fields.encode(),
        offset_bytes,
        compression_level: header.flatten().map_or(0, |header| header.level.code()),
    }
}

/// The checksum of a log block as stored; zeros, which are wrong, if its length is none of a log block.
pub(crate) fn log_checksum(stored: &[u8]) -> [u64; 4] {
    checksum(ChecksumKind::Fletcher4, stored, Endian::Little, None).unwrap_or_default()
}
