//! The identity of the running system.

/// Node name, release, version and machine, as pool histories record them.
#[must_use]
pub fn system() -> String {
    let name = rustix::system::uname();
    let parts = [
        name.nodename(),
        name.release(),
        name.version(),
        name.machine(),
    ];
    parts.map(|part| part.to_string_lossy()).join(" ")
}

/// The node name, as pool labels record it; `None` if it is empty.
#[must_use]
pub fn hostname() -> Option<String> {
    let system = rustix::system::uname();
    let name = system.nodename().to_string_lossy().into_owned();
    (!name.is_empty()).then_some(name)
}

/// The host id that an administrator has set: that of the environment variable `ZFS_HOSTID` (hexadecimal), otherwise of
/// `/etc/hostid`; 0 if there is none.
#[must_use]
pub fn hostid() -> u64 {
    let given = std::env::var("ZFS_HOSTID").unwrap_or_default();
    let given = given.strip_prefix("0x").unwrap_or(&given);
    if let Ok(number) = u32::from_str_radix(given, 16) {
        return number.into();
    }
    let bytes = std::fs::read("/etc/hostid").unwrap_or_default();
    bytes
        .first_chunk::<4>()
        .map_or(0, |word| u64::from(u32::from_ne_bytes(*word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_s_description_begins_with_its_name() {
        let name = hostname().unwrap_or_default();
        assert!(system().starts_with(&name), "{}", system());
        assert!(system().split(' ').count() >= 4, "{}", system());
    }
}
