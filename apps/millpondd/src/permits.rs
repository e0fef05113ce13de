//! Connection permits: limits on concurrent connections, in total and per user.

use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use std::collections::BTreeMap;

/// Limits on concurrent connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermitLimits {
    /// Of all users.
    pub all: usize,
    /// Of all users except root.
    pub not_root: usize,
    /// Of all users together who are neither root nor the daemon's own user.
    pub strangers: usize,
    /// Of each of those users.
    pub each: usize,
}

/// The permits of a socket.
#[derive(Debug)]
pub struct ConnectionPermits {
    limits: PermitLimits,
    own_user: u32,
    taken: Mutex<BTreeMap<u32, usize>, rank::Leaf>,
}

impl ConnectionPermits {
    /// Creates a set with all permits available.
    #[must_use]
    pub fn new(limits: PermitLimits, own_user: u32) -> Arc<Self> {
        Arc::new(Self {
            limits,
            own_user,
            taken: Mutex::default(),
        })
    }

    /// Acquires a permit for a user (`None` for an unknown user on a network).
    ///
    /// # Errors
    /// Why no permit is available, as a message.
    pub fn take(self: &Arc<Self>, user: Option<u32>) -> Result<ConnectionPermit, String> {
        let limits = &self.limits;
        // No user has this uid; the kernel reserves it.
        let user = user.unwrap_or(u32::MAX);
        let mut taken = self.taken.lock();
        let all: usize = taken.values().sum();
        let of = |user: u32| taken.get(&user).copied().unwrap_or(0);
        let is_stranger = user != 0 && user != self.own_user;
        if is_stranger && of(user) >= limits.each {
            return Err(format!(
                "too many connections of user {user}: at most {} at once",
                limits.each
            ));
        }
        let own = if self.own_user == 0 {
            0
        } else {
            of(self.own_user)
        };
        let strangers = all.saturating_sub(of(0)).saturating_sub(own);
        let is_full = all >= limits.all
            || (user != 0 && all >= limits.not_root)
            || (is_stranger && strangers >= limits.strangers);
        if is_full {
            return Err("too many connections: try again later".into());
        }
        *taken.entry(user).or_default() += 1;
        drop(taken);
        Ok(ConnectionPermit {
            permits: Arc::clone(self),
            user,
        })
    }
}

/// A permit for one connection. It is released on drop, also during a panic.
#[derive(Debug)]
pub struct ConnectionPermit {
    permits: Arc<ConnectionPermits>,
    user: u32,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut taken = self.permits.taken.lock();
        if let Some(count) = taken.get_mut(&self.user) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                taken.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PermitLimits = PermitLimits {
        all: 10,
        not_root: 9,
        strangers: 5,
        each: 2,
    };

    #[test]
    fn a_permit_is_free_again_once_dropped() {
        let permits = ConnectionPermits::new(LIMITS, 0);
        let first = permits.take(Some(7)).unwrap();
        let _second = permits.take(Some(7)).unwrap();
        let why = permits.take(Some(7)).unwrap_err();
        assert!(why.contains("user 7"), "{why}");
        drop(first);
        permits.take(Some(7)).unwrap();
    }

    #[test]
    fn users_leave_permits_for_root_and_the_own_user() {
        let permits = ConnectionPermits::new(LIMITS, 1000);
        let strangers: Vec<ConnectionPermit> = (1..=20)
            .filter_map(|n| permits.take(Some(n)).ok())
            .collect();
        assert_eq!(strangers.len(), 5);
        assert!(permits.take(None).is_err());
        let own: Vec<ConnectionPermit> = (0..20)
            .filter_map(|_| permits.take(Some(1000)).ok())
            .collect();
        assert_eq!(own.len(), 4);
        let root = permits.take(Some(0)).unwrap();
        assert!(permits.take(Some(0)).is_err());
        drop((strangers, own, root));
        assert!(permits.taken.lock().is_empty());
    }
}
