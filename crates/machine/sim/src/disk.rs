//! A simulated disk.

use crate::Content;
use crate::fault::{Fault, FaultPlan, Scope};
use crate::hang::{HangPlan, Hung, Kind};
use crate::journal::Event;
use crate::page_cache::PageCache;
use crate::trace::{Request, RequestKind, hash};
use crate::world::Shared;
use millpond_device::{Device, DeviceError, DiscardSupport, WriteRequest};
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex};
use std::fmt;
use std::ops::Range;

/// A disk of a [`crate::World`], behind a page cache like that of Linux.
///
/// Reads see a write at once; the write is durable once flushed. A flush that fails by [`Fault::Fail`]
/// loses all writes that are not durable. It reports the error once, and the next flush succeeds. Reads
/// return the new bytes until [`SimDisk::evict`] or a power cut, although the disk has the old ones.
pub struct SimDisk {
    shared: Arc<Shared>,
    number: usize,
    size_bytes: AtomicU64,
    /// What the disk answers when it is measured.
    measured_bytes: AtomicU64,
    sector_bytes: u32,
    cache: Mutex<PageCache>,
    faults: Mutex<Option<FaultPlan>>,
    hung: Hung,
    is_absent: AtomicBool,
    lacks_discards: AtomicBool,
    has_secure_discards: AtomicBool,
    broken_promises: AtomicU64,
    write_back_errors: AtomicU64,
}

impl SimDisk {
    pub(crate) fn new(
        shared: Arc<Shared>,
        number: usize,
        size_bytes: u64,
        sector_bytes: u32,
        content: Content,
    ) -> Self {
        Self {
            shared,
            number,
            size_bytes: AtomicU64::new(size_bytes),
            measured_bytes: AtomicU64::new(size_bytes),
            sector_bytes,
            cache: Mutex::new(PageCache::new(content)),
            faults: Mutex::new(None),
            hung: Hung::default(),
            is_absent: AtomicBool::new(false),
            lacks_discards: AtomicBool::new(false),
            has_secure_discards: AtomicBool::new(false),
            broken_promises: AtomicU64::new(0),
            write_back_errors: AtomicU64::new(0),
        }
    }
    /// The index of the disk in its world.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }
    /// Sets the faults from now on; `None` removes them.
    pub fn set_faults(&self, plan: Option<FaultPlan>) {
        *self.faults.lock() = plan;
    }
    /// Stops answering, as the plan describes.
    pub fn hang(&self, plan: HangPlan) {
        self.hung.set(Some(plan));
    }
    /// Answers all requests again and executes those that hang.
    pub fn release(&self) {
        self.hung.set(None);
    }
    /// The number of requests that hang.
    #[must_use]
    pub fn hanging(&self) -> usize {
        self.hung.waiting()
    }
    /// Waits until a request hangs.
    pub fn await_hang(&self) {
        self.hung.wait_for_one();
    }
    fn may_hang(&self, kind: Kind, offset_bytes: u64) {
        // An absent disk answers at once, with an error.
        if self.is_absent.load(Ordering::SeqCst) {
            return;
        }
        (self.hung).pass(kind, offset_bytes, |ns| self.shared.put_forward(ns));
    }
    /// Makes the disk larger or smaller. Who has it open learns of it by [`Device::measure`].
    pub fn resize(&self, size_bytes: u64) {
        self.measured_bytes.store(size_bytes, Ordering::SeqCst);
    }
    /// The size of the last [`SimDisk::resize`].
    pub(crate) fn resized_bytes(&self) -> u64 {
        self.measured_bytes.load(Ordering::SeqCst)
    }
    /// Removes the disk or attaches it again. While absent, every request fails; the content is kept.
    pub fn set_absent(&self, is_absent: bool) {
        self.is_absent.store(is_absent, Ordering::SeqCst);
    }
    /// Sets what the disk can discard. A new one can, but not securely.
    pub fn set_discard_support(&self, support: DiscardSupport) {
        self.lacks_discards.store(!support.plain, Ordering::SeqCst);
        self.has_secure_discards
            .store(support.secure, Ordering::SeqCst);
    }
    /// The number of requests that went wrong by [`FaultPlan`] so far.
    #[must_use]
    pub fn broken_promises(&self) -> u64 {
        self.broken_promises.load(Ordering::Relaxed)
    }
    /// Corrupts bytes silently, at once and durably, as bit rot does.
    pub fn rot(&self, offset_bytes: u64, bytes: &[u8]) {
        let mut cache = self.cache.lock();
        let part = Some(offset_bytes..offset_bytes.saturating_add(bytes.len() as u64));
        cache.write(offset_bytes, bytes);
        cache.flushed(part.as_ref());
        let disk = self.number;
        self.shared.record(Event::Write {
            disk,
            offset_bytes,
            bytes: bytes.into(),
        });
        self.shared.record(Event::Flush { disk, part });
    }
    /// A copy of the content, including unflushed writes.
    #[must_use]
    pub fn content(&self) -> Content {
        self.cache.lock().content().clone()
    }
    /// Evicts clean pages. Where a flush failed and no write followed, reads return the disk's old bytes
    /// from now on.
    pub fn evict(&self) {
        self.cache.lock().evict();
    }
    /// As [`SimDisk::content`] after [`SimDisk::evict`].
    pub(crate) fn content_without_lost(&self) -> Content {
        self.cache.lock().without_lost()
    }
    fn draw(&self, scope: Scope, offset_bytes: u64) -> Option<Fault> {
        let fault = self.faults.lock().as_mut()?.draw(scope, offset_bytes);
        if fault.is_some() {
            self.broken_promises.fetch_add(1, Ordering::Relaxed);
        }
        fault
    }
    fn elsewhere(&self, offset_bytes: u64, length: usize) -> u64 {
        // Half a disk away, so certainly a wrong offset.
        let sector = u64::from(self.sector_bytes).max(1);
        let span = self.size_bytes().saturating_sub(length as u64).max(1);
        ((offset_bytes + self.size_bytes() / 2) % span) / sector * sector
    }
    fn admit(
        &self,
        action: &'static str,
        offset_bytes: u64,
        length: u64,
    ) -> Result<(), DeviceError> {
        DeviceError::check_range(offset_bytes, length, self.size_bytes())?;
        if self.is_absent.load(Ordering::SeqCst) {
            return Err(failed(action, offset_bytes, length, GONE));
        }
        let delay_ns = match self.faults.lock().as_mut() {
            Some(plan) => plan.delay_ns(),
            None => 0,
        };
        if delay_ns > 0 {
            self.shared.pass(delay_ns);
            // The disk may have been removed during the delay.
            if self.is_absent.load(Ordering::SeqCst) {
                return Err(failed(action, offset_bytes, length, GONE));
            }
        }
        self.shared.tick(length);
        Ok(())
    }
}

