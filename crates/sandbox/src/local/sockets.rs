//! Measures the memory of a sandbox's sockets by asking the kernel (`sock_diag`) in its network namespace. A socket
//! may be in flight between processes and have no descriptor, so looking at processes would not find all of them.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

const AF_UNIX: u8 = 1;
const AF_INET_FAMILIES: [u8; 2] = [2, 10];
const TCP_AND_UDP: [u8; 2] = [6, 17];
const AF_NETLINK: u8 = 16;

/// The most that one sender can have in flight, unless it has raised its buffer size.
pub(super) const MAX_IN_FLIGHT: u64 = 2 * 212_992;
/// The number of messages that a datagram socket queues, one more than the kernel's default.
const MAX_QUEUED_DATAGRAMS: u64 = 11;
const SOCK_DGRAM: u8 = 2;
/// An upper bound of the overhead of a byte that is sent alone.
const BYTE_OVERHEAD: u64 = 1024;

// Constants of `linux/netlink.h`, `linux/sock_diag.h`, `linux/unix_diag.h`, `linux/inet_diag.h` and
// `linux/netlink_diag.h`.
const NETLINK_HEADER_BYTES: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const BY_FAMILY: u16 = 20;
const REQUEST_ALL: u16 = 0x301;
const UNIX_SHOW_QUEUES_AND_MEMORY: u32 = 0x10 | 0x20;
const UNIX_FIXED_SIZE: usize = 16;
const UNIX_QUEUES: u16 = 4;
const UNIX_MEMORY: u16 = 5;
const UNIX_SHUTDOWN: u16 = 6;
const INET_MEMORY: u16 = 7;
const INET_FIXED_SIZE: usize = 72;
const NETLINK_SHOW_MEMORY: u32 = 1;
const NETLINK_MEMORY: u16 = 0;
const NETLINK_FIXED_SIZE: usize = 28;

/// Opens a socket that can query all sockets of the current network namespace.
pub(super) fn diag_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::SOCK_DIAG))
}

/// The memory that all sockets hold, or slightly more: unread data of a closed sender counts as much as a sender
/// can have in flight. Fails if the kernel does not support the query.
pub(super) fn memory(diag_socket: &OwnedFd) -> io::Result<u64> {
    let most = fs::read_to_string("/proc/sys/net/core/wmem_max").ok();
    let most = most.and_then(|text| text.trim().parse::<u64>().ok()).map_or(MAX_IN_FLIGHT, |most| most * 2);
    let mut sum = query(diag_socket, &unix_request(), |body| unix_memory(body, most))?;
    for family in AF_INET_FAMILIES {
        for protocol in TCP_AND_UDP {
            let request = inet_request(family, protocol);
            sum += ignore_unsupported(query(diag_socket, &request, |body| {
                memory_of(body, INET_FIXED_SIZE, INET_MEMORY)
            }))?;
        }
    }
    let of_netlink = |body: &[u8]| memory_of(body, NETLINK_FIXED_SIZE, NETLINK_MEMORY);
    Ok(sum + ignore_unsupported(query(diag_socket, &netlink_request(), of_netlink))?)
}

/// A kernel without diagnostics for a protocol mostly has none of its sockets.
fn ignore_unsupported(result: io::Result<u64>) -> io::Result<u64> {
    if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) { Ok(0) } else { result }
}

fn unix_request() -> Vec<u8> {
    let numbers = [u32::MAX, 0, UNIX_SHOW_QUEUES_AND_MEMORY, 0, 0].map(u32::to_ne_bytes);
    [&[AF_UNIX, 0, 0, 0], numbers.as_flattened()].concat()
}

fn inet_request(family: u8, protocol: u8) -> Vec<u8> {
    [&[family, protocol, 1 << (INET_MEMORY - 1), 0][..], &u32::MAX.to_ne_bytes(), &[0; 48]].concat()
}

fn netlink_request() -> Vec<u8> {
    let numbers = [0, NETLINK_SHOW_MEMORY, 0, 0].map(u32::to_ne_bytes);
    [&[AF_NETLINK, u8::MAX, 0, 0], numbers.as_flattened()].concat()
}

