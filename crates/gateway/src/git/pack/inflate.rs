//! Inflates one zlib stream of a pack. The bytes are hostile, so the output is limited before it is allocated. A pack
//! does not store the compressed length of an object, so the caller learns where the stream ended.

/// Why a stream could not be inflated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InflateError {
    /// The stream continues after these bytes.
    Incomplete,
    Malformed,
    /// The output exceeds the limit, or the stream is longer than a stream of that size needs to be.
    TooLarge,
}

type Inflated<T> = Result<T, InflateError>;

/// The length of the Adler-32 checksum after the deflate stream. We skip it: an object's id is a stronger hash.
const TRAILER: usize = 4;
const LONGEST_CODE: usize = 15;
const END_OF_BLOCK: usize = 256;
const LENGTH_BASE: [u16; 29] = [
    3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195,
    227, 258,
];
const LENGTH_EXTRA: [u8; 29] =
    [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
const DISTANCE_BASE: [u16; 30] = [
    1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073,
    4097, 6145, 8193, 12289, 16385, 24577,
];
const DISTANCE_EXTRA: [u8; 30] =
    [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13];
/// The order in which a dynamic block stores the lengths of its code-length codes (RFC 1951, 3.2.7).
const CODE_ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// The longest accepted stream for `size` bytes of output. An honest encoder barely exceeds the size of its input;
/// without this limit, empty blocks could make a stream arbitrarily long.
const fn max_stream_length(size: usize) -> usize {
    size + size / 8 + 1024
}

/// Inflates the zlib stream at the start of `input`. Returns its output and its compressed length.
pub(super) fn inflate(input: &[u8], limit: usize) -> Inflated<(Vec<u8>, usize)> {
    let max_length = max_stream_length(limit);
    match inflate_stream(input.get(..max_length).unwrap_or(input), limit) {
        Err(InflateError::Incomplete) if input.len() >= max_length => Err(InflateError::TooLarge),
        inflated => inflated,
    }
}

fn inflate_stream(input: &[u8], limit: usize) -> Inflated<(Vec<u8>, usize)> {
    let [method, flags, deflated @ ..] = input else { return Err(InflateError::Incomplete) };
    let check = u16::from_be_bytes([*method, *flags]);
    if method & 0x0f != 8 || flags & 0x20 != 0 || check % 31 != 0 {
        return Err(InflateError::Malformed);
    }
    let mut bits = Bits { input: deflated, at: 0, held: 0, count: 0 };
    let mut out = Vec::new();
    loop {
        let last = bits.take(1)? == 1;
        match bits.take(2)? {
            0 => stored(&mut bits, &mut out, limit)?,
            1 => {
                let (lengths, distances) = fixed()?;
                block(&mut bits, &mut out, limit, &lengths, &distances)?;
            }
            2 => {
                let (lengths, distances) = dynamic(&mut bits)?;
                block(&mut bits, &mut out, limit, &lengths, &distances)?;
            }
            _ => return Err(InflateError::Malformed),
        }
        if last {
            break;
        }
    }
    let length = 2 + bits.at + TRAILER;
    if length > input.len() { Err(InflateError::Incomplete) } else { Ok((out, length)) }
}

/// Reads bits in deflate's order, the lowest of each byte first. Holds less than one unread byte between two reads.
struct Bits<'a> {
    input: &'a [u8],
    at: usize,
    held: u32,
    count: u32,
}

impl Bits<'_> {
    fn take(&mut self, width: u32) -> Inflated<usize> {
        while self.count < width {
            self.held |= u32::from(self.byte()?) << self.count;
            self.count += 8;
        }
        let taken = self.held & ((1 << width) - 1);
        self.held >>= width;
        self.count -= width;
        usize::try_from(taken).map_err(|_| InflateError::Malformed)
    }

    fn byte(&mut self) -> Inflated<u8> {
        let byte = self.input.get(self.at).ok_or(InflateError::Incomplete)?;
        self.at += 1;
        Ok(*byte)
    }
}

/// A canonical Huffman code: the number of codes of each length, and their symbols in order.
struct Code {
    counts: [usize; LONGEST_CODE + 1],
    symbols: Vec<usize>,
}

impl Code {
    fn new(lengths: &[usize]) -> Inflated<Self> {
        let mut counts = [0; LONGEST_CODE + 1];
        for length in lengths {
            *counts.get_mut(*length).ok_or(InflateError::Malformed)? += 1;
        }
        counts[0] = 0;
        let mut left: usize = 1;
        for count in &counts[1..] {
            left = (left << 1).checked_sub(*count).ok_or(InflateError::Malformed)?;
        }
        let mut symbols: Vec<usize> = (0..lengths.len()).filter(|symbol| lengths[*symbol] != 0).collect();
        symbols.sort_by_key(|symbol| lengths[*symbol]);
        Ok(Self { counts, symbols })
    }

