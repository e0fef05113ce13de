//! Reads and changes file attributes.

use super::{Answered, Handler};
use crate::abi::{Attributes, Reply, Request, SetAttr, StatxTime, set_attr};
use millpond_posix::{Caller, FileFlags, SetAttributes, SetTime, Stat, Timestamp};

/// The extended attribute with a program's capabilities. A change of the program removes it.
pub(super) const CAPABILITIES: &[u8] = b"security.capability";

/// Converts attributes to the kernel's format.
pub(super) fn shown(inode: u64, stat: &Stat) -> Attributes {
    let time = |time: Timestamp| StatxTime {
        seconds: time.seconds,
        nanoseconds: u32::try_from(time.nanoseconds % 1_000_000_000).unwrap_or(0),
    };
    let flags = [
        (FileFlags::IMMUTABLE, 0x10),
        (FileFlags::APPENDONLY, 0x20),
        (FileFlags::NODUMP, 0x40),
    ];
    let flags = flags.iter().filter(|(flag, _)| stat.flags.contains(*flag));
    let kind = u32::try_from(stat.kind.entry_type()).unwrap_or(0) << 12;
    Attributes {
        inode,
        size_bytes: stat.size_bytes,
        sectors: stat.sectors,
        atime: time(stat.atime),
        mtime: time(stat.mtime),
        ctime: time(stat.ctime),
        birth: time(stat.crtime),
        mode: kind | stat.permissions,
        links: u32::try_from(stat.links).unwrap_or(u32::MAX),
        uid: stat.uid,
        gid: stat.gid,
        device: stat.device.unwrap_or((0, 0)),
        block_bytes: u32::try_from(stat.block_bytes).unwrap_or(u32::MAX),
        flags: flags.map(|(_, bit)| bit).sum(),
    }
}

impl Handler<'_> {
    pub(super) fn get_attributes(&self, node: u64, reply: &mut Reply<'_>) -> Answered {
        let node = self.node(node)?;
        let (validity, attributes) = self.attributes_of(&node)?;
        reply.put_attributes_reply(validity, &attributes);
        Ok(())
    }

    pub(super) fn statx(&self, node: u64, _mask: u32, reply: &mut Reply<'_>) -> Answered {
        let node = self.node(node)?;
        let (validity, attributes) = self.attributes_of(&node)?;
        reply.put_statx_reply(validity, &attributes);
        Ok(())
    }

    pub(super) fn set_attributes(
        &self,
        request: &Request<'_>,
        asked: &SetAttr,
        reply: &mut Reply<'_>,
    ) -> Answered {
        let node = self.node(request.node)?;
        let has = |bit: u32| asked.valid & bit != 0;
        let time = |is_set: bool, is_now: bool, (seconds, nanoseconds): (i64, u32)| {
            is_set.then_some(match is_now {
                true => SetTime::Now,
                false => SetTime::To(Timestamp {
                    seconds,
                    nanoseconds: u64::from(nanoseconds),
                }),
            })
        };
        // A chown that changes nothing arrives without any field. It clears the set-user and set-group bits
        // like any other chown.
        let is_empty_chown = asked.valid == 0;
        let old = is_empty_chown.then(|| self.vfs.stat(&node)).transpose()?;
        let set = SetAttributes {
            permissions: has(set_attr::MODE).then_some(asked.mode & 0o7777),
            uid: match &old {
                Some(old) => Some(old.uid),
                None => has(set_attr::UID).then_some(asked.uid),
            },
            gid: has(set_attr::GID).then_some(asked.gid),
            size_bytes: has(set_attr::SIZE).then_some(asked.size),
            atime: time(has(set_attr::ATIME), has(set_attr::ATIME_NOW), asked.atime),
            mtime: time(has(set_attr::MTIME), has(set_attr::MTIME_NOW), asked.mtime),
            ..SetAttributes::default()
        };
        let changes_owner = set.uid.is_some() || set.gid.is_some();
        // Linux clears the bits at every change of owner, no matter which user makes it. At a change of
        // length it clears them only if the kernel says so.
        let caller = Caller {
            is_privileged: !(changes_owner || has(set_attr::KILL_SUIDGID)),
            ..Self::caller(request)
        };
        if changes_owner || set.size_bytes.is_some() {
            self.take_capabilities(&node)?;
        }
        self.vfs.set_attributes(&caller, &node, &set)?;
        let (validity, attributes) = self.attributes_of(&node)?;
        reply.put_attributes_reply(validity, &attributes);
        Ok(())
    }

    pub(super) fn stat_file_system(&self, node: u64, reply: &mut Reply<'_>) -> Answered {
        let node = self.node(node)?;
        let stat = self.vfs.stat_file_system(&node)?;
        for word in [
            stat.blocks,
            stat.blocks_free,
            stat.blocks_free,
            stat.files,
            stat.files_free,
        ] {
            reply.put_u64(word);
        }
        let unit = u32::try_from(stat.block_bytes).unwrap_or(u32::MAX);
        for word in [unit, stat.name_bytes_max, unit, 0] {
            reply.put_u32(word);
        }
        reply.put(&[0; 24]);
        Ok(())
    }
}