/// Sends one request and sums up the replies.
fn query(diag_socket: &OwnedFd, body: &[u8], each: impl Fn(&[u8]) -> u64) -> io::Result<u64> {
    let length = u32::try_from(NETLINK_HEADER_BYTES + body.len()).unwrap_or_default();
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(BY_FAMILY.to_ne_bytes());
    message.extend(REQUEST_ALL.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    rustix::net::send(diag_socket, &message, SendFlags::empty())?;
    let (mut sum, mut buffer) = (0_u64, vec![0; 64 * 1024]);
    loop {
        // The kernel replies before `send` returns, and continues whenever we receive.
        let (_, length) = rustix::net::recv(diag_socket, &mut buffer[..], RecvFlags::empty())?;
        for (kind, body) in Messages(buffer.get(..length).unwrap_or_default()) {
            match kind {
                NLMSG_DONE => return Ok(sum),
                NLMSG_ERROR => {
                    let error = number(body, 0).map_or(0, u32::cast_signed);
                    return Err(io::Error::from_raw_os_error(error.wrapping_neg()));
                }
                BY_FAMILY => sum = sum.saturating_add(each(body)),
                _ => {}
            }
        }
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Iterates over netlink messages.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = number(self.0, 0)? as usize;
        let kind = short(self.0, 4)?;
        let body = self.0.get(NETLINK_HEADER_BYTES..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    }
}

/// Finds an attribute after the fixed part of a reply.
fn attribute(body: &[u8], fixed_size: usize, kind: u16) -> Option<&[u8]> {
    let mut rest = body.get(fixed_size..)?;
    loop {
        let length = usize::from(short(rest, 0)?);
        // A length below the attribute's own header is invalid, and would loop for ever.
        let found = rest.get(4..length)?;
        if short(rest, 2)? == kind {
            return Some(found);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}

/// Queued data is charged to its sender; the receiver only reports unread bytes, whatever their overhead. For
/// datagrams it only reports the first one.
fn unix_memory(body: &[u8], most: u64) -> u64 {
    let of = |kind, at| attribute(body, UNIX_FIXED_SIZE, kind).and_then(|found| number(found, at));
    let sent = u64::from(of(UNIX_MEMORY, 8).unwrap_or_default());
    let unread = u64::from(of(UNIX_QUEUES, 0).unwrap_or_default());
    let ended = attribute(body, UNIX_FIXED_SIZE, UNIX_SHUTDOWN).is_some_and(|found| found.first() > Some(&0));
    let waits = match body.get(1) {
        Some(&SOCK_DGRAM) if unread > 0 => MAX_QUEUED_DATAGRAMS * MAX_IN_FLIGHT,
        _ if ended => most.min(unread * BYTE_OVERHEAD),
        _ => 0,
    };
    sent + waits
}

/// Receive memory, plus send or queued memory (the same memory counts in both), plus the backlog.
fn memory_of(body: &[u8], fixed_size: usize, kind: u16) -> u64 {
    let found = attribute(body, fixed_size, kind).unwrap_or_default();
    let [received, sent, queued, waiting] =
        [0, 8, 20, 28].map(|at| u64::from(number(found, at).unwrap_or_default()));
    received + sent.max(queued) + waiting
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Writes until the socket is full, and returns how much was written.
    fn fill(mut to: impl io::Write) -> u64 {
        let mut written = 0;
        while let Ok(more) = to.write(&[1; 10_000]) {
            written += more as u64;
        }
        written
    }

    /// Other processes have sockets in the same network, so the result may be higher.
    #[test]
    fn unread_data_is_measured_even_after_its_sender_closed() {
        let diag_socket = diag_socket().unwrap();
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for _ in 0..32 {
            let (sender, receiver) = UnixStream::pair().unwrap();
            sender.set_nonblocking(true).unwrap();
            assert!(fill(&sender) > 0);
            senders.push(sender);
            receivers.push(receiver);
        }
        let full = memory(&diag_socket).unwrap();
        drop(senders);
        let orphaned = memory(&diag_socket).unwrap();
        drop(receivers);
        assert!(full > 32 * 150_000 && orphaned > 32 * 150_000, "{full} {orphaned}");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _receiver = listener.accept().unwrap();
        sender.set_nonblocking(true).unwrap();
        let written = fill(&sender);
        let full = memory(&diag_socket).unwrap();
        assert!(full > written, "{full} {written}");
    }

    #[test]
    fn truncated_replies_do_not_panic() {
        let mut message = 24_u32.to_ne_bytes().to_vec();
        message.extend(BY_FAMILY.to_ne_bytes());
        message.extend([0; 10]);
        message.extend([1; 8]);
        for length in 0..message.len() {
            assert_eq!(Messages(&message[..length]).count(), 0, "{length}");
        }
        assert_eq!(Messages(&message).count(), 1);
        assert_eq!(Messages(&[0; 64]).take(100).count(), 0);
        for length in 0..64 {
            let body = vec![1; length];
            assert_eq!(memory_of(&body, INET_FIXED_SIZE, INET_MEMORY), 0);
            unix_memory(&body, MAX_IN_FLIGHT);
            assert_eq!(attribute(&[0; 64][..length], 0, 5), None);
        }
    }
}
