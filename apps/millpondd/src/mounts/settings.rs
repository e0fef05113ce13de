//! The mount settings in a dataset's properties.

use super::options::overridden;
use millpond_control::{DatasetInfo, Source, Value};
use millpond_engine::AccessTimes;

/// The properties that determine whether, where and how a file system is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(super) dataset: String,
    pub(super) mountpoint: String,
    /// The dataset that the mount point is inherited from.
    pub(super) mountpoint_from: String,
    /// 0 `off`, 1 `on`, 2 `noauto`.
    pub(super) can_mount: u64,
    pub(super) read_only: bool,
    pub(super) exec: bool,
    pub(super) suid: bool,
    pub(super) devices: bool,
    pub(super) overlay: bool,
    pub(super) is_locked: bool,
    /// Whether blocks were left out of the stream that it was received from.
    pub(super) is_redacted: bool,
    /// Whether its receive was interrupted.
    pub(super) is_partial: bool,
    /// Whether the mount point is that of a request, not that of the properties.
    pub(super) is_placed: bool,
    /// Mount options in place of `atime` and `relatime`.
    pub(super) access_times: AccessTimes,
}

/// The properties that [`Settings::read`] needs.
pub(super) const WANTED: [&str; 10] = [
    "mountpoint",
    "canmount",
    "readonly",
    "exec",
    "setuid",
    "devices",
    "overlay",
    "keystatus",
    "redacted",
    "inconsistent",
];

impl Settings {
    pub(super) fn read(info: &DatasetInfo) -> Self {
        let number = |name: &str, preset: u64| match info.property(name).map(|p| &p.value) {
            Some(Some(Value::Number(number))) => *number,
            Some(Some(Value::Text(word))) => match word.as_str() {
                "on" => 1,
                "noauto" => 2,
                _ => 0,
            },
            _ => preset,
        };
        let mountpoint = info.property("mountpoint");
        let path = mountpoint.and_then(|p| p.value.as_ref()?.text());
        let from = match mountpoint.map(|p| &p.source) {
            Some(Source::Inherited(from)) => from.clone(),
            Some(Source::Default) => String::new(),
            _ => info.name.clone(),
        };
        Self {
            dataset: info.name.clone(),
            mountpoint: path.unwrap_or("none").to_owned(),
            mountpoint_from: from,
            can_mount: number("canmount", 1),
            read_only: number("readonly", 0) == 1,
            exec: number("exec", 1) == 1,
            suid: number("setuid", 1) == 1,
            devices: number("devices", 1) == 1,
            overlay: number("overlay", 1) == 1,
            is_locked: info
                .property("keystatus")
                .and_then(|p| p.value.as_ref())
                .is_some_and(|value| {
                    matches!(value, Value::Number(1)) || value.text() == Some("unavailable")
                }),
            is_redacted: number("redacted", 0) == 1,
            is_partial: number("inconsistent", 0) == 1,
            is_placed: false,
            access_times: AccessTimes::default(),
        }
    }

    pub(super) fn is_automatic(&self) -> bool {
        let is_whole = !self.is_redacted && !self.is_partial;
        self.can_mount == 1 && self.mountpoint.starts_with('/') && is_whole
    }

    /// Whether it can be mounted by name.
    pub(super) fn is_mountable(&self) -> bool {
        self.can_mount != 0 && self.mountpoint.starts_with('/') && !self.is_locked
    }

    /// The mount options passed to the operating system: read-only, exec, suid, devices.
    pub(super) fn flags(&self) -> [bool; 4] {
        [self.read_only, self.exec, self.suid, self.devices]
    }

    /// A sort key that puts parents before children.
    pub(super) fn order(&self) -> (Vec<&str>, &str) {
        (self.mountpoint.split('/').collect(), &self.dataset)
    }

    /// Replaces the mount point by that of a request, if it gave one.
    pub(super) fn place(&mut self, at: Option<&str>) {
        if let Some(at) = at {
            at.clone_into(&mut self.mountpoint);
            self.can_mount = 1;
            self.is_placed = true;
        }
    }

    /// Applies mount options that override properties for this mount.
    pub(super) fn override_with(&mut self, options: &[String]) {
        for (property, is_on) in overridden(options) {
            match property {
                "readonly" => self.read_only = is_on,
                "exec" => self.exec = is_on,
                "setuid" => self.suid = is_on,
                "devices" => self.devices = is_on,
                "atime" => self.access_times.atime = Some(is_on),
                _ => self.access_times.relatime = Some(is_on),
            }
        }
        self.read_only |= self.dataset.contains('@');
        // Reading changes nothing either. The files themselves only know the property.
        if self.read_only {
            self.access_times.atime = Some(false);
        }
    }
}
