//! Mount options that override properties while a file system is mounted.

use super::Mounts;
use millpond_control::{DatasetInfo, Source, Value};

/// The properties that mount options override, with their values, in the order of the options.
pub(super) fn overridden(options: &[String]) -> Vec<(&'static str, bool)> {
    let words = options.iter().flat_map(|words| words.split(','));
    let known = words.filter_map(|word| {
        Some(match word {
            "ro" => ("readonly", true),
            "rw" => ("readonly", false),
            "exec" => ("exec", true),
            "noexec" => ("exec", false),
            "suid" | "setuid" => ("setuid", true),
            "nosuid" | "nosetuid" => ("setuid", false),
            "dev" | "devices" => ("devices", true),
            "nodev" | "nodevices" => ("devices", false),
            "atime" => ("atime", true),
            "noatime" => ("atime", false),
            "relatime" => ("relatime", true),
            "norelatime" => ("relatime", false),
            _ => return None,
        })
    });
    known.collect()
}

impl Mounts {
    /// Shows the mount options of a mounted file system in place of its properties. In a pool that was imported read-only `ro`
    /// is one of them.
    pub fn show_options(&self, info: &mut DatasetInfo) {
        let table = self.table.lock();
        let mut own = table.iter().filter(|entry| entry.info.dataset == info.name);
        let Some(entry) = own.find(|entry| entry.handle.is_alive()) else {
            return;
        };
        let of_pool = entry.is_in_read_only_pool.then_some(("readonly", true));
        for (name, is_on) in overridden(&entry.options).into_iter().chain(of_pool) {
            let shown = info.properties.iter_mut().find(|p| p.name == name);
            let Some(shown) = shown else { continue };
            let was_on = match &shown.value {
                Some(Value::Number(number)) => *number == 1,
                Some(value) => value.text() == Some("on"),
                None => continue,
            };
            if was_on != is_on {
                shown.value = Some(Value::Number(is_on.into()));
                shown.source = Source::Temporary;
            }
        }
    }
}
