//! WebSocket frames, encoded and decoded by hand, so that one blob of bytes can be sent to every socket.

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::Value;

/// Maximum size of a frame from a client.
const MAX_FRAME: usize = 1 << 20;

pub const TEXT: u8 = 1;
pub const PING: u8 = 9;
pub const PONG: u8 = 10;
/// A complete close frame.
pub const CLOSE: [u8; 2] = [0x88, 0];

/// The frame is fragmented, not masked, too large, or has extension bits.
pub struct ProtocolError;

/// Appends one unmasked frame.
pub fn append(out: &mut BytesMut, opcode: u8, payload: &[u8]) {
    out.put_u8(0x80 | opcode);
    match payload.len() {
        length if length < 126 => out.put_u8(length as u8),
        length if length < 65536 => {
            out.put_u8(126);
            out.put_u16(length as u16);
        }
        length => {
            out.put_u8(127);
            out.put_u64(length as u64);
        }
    }
    out.put_slice(payload);
}

pub fn text(message: &Value) -> Bytes {
    let mut out = BytesMut::new();
    append(&mut out, TEXT, message.to_string().as_bytes());
    out.freeze()
}

/// Removes one client frame from the front of `inbox`; `None` if it is incomplete.
pub fn take(inbox: &mut BytesMut) -> Result<Option<(u8, BytesMut)>, ProtocolError> {
    const MASK: usize = 4;
    if inbox.len() < 2 {
        return Ok(None);
    }
    if inbox[0] & 0xf0 != 0x80 || inbox[1] & 128 == 0 {
        return Err(ProtocolError);
    }
    let (short, head) = match inbox[1] & 127 {
        126 => (None, 4),
        127 => (None, 10),
        length => (Some(usize::from(length)), 2),
    };
    if inbox.len() < head + MASK {
        return Ok(None);
    }
    let length =
        short.unwrap_or_else(|| inbox[2..head].iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)));
    if length > MAX_FRAME {
        return Err(ProtocolError);
    }
    if inbox.len() < head + MASK + length {
        return Ok(None);
    }
    let mut frame = inbox.split_to(head + MASK + length);
    let mut payload = frame.split_off(head + MASK);
    let mask = &frame[head..];
    payload.iter_mut().enumerate().for_each(|(i, byte)| *byte ^= mask[i & 3]);
    Ok(Some((frame[0] & 15, payload)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(payload: &[u8]) -> BytesMut {
        let mut plain = BytesMut::new();
        append(&mut plain, TEXT, payload);
        plain[1] |= 128;
        let body = plain.split_off(plain.len() - payload.len());
        let mask = [1, 2, 3, 4];
        plain.put_slice(&mask);
        plain.extend(body.iter().enumerate().map(|(i, byte)| byte ^ mask[i & 3]));
        plain
    }

    #[test]
    fn frames_of_every_length_round_trip() {
        for length in [0, 1, 125, 126, 65535, 65536, MAX_FRAME] {
            let payload = vec![7; length];
            let mut inbox = masked(&payload);
            let mut cut = BytesMut::from(&inbox[..inbox.len() - 1]);
            assert!(matches!(take(&mut cut), Ok(None)));
            let Ok(Some((TEXT, taken))) = take(&mut inbox) else { panic!("{length}") };
            assert_eq!((taken.as_ref(), inbox.len()), (payload.as_slice(), 0));
        }
    }

    #[test]
    fn invalid_client_frames_are_rejected() {
        let mut unmasked = BytesMut::new();
        append(&mut unmasked, TEXT, b"x");
        assert!(take(&mut unmasked).is_err());
        assert!(take(&mut masked(&vec![0; MAX_FRAME + 1])).is_err());
        let mut fragment = masked(b"x");
        fragment[0] &= 0x7f;
        assert!(take(&mut fragment).is_err());
    }
}
