//! A table of descriptors that only some threads have.

use rustix::io::Errno;
use rustix::thread::UnshareFlags;

/// Gives the calling thread, and the threads that it starts from now on, a table of descriptors of their own, with
/// nothing but the standard streams in it.
///
/// Such a thread must neither use nor drop a descriptor that was opened before or elsewhere: its number means nothing
/// here, or something else.
pub(crate) fn leave_table() -> Result<(), Errno> {
    // SAFETY: only the table of descriptors becomes this thread's own. The callers, `server::reader` and
    // `server::writer`, hold no descriptor but those that they open afterwards.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FILES)? };
    let listed = std::fs::read_dir("/proc/thread-self/fd").map_err(|_| Errno::NOENT)?;
    let names = listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let numbers: Vec<i32> = names.filter_map(|name| name.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        // The descriptor of the listing itself is already closed.
        let is_open = std::fs::symlink_metadata(format!("/proc/thread-self/fd/{number}")).is_ok();
        if is_open {
            // SAFETY: the copies in this table have no owner: the owners are in other threads, with another table.
            unsafe { rustix::io::close(number) };
        }
    }
    Ok(())
}
