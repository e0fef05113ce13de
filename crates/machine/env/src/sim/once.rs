//! Values that are initialised once.

use super::lock::Mutex;
use std::fmt;

/// As the standard library's.
pub struct OnceLock<T> {
    inner: std::sync::OnceLock<T>,
    /// Held during initialisation. Other threads wait for this lock, because a wait inside the real
    /// `OnceLock` is invisible to the scheduler.
    making: Mutex<()>,
}

impl<T> OnceLock<T> {
    /// As the standard library's.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            inner: std::sync::OnceLock::new(),
            making: Mutex::new(()),
        }
    }
    /// As the standard library's.
    pub fn get(&self) -> Option<&T> {
        self.inner.get()
    }
    /// As the standard library's.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.inner.get_mut()
    }
    /// As the standard library's.
    pub fn take(&mut self) -> Option<T> {
        self.inner.take()
    }
    /// As the standard library's.
    pub fn into_inner(self) -> Option<T> {
        self.inner.into_inner()
    }
    /// As the standard library's.
    ///
    /// # Errors
    /// With the value, if there is one already.
    pub fn set(&self, value: T) -> Result<(), T> {
        let _making = self.making.lock();
        self.inner.set(value)
    }
    /// As the standard library's.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.inner.get() {
            return value;
        }
        let _making = self.making.lock();
        self.inner.get_or_init(make)
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T> From<T> for OnceLock<T> {
    fn from(value: T) -> Self {
        let once = Self::new();
        let _ = once.set(value);
        once
    }
}
