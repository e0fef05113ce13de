//! Extended attributes, including access control lists.

use super::attributes::CAPABILITIES;
use super::{Answered, EINVAL, Handler, Refusal};
use crate::abi::{Operation, Reply, Request, SETXATTR_KILL_SGID};
use millpond_posix::{Caller, XattrMode};

const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
const ERANGE: i32 = 34;

impl Handler<'_> {
    pub(super) fn set_xattr(&self, request: &Request<'_>) -> Answered {
        let Operation::SetXattr {
            name,
            value,
            flags,
            ext_flags,
        } = request.operation
        else {
            return Err(Refusal::Number(EINVAL));
        };
        let node = self.node(request.node)?;
        let mode = match flags {
            0 => XattrMode::Set,
            XATTR_CREATE => XattrMode::Create,
            XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Refusal::Number(EINVAL)),
        };
        let caller = Caller {
            is_privileged: ext_flags & SETXATTR_KILL_SGID == 0,
            // A caller that may not keep the bit is treated as a member of none of the file's groups.
            gid: match ext_flags & SETXATTR_KILL_SGID {
                0 => request.gid,
                _ => u32::MAX,
            },
            ..Self::caller(request)
        };
        self.vfs.set_xattr(&caller, &node, name, value, mode)?;
        if name == CAPABILITIES {
            self.session.inodes.note_capabilities(node.number(), None);
        }
        Ok(())
    }

    pub(super) fn get_xattr(
        &self,
        node: u64,
        name: &[u8],
        length: u32,
        reply: &mut Reply<'_>,
    ) -> Answered {
        let node = self.node(node)?;
        let value = self.vfs.xattr(&node, name)?;
        put_value(&value, length, reply)
    }

    pub(super) fn list_xattr(&self, node: u64, length: u32, reply: &mut Reply<'_>) -> Answered {
        let node = self.node(node)?;
        let mut list = vec![];
        for name in self.vfs.xattr_names(&node)? {
            list.extend(name);
            list.push(0);
        }
        put_value(&list, length, reply)
    }

    pub(super) fn remove_xattr(&self, node: u64, name: &[u8]) -> Answered {
        let node = self.node(node)?;
        self.vfs.remove_xattr(&node, name)?;
        Ok(())
    }
}

/// Adds a value, or only its length if that was requested.
fn put_value(value: &[u8], length: u32, reply: &mut Reply<'_>) -> Answered {
    if length == 0 {
        reply.put_u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        reply.put_u32(0);
        return Ok(());
    }
    if value.len() > length as usize {
        return Err(Refusal::Number(ERANGE));
    }
    reply.put(value);
    Ok(())
}
