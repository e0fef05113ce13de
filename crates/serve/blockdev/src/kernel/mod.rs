//! The system calls that need `unsafe`: requests to loop devices, and a table of descriptors of a thread's own.

mod loops;
mod table;

pub(crate) use loops::{
    FLAG_AUTOCLEAR, FLAG_PARTITIONS, FLAG_READ_ONLY, LoopStatus, clear, configure, free_number,
    resize, set_read_only, set_status, status,
};
pub(crate) use table::leave_table;