    fn decode(&self, bits: &mut Bits<'_>) -> Inflated<usize> {
        let (mut code, mut first, mut index) = (0, 0, 0);
        for count in &self.counts[1..] {
            code |= bits.take(1)?;
            if code < first + count {
                return self.symbols.get(index + code - first).copied().ok_or(InflateError::Malformed);
            }
            index += count;
            first = (first + count) << 1;
            code <<= 1;
        }
        Err(InflateError::Malformed)
    }
}

fn stored(bits: &mut Bits<'_>, out: &mut Vec<u8>, limit: usize) -> Inflated<()> {
    (bits.held, bits.count) = (0, 0);
    let length = u16::from_le_bytes([bits.byte()?, bits.byte()?]);
    let inverse = u16::from_le_bytes([bits.byte()?, bits.byte()?]);
    if length != !inverse {
        return Err(InflateError::Malformed);
    }
    let length = usize::from(length);
    if out.len() + length > limit {
        return Err(InflateError::TooLarge);
    }
    let bytes = bits.input.get(bits.at..bits.at + length).ok_or(InflateError::Incomplete)?;
    out.extend_from_slice(bytes);
    bits.at += length;
    Ok(())
}

fn fixed() -> Inflated<(Code, Code)> {
    let length = |symbol| match symbol {
        144..=255 => 9,
        256..=279 => 7,
        _ => 8,
    };
    let lengths: Vec<usize> = (0..288).map(length).collect();
    Ok((Code::new(&lengths)?, Code::new(&[5; 30])?))
}

fn dynamic(bits: &mut Bits<'_>) -> Inflated<(Code, Code)> {
    let (literals, distances) = (bits.take(5)? + 257, bits.take(5)? + 1);
    let written = bits.take(4)? + 4;
    if literals > 286 || distances > 30 {
        return Err(InflateError::Malformed);
    }
    let mut lengths = [0; CODE_ORDER.len()];
    for symbol in CODE_ORDER.iter().take(written) {
        lengths[*symbol] = bits.take(3)?;
    }
    let code = Code::new(&lengths)?;
    let mut lengths = Vec::new();
    while lengths.len() < literals + distances {
        let (value, times) = match code.decode(bits)? {
            16 => (*lengths.last().ok_or(InflateError::Malformed)?, 3 + bits.take(2)?),
            17 => (0, 3 + bits.take(3)?),
            18 => (0, 11 + bits.take(7)?),
            length => (length, 1),
        };
        lengths.extend(std::iter::repeat_n(value, times));
    }
    if lengths.len() > literals + distances || lengths[END_OF_BLOCK] == 0 {
        return Err(InflateError::Malformed);
    }
    let (literals, distances) = lengths.split_at(literals);
    Ok((Code::new(literals)?, Code::new(distances)?))
}

fn block(
    bits: &mut Bits<'_>,
    out: &mut Vec<u8>,
    limit: usize,
    lengths: &Code,
    distances: &Code,
) -> Inflated<()> {
    loop {
        match lengths.decode(bits)? {
            END_OF_BLOCK => return Ok(()),
            literal if literal < END_OF_BLOCK => {
                if out.len() == limit {
                    return Err(InflateError::TooLarge);
                }
                out.push(u8::try_from(literal).map_err(|_| InflateError::Malformed)?);
            }
            symbol => {
                let length = extended(bits, symbol - END_OF_BLOCK - 1, &LENGTH_BASE, &LENGTH_EXTRA)?;
                let symbol = distances.decode(bits)?;
                let distance = extended(bits, symbol, &DISTANCE_BASE, &DISTANCE_EXTRA)?;
                if out.len() + length > limit {
                    return Err(InflateError::TooLarge);
                }
                let start = out.len().checked_sub(distance).ok_or(InflateError::Malformed)?;
                for at in start..start + length {
                    out.push(out[at]);
                }
            }
        }
    }
}

fn extended(bits: &mut Bits<'_>, symbol: usize, bases: &[u16], extra: &[u8]) -> Inflated<usize> {
    let (Some(base), Some(extra)) = (bases.get(symbol), extra.get(symbol)) else {
        return Err(InflateError::Malformed);
    };
    Ok(usize::from(*base) + bits.take(u32::from(*extra))?)
}
