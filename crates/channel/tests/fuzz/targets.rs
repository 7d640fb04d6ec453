//! The fuzz targets with their input shapes and corpora, and the decoder target, which needs no runtime.

use std::fs;
use std::ops::Range;
use std::path::Path;

use bytes::BytesMut;
use channel::WINDOW;
use channel::frame::{Frame, FrameError, HEADER, MAX_PAYLOAD};
use testkit::fuzz::{Dice, Shape, Target};

use crate::live;

pub(crate) const DECODER: Target<'_> = Target {
    name: "decoder",
    run: &|input, dice| decoder(Frame::decode, input, dice),
    corpus: &|| corpus(""),
    write: |input| hex::encode(input),
    shape: FRAMES,
};

pub(crate) const CALLEE: Target<'_> = Target {
    name: "callee",
    run: &|input, dice| live::callee(WINDOW, input, dice),
    corpus: &|| corpus("caller-"),
    ..DECODER
};

pub(crate) const CALLER: Target<'_> = Target {
    name: "caller",
    run: &|input, dice| live::caller(WINDOW, input, dice),
    corpus: &|| corpus("callee-"),
    ..DECODER
};

const FRAMES: Shape = Shape {
    units: frames_of,
    dictionary: &[],
    // Length, kind, stream, and the number in frame kinds that carry one.
    fields: &[0..4, 4..5, 5..9, 9..13],
    edges: &[0, 1, 4, 12, 64, 256, 32_768, 65_536, 262_144, 0x7fff_ffff, 0xffff_ffff],
    most: 1024 * 1024,
};

/// Splits the bytes into frames by their length fields; a remainder counts as one more.
fn frames_of(bytes: &[u8]) -> Vec<Range<usize>> {
    let (mut units, mut start) = (Vec::new(), 0);
    while start < bytes.len() {
        let length = bytes[start..].first_chunk().map(|length| u32::from_be_bytes(*length) as usize);
        let end = length.map_or(bytes.len(), |length| start.saturating_add(HEADER + length).min(bytes.len()));
        units.push(start..end);
        start = end;
    }
    units
}

/// Reads all corpus files whose names start with `prefix`: hexadecimal, with `#` comments.
pub(crate) fn corpus(prefix: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut paths: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with(prefix));
    paths.sort();
    paths.iter().map(|path| read_hex(&fs::read_to_string(path).unwrap())).collect()
}

fn read_hex(text: &str) -> Vec<u8> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let digits: String = lines.flat_map(str::chars).filter(|letter| !letter.is_whitespace()).collect();
    hex::decode(digits).unwrap()
}

pub(crate) type Decode = fn(&mut BytesMut) -> Result<Option<Frame>, FrameError>;

/// Decoding must give the same frames and error however the input is split; encoding the frames must give the input
/// back; and the decoder must not wait for a frame that is too long or already complete.
pub(crate) fn decoder(decode: Decode, input: &[u8], dice: &Dice) -> Result<String, String> {
    let (mut whole, mut cut) = (Decoded::default(), Decoded::default());
    whole.feed(decode, input)?;
    let mut rest = input;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(1 + dice.below(rest.len().min(100_000)));
        cut.feed(decode, now)?;
        rest = later;
    }
    if whole != cut {
        return Err(format!("whole: {whole:?}\ncut: {cut:?}"));
    }
    let mut written = BytesMut::new();
    for frame in &whole.frames {
        frame.encode(&mut written);
    }
    if !input.starts_with(&written) {
        return Err("encoding the frames does not give the input back".to_owned());
    }
    Ok(format!("{} {:?}", whole.frames.len().min(8), whole.error.map(|error| std::mem::discriminant(&error))))
}

#[derive(Debug, Default, PartialEq)]
struct Decoded {
    frames: Vec<Frame>,
    error: Option<FrameError>,
    buffer: BytesMut,
}

impl Decoded {
    fn feed(&mut self, decode: Decode, bytes: &[u8]) -> Result<(), String> {
        self.buffer.extend_from_slice(bytes);
        while self.error.is_none() {
            match decode(&mut self.buffer) {
                Ok(Some(frame)) => self.frames.push(frame),
                Ok(None) => return self.check_wait(),
                Err(error) => self.error = Some(error),
            }
        }
        // Bytes after an error are never decoded.
        self.buffer.clear();
        Ok(())
    }

    fn check_wait(&self) -> Result<(), String> {
        let Some(length) = self.buffer.first_chunk().map(|length| u32::from_be_bytes(*length) as usize)
        else {
            return Ok(());
        };
        match self.buffer.len() {
            held if held < HEADER => Ok(()),
            _ if length > MAX_PAYLOAD => Err(format!("the decoder waits for a frame of {length} bytes")),
            held if held >= HEADER + length => {
                Err("the decoder waits for a frame that is complete".to_owned())
            }
            _ => Ok(()),
        }
    }
}