/// The error message of requests to an absent disk.
const GONE: &str = "the disk is gone";

fn failed(action: &'static str, offset_bytes: u64, length_bytes: u64, words: &str) -> DeviceError {
    DeviceError::Io {
        action,
        offset_bytes,
        length_bytes,
        // EIO, or ENXIO for an absent disk.
        errno: if words == GONE { 6 } else { 5 },
        message: words.to_owned(),
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimDisk({}, {} bytes)", self.number, self.size_bytes())
    }
}

impl Device for SimDisk {
    fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::SeqCst)
    }
    fn measure(&self) -> Result<u64, DeviceError> {
        self.admit("measure", 0, 0)?;
        let now = self.measured_bytes.load(Ordering::SeqCst);
        self.size_bytes.fetch_max(now, Ordering::SeqCst);
        Ok(now)
    }
    fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.may_hang(Kind::Read, offset_bytes);
        let at_ns = self.shared.now_ns();
        let outcome = self.read_now(offset_bytes, buffer);
        let hash = outcome.as_ref().map_or(0, |()| hash(buffer));
        let request = self.request(RequestKind::Read, offset_bytes, buffer.len() as u64, hash);
        self.traced(at_ns, request, outcome)
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.may_hang(Kind::Write, offset_bytes);
        let at_ns = self.shared.now_ns();
        let outcome = self.write_now(offset_bytes, bytes);
        let length = bytes.len() as u64;
        let request = self.request(RequestKind::Write, offset_bytes, length, hash(bytes));
        self.traced(at_ns, request, outcome)
    }
    fn write_durable(&self, requests: &mut [WriteRequest<'_>]) {
        let first = requests.first().map_or(0, |request| request.offset_bytes);
        self.may_hang(Kind::DurableWrite, first);
        let at_ns = self.shared.now_ns();
        for request in requests.iter_mut() {
            request.outcome = self.write_now(request.offset_bytes, request.bytes);
        }
        // Settle all requests together, as for adjacent writes: a page may contain parts of several
        // requests.
        let mut lost = None;
        for request in requests.iter() {
            let end = request.offset_bytes + request.bytes.len() as u64;
            if request.outcome.is_ok() && lost.is_none() {
                lost = self.settle("write", Some(request.offset_bytes..end)).err();
            }
        }
        for request in requests {
            if let (Some(error), Ok(())) = (&lost, &request.outcome) {
                request.outcome = Err(error.clone());
            }
            let (offset, length) = (request.offset_bytes, request.bytes.len() as u64);
            let kind = RequestKind::DurableWrite;
            let traced = self.request(kind, offset, length, hash(request.bytes));
            let _ = self.traced(at_ns, traced, request.outcome.clone());
        }
    }
    fn write_back_errors(&self) -> u64 {
        self.write_back_errors.load(Ordering::SeqCst)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.may_hang(Kind::Flush, 0);
        let at_ns = self.shared.now_ns();
        let outcome = self.flush_now();
        self.traced(at_ns, self.request(RequestKind::Flush, 0, 0, 0), outcome)
    }
    fn discard_support(&self) -> Option<DiscardSupport> {
        Some(DiscardSupport {
            plain: !self.lacks_discards.load(Ordering::SeqCst),
            secure: self.has_secure_discards.load(Ordering::SeqCst),
        })
    }
    fn discard_securely(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        match self.has_secure_discards.load(Ordering::SeqCst) {
            true => self.discard(offset_bytes, length_bytes),
            false => Err(failed("discard", offset_bytes, length_bytes, "unsupported")),
        }
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        let at_ns = self.shared.now_ns();
        let outcome = self.discard_now(offset_bytes, length_bytes);
        let request = self.request(RequestKind::Discard, offset_bytes, length_bytes, 0);
        self.traced(at_ns, request, outcome)
    }
}

