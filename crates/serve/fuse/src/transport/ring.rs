//! Requests and replies through io_uring (Linux 6.14), where root has enabled it.
//!
//! Without io_uring, a request costs two system calls and wakes any waiting thread. With it, the kernel has a
//! queue for each processor. It writes a request directly into the memory of a [`Slot`] that waits on the
//! queue of the processor on which the program runs. It takes the reply out of the same memory in the system
//! call that waits for the next request. Forget requests and the server's notices still use `/dev/fuse`.
//!
//! The layout of a slot's memory: `abi/slot.rs`.

use super::{BorrowedFd, Errno};
use crate::abi::slot::{
    COMMIT_AT, HEAD_BYTES, MEMORY_BYTES, PAYLOAD_AT, REPLY_AT, commit, get_u64, refuse, unpack,
};
use crate::abi::{DATA_BYTES_MAX, REPLY_HEADER_BYTES};
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use millpond_env::thread::yield_now;
use rustix::fd::AsRawFd;

/// `FUSE_IO_URING_CMD_REGISTER` and `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// The user data that identifies completions.
const REQUEST: u64 = 1;
const STOP: u64 = 2;
/// How often in a row the kernel may defer a command.
const PUT_OFF_MAX: u32 = 1000;

/// `struct iovec`.
#[repr(C)]
struct Stretch {
    base: *mut u8,
    bytes: usize,
}

/// Which side may access a slot's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// This process; the slot is not registered with the kernel yet.
    New,
    /// This process: the memory holds a request or its reply.
    Us,
    /// The kernel.
    Kernel,
}

/// The outcome of waiting for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// A request arrived.
    Request,
    /// The server is stopping.
    Stopped,
    /// The connection is over, or the kernel refuses the command.
    Over(Errno),
}

/// The memory for one request of one queue, with its own ring for the thread that serves it.
///
/// Soundness: the kernel writes to the memory only between the submission of a command and its completion.
/// Both happen in [`Slot::next`]. Until it has seen the completion, `owner` is [`Owner::Kernel`]: the memory
/// cannot be accessed, and it is never freed.
pub(crate) struct Slot {
    ring: IoUring<Entry128, cqueue::Entry>,
    memory: *mut [u8],
    stretches: *mut [Stretch; 2],
    owner: Owner,
    queue: u16,
    watches_stop: bool,
}

// SAFETY: the pointers are to memory that only this slot has.
unsafe impl Send for Slot {}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { queue, owner, .. } = self;
        write!(f, "Slot({queue}, {owner:?})")
    }
}

impl Slot {
    /// Creates a slot for a queue; it is not registered with the kernel yet.
    ///
    /// It allocates a little more than 1 MiB, of which untouched pages cost nothing.
    ///
    /// # Errors
    /// If the process may not use io_uring, or there is no memory for it.
    pub fn new(queue: u16) -> std::io::Result<Self> {
        let ring = IoUring::builder()
            .dontfork()
            .setup_coop_taskrun()
            .build(4)?;
        let memory = Box::into_raw(vec![0; MEMORY_BYTES].into_boxed_slice());
        let base = memory.cast::<u8>();
        let stretches = [
            Stretch {
                base,
                bytes: HEAD_BYTES,
            },
            Stretch {
                base: base.wrapping_add(PAYLOAD_AT),
                bytes: DATA_BYTES_MAX,
            },
        ];
        Ok(Self {
            ring,
            memory,
            stretches: Box::into_raw(Box::new(stretches)),
            owner: Owner::New,
            queue,
            watches_stop: false,
        })
    }

    /// The processor whose requests arrive in this slot.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Gives the slot to the kernel, with the reply if it holds a request, and waits.
    ///
    /// Returns at the next request, at the end of the connection, or when `stop` becomes readable.
    pub fn next(&mut self, device: BorrowedFd<'_>, stop: BorrowedFd<'_>) -> Next {
        for _ in 0..PUT_OFF_MAX {
            match self.fetch(device, stop) {
                Next::Over(Errno::AGAIN | Errno::INTR) => yield_now(),
                next => return next,
            }
        }
        Next::Over(Errno::AGAIN)
    }

