//! Git's pkt-lines, as far as pushes need them: four hexadecimal digits of length, then the payload. Parsed strictly,
//! since a sandbox sends them: the gateway must read the same packets as the forge.

/// The largest packet that git writes, including its length.
const MAX_PACKET: usize = 65_520;
const LENGTH_DIGITS: usize = 4;
pub(super) const FLUSH_PACKET: &[u8] = b"0000";

/// One packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Packet<'a> {
    /// The payload, of at least one byte.
    Line(&'a [u8]),
    /// The end of a list.
    Flush,
}

/// The bytes are not a packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl Packet<'_> {
    /// The length of the encoded packet.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Line(line) => LENGTH_DIGITS + line.len(),
            Self::Flush => LENGTH_DIGITS,
        }
    }
}

/// The packet at the start of `bytes`; `None` while it is incomplete.
pub(super) fn first(bytes: &[u8]) -> Result<Option<Packet<'_>>, Malformed> {
    let digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    if !bytes.iter().take(LENGTH_DIGITS).all(digit) {
        return Err(Malformed);
    }
    let Some(digits) = bytes.get(..LENGTH_DIGITS) else { return Ok(None) };
    let length = std::str::from_utf8(digits).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
    match length.ok_or(Malformed)? {
        0 => Ok(Some(Packet::Flush)),
        // Special packets of protocol version 2, and an empty line.
        1..=LENGTH_DIGITS => Err(Malformed),
        length if length > MAX_PACKET => Err(Malformed),
        length => Ok(bytes.get(LENGTH_DIGITS..length).map(Packet::Line)),
    }
}

/// Writes one packet. A longer payload is truncated.
pub(super) fn write(out: &mut Vec<u8>, line: &[u8]) {
    let line = line.get(..MAX_PACKET - LENGTH_DIGITS).unwrap_or(line);
    out.extend_from_slice(format!("{:04x}", line.len() + LENGTH_DIGITS).as_bytes());
    out.extend_from_slice(line);
}