impl SimDisk {
    fn request(
        &self,
        kind: RequestKind,
        offset_bytes: u64,
        length_bytes: u64,
        hash: u64,
    ) -> Request {
        Request {
            kind,
            disk: self.number,
            offset_bytes,
            length_bytes,
            hash,
            is_ok: true,
            at_ns: 0,
        }
    }
    fn traced(
        &self,
        at_ns: u64,
        request: Request,
        outcome: Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let is_ok = outcome.is_ok();
        let request = Request {
            is_ok,
            at_ns,
            ..request
        };
        self.shared.trace(&request);
        outcome
    }
    fn read_now(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let length = buffer.len() as u64;
        self.admit("read", offset_bytes, length)?;
        let fault = self.draw(Scope::Reads, offset_bytes);
        let from = match fault {
            Some(Fault::Fail | Fault::Lose) => {
                return Err(failed("read", offset_bytes, length, "simulated"));
            }
            Some(Fault::Misdirect) => self.elsewhere(offset_bytes, buffer.len()),
            _ => offset_bytes,
        };
        self.cache.lock().content().read(from, buffer);
        if fault == Some(Fault::Corrupt)
            && let Some(byte) = buffer.first_mut()
        {
            *byte ^= 0x10;
        }
        Ok(())
    }
    fn write_now(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let length = bytes.len() as u64;
        self.admit("write", offset_bytes, length)?;
        let mut to = offset_bytes;
        let mut bytes: Arc<[u8]> = bytes.into();
        if let Some((at, mask)) = self.shared.flip(&bytes) {
            let mut changed = bytes.to_vec();
            changed[at] ^= mask;
            bytes = changed.into();
        }
        match self.draw(Scope::Writes, offset_bytes) {
            None => {}
            Some(Fault::Fail) => return Err(failed("write", offset_bytes, length, "simulated")),
            Some(Fault::Lose) => return Ok(()),
            Some(Fault::Misdirect) => to = self.elsewhere(offset_bytes, bytes.len()),
            Some(Fault::Corrupt) => {
                // The lowest byte of the last word: fletcher2 does not notice some pairs of errors in high bits,
                // which come up when RAID-Z computes a column from a wrong one.
                let mut changed = bytes.to_vec();
                let at = changed.len().saturating_sub(8);
                if let Some(byte) = changed.get_mut(at) {
                    *byte ^= 0x10;
                }
                bytes = changed.into();
            }
        }
        let mut cache = self.cache.lock();
        cache.write(to, &bytes);
        self.shared.record(Event::Write {
            disk: self.number,
            offset_bytes: to,
            bytes,
        });
        drop(cache);
        Ok(())
    }
    fn flush_now(&self) -> Result<(), DeviceError> {
        self.admit("flush", 0, 0)?;
        self.settle("flush", None)
    }
    /// Makes all writes durable, or only those that touch the pages of `part`.
    fn settle(&self, action: &'static str, part: Option<Range<u64>>) -> Result<(), DeviceError> {
        let bytes = part.clone().unwrap_or_default();
        let fault = self.draw(Scope::Flushes, 0);
        let disk = self.number;
        let mut cache = self.cache.lock();
        match fault {
            Some(Fault::Fail) => {
                cache.flush_failed(part.as_ref());
                self.shared.record(Event::LostWrites { disk, part });
                self.write_back_errors.fetch_add(1, Ordering::SeqCst);
                let length = bytes.end.saturating_sub(bytes.start);
                Err(failed(action, bytes.start, length, "simulated"))
            }
            Some(_) => Ok(()),
            None => {
                cache.flushed(part.as_ref());
                self.shared.record(Event::Flush { disk, part });
                Ok(())
            }
        }
    }
    fn discard_now(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        self.admit("discard", offset_bytes, length_bytes)?;
        if self.draw(Scope::Discards, offset_bytes).is_some() {
            return Err(failed("discard", offset_bytes, length_bytes, "simulated"));
        }
        if self.lacks_discards.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut cache = self.cache.lock();
        let leaves = self.shared.discarded();
        cache.discard(offset_bytes, length_bytes, leaves);
        self.shared.record(Event::Discard {
            disk: self.number,
            offset_bytes,
            length_bytes,
            leaves,
        });
        drop(cache);
        Ok(())
    }
}
