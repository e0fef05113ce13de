//! Finds the buffers again that a cache device had when its pool was closed.

use crate::device::CacheDevice;
use crate::feed::{Hand, is_between, log_checksum};
use crate::index::{BlockKey, BufferLocation};
use millpond_checksum::verify_label;
use millpond_compress::decompress;
use millpond_device::DeviceError;
use millpond_env::sync::atomic::Ordering;
use millpond_ondisk::l2arc::{
    CacheEntry, CacheLogBlock, DeviceHeader, HEADER_OFFSET_BYTES, LOG_BLOCK_BYTES, LogBlockPointer,
};
use millpond_ondisk::{BLOCK_BYTES_MAX, CompressionKind};

/// Why a log block is not used.
enum LogTrouble {
    Read,
    Wrong,
}

impl CacheDevice {
    /// Rebuilds the index from the header and the log blocks of the device, as far as they are sound and the
    /// index has space. Afterwards the device is fed. If nothing is found, the header is written anew.
    ///
    /// The time depends on the number of log blocks: one read of at most 64 KiB for each. Ends early if the
    /// device is stopped. Does nothing once it has succeeded; it has to be called again if the header could not be read.
    pub fn rebuild(&self) {
        let mut hand = self.hand.lock();
        if hand.is_ready || !self.is_usable() {
            return;
        }
        match self.read_header() {
            // What the device has is not known. The next round tries again, until the device is given up.
            Err(_) => {
                self.counters.read_errors.add(1);
                self.note_error();
                return;
            }
            Ok(Some(header)) => {
                hand.is_first_sweep = header.is_first_sweep;
                hand.evict_bytes = header.evict_bytes.max(self.layout.start_bytes);
                let [newest, _] = header.newest;
                hand.offset_bytes = match newest.is_present() {
                    true => newest.end_bytes(),
                    false => self.layout.start_bytes,
                };
                self.restore(&mut hand, header.newest);
            }
            Ok(None) => self.counters.rebuild_header_errors.add(1),
        }
        if !self.is_usable() {
            return;
        }
        if hand.logs.is_empty() {
            *hand = Hand::new(&self.layout);
            self.index.lock().clear();
            if self.write_header(&hand).is_err() {
                self.counters.write_errors.add(1);
                self.note_error();
            }
        } else {
            self.counters.rebuilds.add(1);
        }
        hand.is_ready = true;
        self.note(&hand);
    }

    /// The header; `None` if it is not one that this device could have now.
    fn read_header(&self) -> Result<Option<DeviceHeader>, DeviceError> {
        let bytes = (self.device).read_vec(HEADER_OFFSET_BYTES, self.layout.header_bytes())?;
        let is_sealed = verify_label(&bytes, HEADER_OFFSET_BYTES).is_ok();
        let header = DeviceHeader::decode(&bytes).ok();
        Ok(header.filter(|header| is_sealed && self.could_have(header)))
    }

    fn could_have(&self, header: &DeviceHeader) -> bool {
        let (start, end) = (self.layout.start_bytes, self.layout.end_bytes);
        let [newest, _] = header.newest;
        header.pool_guid == self.id.pool_guid
            && header.vdev_guid == self.id.vdev_guid
            && header.log_entries == self.layout.log_entries()
            && header.start_bytes == start
            && header.end_bytes == end
            && header.evict_bytes <= end
            && (!newest.is_present() || (start..=end).contains(&newest.end_bytes()))
    }

    /// Reads the log blocks from the newest to the oldest.
    fn restore(&self, hand: &mut Hand, newest: [LogBlockPointer; 2]) {
        let [mut log, mut next] = newest;
        let mut logs = vec![];
        // Each log block and its buffers take space; more log blocks than fit are a forged chain.
        let units = self.layout.area_bytes() / self.layout.header_bytes() as u64;
        let logs_max = units / self.layout.log_entries().saturating_add(1);
        while log.is_present()
            && hand.is_valid(&self.layout, &log)
            && (logs.len() as u64) < logs_max
            && self.is_usable()
        {
            let block = match self.read_log_block(&log) {
                Ok(block) => block,
                Err(LogTrouble::Read) => {
                    self.counters.rebuild_read_errors.add(1);
                    break;
                }
                Err(LogTrouble::Wrong) => {
                    self.counters.rebuild_checksum_errors.add(1);
                    break;
                }
            };
            self.counters.rebuilt_log_blocks.add(1);
            logs.push(log);
            if !self.restore_entries(&block.entries) {
                self.counters.rebuild_full.add(1);
                break;
            }
            let is_last = is_between(
                hand.evict_bytes,
                next.payload_start_bytes,
                log.payload_start_bytes,
            );
            if !hand.is_first_sweep && is_last {
                break;
            }
            (log, next) = (next, block.previous);
        }
        logs.reverse();
        hand.logs = logs;
    }

    fn read_log_block(&self, log: &LogBlockPointer) -> Result<CacheLogBlock, LogTrouble> {
        // `is_valid` limits it to 64 KiB.
        let length = usize::try_from(log.stored_bytes()).map_err(|_| LogTrouble::Wrong)?;
        let stored = self.device.read_vec(log.offset_bytes, length);
        let stored = stored.map_err(|_| {
            self.note_error();
            LogTrouble::Read
        })?;
        if log_checksum(&stored) != log.checksum {
            return Err(LogTrouble::Wrong);
        }
        let plain = match log.compression() {
            Some(CompressionKind::Off) => stored,
            Some(kind) => {
                let mut plain = vec![0; LOG_BLOCK_BYTES];
                decompress(kind, &stored, &mut plain).map_err(|_| LogTrouble::Wrong)?;
                plain
            }
            None => return Err(LogTrouble::Wrong),
        };
        let count = self.layout.log_entries();
        CacheLogBlock::decode(&plain, count).map_err(|_| LogTrouble::Wrong)
    }

    /// Adds entries to the index, from the last to the first. Returns false if it is full.
    fn restore_entries(&self, entries: &[CacheEntry]) -> bool {
        let mut index = self.index.lock();
        for entry in entries.iter().rev() {
            if index.memory_bytes() >= self.index_bytes_max.load(Ordering::Relaxed) {
                return false;
            }
            let properties = entry.fields();
            let bytes = self.layout.aligned(properties.stored_bytes);
            let unit_mask = self.layout.header_bytes() as u64 - 1;
            let is_sound = properties.stored_bytes <= BLOCK_BYTES_MAX
                && entry.offset_bytes & unit_mask == 0
                && entry.offset_bytes >= self.layout.start_bytes
                && entry.offset_bytes.saturating_add(bytes) <= self.layout.end_bytes;
            let key = BlockKey {
                dva_words: entry.dva_words,
                birth: entry.birth,
            };
            let place = BufferLocation {
                offset_bytes: entry.offset_bytes,
                properties,
            };
            if is_sound && index.insert_older(key, place) {
                self.counters.rebuilt_buffers.add(1);
                self.counters.rebuilt_bytes.add(properties.stored_bytes);
            }
        }
        true
    }
}
