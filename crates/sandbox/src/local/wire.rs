//! Messages between gateway and broker: a few bytes and at most one descriptor, over a socket that keeps message
//! boundaries. Both ends are ours; the sandbox never sees this socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Enter the network namespace whose descriptor comes with this message.
    Enter = 1,
    Listen = 2,
    Connect = 3,
    /// Open a netlink socket that queries the other sockets.
    OpenDiagSocket = 4,
}

/// A request, with a number that its reply repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) operation: Operation,
    pub(crate) port: u16,
    pub(crate) number: u32,
}

impl Request {
    pub(crate) fn encode(self) -> [u8; 8] {
        let [p0, p1] = self.port.to_le_bytes();
        let [n0, n1, n2, n3] = self.number.to_le_bytes();
        [self.operation as u8, 0, p0, p1, n0, n1, n2, n3]
    }

    pub(crate) fn decode(bytes: [u8; 8]) -> Option<Self> {
        let [operation, _, p0, p1, n0, n1, n2, n3] = bytes;
        let operation = match operation {
            1 => Operation::Enter,
            2 => Operation::Listen,
            3 => Operation::Connect,
            4 => Operation::OpenDiagSocket,
            _ => return None,
        };
        Some(Self {
            operation,
            port: u16::from_le_bytes([p0, p1]),
            number: u32::from_le_bytes([n0, n1, n2, n3]),
        })
    }
}

/// Encodes a reply: the number of the request and the kernel's errno, or 0.
pub(crate) fn encode_reply(number: u32, errno: i32) -> [u8; 8] {
    let [n0, n1, n2, n3] = number.to_le_bytes();
    let [e0, e1, e2, e3] = errno.to_le_bytes();
    [n0, n1, n2, n3, e0, e1, e2, e3]
}

pub(crate) fn decode_reply(bytes: [u8; 8]) -> (u32, i32) {
    let [n0, n1, n2, n3, e0, e1, e2, e3] = bytes;
    (u32::from_le_bytes([n0, n1, n2, n3]), i32::from_le_bytes([e0, e1, e2, e3]))
}

pub(crate) fn send(socket: impl AsFd, bytes: [u8; 8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message; `None` when the other side is gone.
pub(crate) fn receive(socket: impl AsFd) -> io::Result<Option<([u8; 8], Option<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 8];
    let got = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut rights) = message {
            descriptor = rights.next();
        }
    }
    match got.bytes {
        0 => Ok(None),
        8 => Ok(Some((bytes, descriptor))),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_encoding_and_decoding() {
        let request = Request { operation: Operation::Connect, port: 4096, number: 7 };
        assert_eq!(Request::decode(request.encode()), Some(request));
        assert_eq!(Request::decode([9; 8]), None);
        assert_eq!(decode_reply(encode_reply(7, -3)), (7, -3));
    }
}