    fn fetch(&mut self, device: BorrowedFd<'_>, stop: BorrowedFd<'_>) -> Next {
        let is_new = match self.owner {
            Owner::New => true,
            Owner::Us => false,
            // The completion was never seen, so the slot cannot be used again.
            Owner::Kernel => return Next::Over(Errno::BUSY),
        };
        let entry = self.command(device, is_new);
        if !self.watches_stop {
            let readable = u32::from(rustix::event::PollFlags::IN.bits());
            let watch = opcode::PollAdd::new(types::Fd(stop.as_raw_fd()), readable).build();
            // SAFETY: the command refers to no memory. The descriptor is looked up when it is submitted,
            // below.
            if unsafe { self.ring.submission().push(&watch.user_data(STOP).into()) }.is_err() {
                return Next::Over(Errno::BUSY);
            }
            self.watches_stop = true;
        }
        // SAFETY: this slot owns the memory and the table of it, no other code accesses them, and they stay
        // allocated until the completion is seen (`owner`). The descriptor is borrowed until the command is
        // submitted, below.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return Next::Over(Errno::BUSY);
        }
        self.owner = Owner::Kernel;
        self.wait(is_new)
    }

    fn wait(&mut self, is_new: bool) -> Next {
        let mut busy = 0;
        loop {
            let entered = self.ring.submit_and_wait(1);
            let mut outcome = None;
            let mut is_stopped = false;
            for completion in self.ring.completion() {
                match completion.user_data() {
                    REQUEST => outcome = Some(completion.result()),
                    _ => is_stopped = true,
                }
            }
            match outcome {
                Some(result) if result >= 0 => {
                    self.owner = Owner::Us;
                    return Next::Request;
                }
                Some(error) => {
                    self.owner = if is_new { Owner::New } else { Owner::Us };
                    return Next::Over(Errno::from_raw_os_error(error.saturating_neg()));
                }
                None if is_stopped => return Next::Stopped,
                None => {}
            }
            let Err(error) = entered else { continue };
            match Errno::from_io_error(&error).unwrap_or(Errno::IO) {
                Errno::INTR => {}
                Errno::AGAIN | Errno::BUSY if busy < PUT_OFF_MAX => {
                    busy += 1;
                    yield_now();
                }
                error => return Next::Over(error),
            }
        }
    }

    /// The command that registers the slot, or that commits the reply and fetches the next request.
    fn command(&mut self, device: BorrowedFd<'_>, is_new: bool) -> Entry128 {
        let commit = self
            .memory()
            .and_then(|memory| get_u64(memory, COMMIT_AT))
            .unwrap_or(0);
        // `fuse_uring_cmd_req`: flags, commit number, queue.
        let mut words = [0; 80];
        if let Some((_, rest)) = words.split_first_chunk_mut::<8>()
            && let Some((number, rest)) = rest.split_first_chunk_mut::<8>()
            && let Some((queue, _)) = rest.split_first_chunk_mut::<2>()
        {
            *number = commit.to_ne_bytes();
            *queue = self.queue.to_ne_bytes();
        }
        let which = if is_new { REGISTER } else { COMMIT_AND_FETCH };
        let entry = opcode::UringCmd80::new(types::Fd(device.as_raw_fd()), which)
            .cmd(words)
            .addr(Some(self.stretches.addr() as u64))
            .build()
            .user_data(REQUEST);
        with_length(entry, 2)
    }

    /// The memory, unless the kernel owns it.
    fn memory(&mut self) -> Option<&mut [u8]> {
        if self.owner == Owner::Kernel {
            return None;
        }
        // SAFETY: the memory was allocated in `new` and lives until `drop`. The kernel does not access it now
        // (`owner`), and the borrow is tied to the borrow of this slot.
        Some(unsafe { &mut *self.memory })
    }

    /// Passes the request in the slot to `answer`, with a buffer for the reply, and stores the reply for
    /// [`Slot::next`].
    ///
    /// `scratch` belongs to the thread. A short request is copied there; a longer request stays in place, and
    /// its reply is limited to the size of `scratch`. Returns the size of the longer of request and reply, in
    /// bytes.
    pub fn answer(
        &mut self,
        scratch: &mut [u8],
        answer: impl FnOnce(&[u8], &mut [u8]) -> Option<usize>,
    ) -> usize {
        let Some(memory) = self.memory() else {
            return 0;
        };
        let unique = get_u64(memory, 8).unwrap_or(0);
        let mut length_bytes = 0;
        let reply_bytes = unpack(memory).and_then(|at| {
            length_bytes = at.len();
            let reply_bytes = match scratch.get_mut(..at.len()) {
                Some(copy) => {
                    copy.copy_from_slice(memory.get(at)?);
                    answer(copy, memory.get_mut(REPLY_AT..)?)?
                }
                None => {
                    let reply_bytes = answer(memory.get(at)?, scratch)?;
                    let reply = scratch.get(..reply_bytes)?;
                    let room = memory.get_mut(REPLY_AT..)?.get_mut(..reply_bytes)?;
                    room.copy_from_slice(reply);
                    reply_bytes
                }
            };
            Some(reply_bytes).filter(|reply_bytes| *reply_bytes >= REPLY_HEADER_BYTES)
        });
        let reply_bytes = reply_bytes.unwrap_or_else(|| refuse(memory, unique));
        commit(memory, reply_bytes);
        length_bytes.max(reply_bytes)
    }
}

