//! Groups under threads.
