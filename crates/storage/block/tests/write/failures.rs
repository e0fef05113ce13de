//! What happens when leaves fail.
