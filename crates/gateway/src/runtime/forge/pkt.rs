//! Git's pkt-lines, as far as a push needs them: four digits of length, then so many bytes. Read strictly, since a
//! sandbox sends them, and what we read must be what the forge reads.

/// The largest packet, with its length. Git makes none that are larger.
const LARGEST: usize = 65_520;
const DIGITS: usize = 4;
pub(super) const FLUSH: &[u8] = b"0000";

/// One packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Packet<'a> {
    /// What it holds: at least one byte.
    Line(&'a [u8]),
    /// The end of a list.
    Flush,
}

/// These bytes are no packets.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoPacket;

impl Packet<'_> {
    /// How long it is as bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Line(line) => DIGITS + line.len(),
            Self::Flush => DIGITS,
        }
    }
}

/// The packet that these bytes begin with; `None` while it is not whole.
pub(super) fn first(bytes: &[u8]) -> Result<Option<Packet<'_>>, NoPacket> {
    let digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    if !bytes.iter().take(DIGITS).all(digit) {
        return Err(NoPacket);
    }
    let Some(digits) = bytes.get(..DIGITS) else { return Ok(None) };
    let length = std::str::from_utf8(digits).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
    match length.ok_or(NoPacket)? {
        0 => Ok(Some(Packet::Flush)),
        // Marks of another version of the protocol, and a line without anything in it.
        1..=DIGITS => Err(NoPacket),
        length if length > LARGEST => Err(NoPacket),
        length => Ok(bytes.get(DIGITS..length).map(Packet::Line)),
    }
}

/// Writes one packet. What does not fit into one is cut off.
pub(super) fn write(out: &mut Vec<u8>, line: &[u8]) {
    let line = line.get(..LARGEST - DIGITS).unwrap_or(line);
    out.extend_from_slice(format!("{:04x}", line.len() + DIGITS).as_bytes());
    out.extend_from_slice(line);
}