/// Sets the number of memory ranges in a submission entry. The crate has no name for this field.
fn with_length(entry: Entry128, stretches: u32) -> Entry128 {
    /// `len` of `io_uring_sqe`.
    const LENGTH_AT: usize = 24;
    // SAFETY: an entry is 128 bytes of integers for the kernel, without padding, so any bytes are valid.
    let mut bytes = unsafe { std::mem::transmute::<Entry128, [u8; 128]>(entry) };
    if let Some(word) = bytes.get_mut(LENGTH_AT..).and_then(<[u8]>::first_chunk_mut) {
        *word = stretches.to_ne_bytes();
    }
    // SAFETY: as above.
    unsafe { std::mem::transmute::<[u8; 128], Entry128>(bytes) }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Memory that the kernel may still write to is never freed.
        if self.owner != Owner::Kernel {
            // SAFETY: both were made by `Box` in `new` and are freed once. The kernel has no command on them.
            unsafe {
                drop(Box::from_raw(self.memory));
                drop(Box::from_raw(self.stretches));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::slot::PAYLOAD_BYTES_AT;

    fn get_u32(bytes: &[u8], at: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
    }
    /// A slot's memory with a request, laid out as the kernel does it.
    fn given(header: &[u8; 40], arguments: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut memory = vec![0xee; MEMORY_BYTES];
        let length = (40 + arguments.len() + payload.len()) as u32;
        memory[..40].copy_from_slice(header);
        memory[..4].copy_from_slice(&length.to_ne_bytes());
        memory[128..128 + arguments.len()].copy_from_slice(arguments);
        memory[PAYLOAD_BYTES_AT..PAYLOAD_BYTES_AT + 4]
            .copy_from_slice(&(payload.len() as u32).to_ne_bytes());
        memory[PAYLOAD_AT..PAYLOAD_AT + payload.len()].copy_from_slice(payload);
        memory
    }

    #[test]
    fn a_ring_request_has_two_buffers() {
        let entry = opcode::UringCmd80::new(types::Fd(3), REGISTER).build();
        // SAFETY: as in `with_length`.
        let bytes = unsafe { std::mem::transmute::<Entry128, [u8; 128]>(with_length(entry, 2)) };
        assert_eq!(get_u32(&bytes, 24), Some(2));
        assert_eq!(get_u32(&bytes, 8), Some(REGISTER));
    }

    #[test]
    fn short_and_long_requests_get_their_replies() {
        let Ok(mut slot) = Slot::new(0) else {
            println!("passed over: no io_uring here");
            return;
        };
        for payload in [10, 100_000] {
            let payload = vec![5; payload];
            let given = given(&[7; 40], &[1; 8], &payload);
            slot.memory().unwrap().copy_from_slice(&given);
            let mut scratch = vec![0; 1024];
            let longest = slot.answer(&mut scratch, |message, reply| {
                assert_eq!(message.len(), 48 + payload.len());
                assert_eq!(message[48..], payload);
                reply[..16].copy_from_slice(&[9; 16]);
                reply[16..26].copy_from_slice(&[6; 10]);
                Some(26)
            });
            assert_eq!(longest, 48 + payload.len());
            let memory = slot.memory().unwrap();
            assert_eq!(memory[..16], [9; 16]);
            assert_eq!(memory[PAYLOAD_AT..PAYLOAD_AT + 10], [6; 10]);
            assert_eq!(get_u32(memory, PAYLOAD_BYTES_AT), Some(10));
        }
    }
}
