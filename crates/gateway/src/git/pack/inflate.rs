//! Inflates one zlib stream of a pack. The bytes are hostile, so the output is limited before it is allocated. A pack
//! does not store the compressed length of an object, so the caller learns where the stream ended.

use flate2::{Decompress, FlushDecompress, Status};

/// Why a stream could not be inflated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InflateError {
    /// The stream continues after these bytes.
    Incomplete,
    Malformed,
    /// The output exceeds the limit, or the stream is longer than a stream of that size needs to be.
    TooLarge,
}

/// The longest accepted stream for `size` bytes of output. An honest encoder barely exceeds the size of its input;
/// without this limit, empty blocks could make a stream arbitrarily long.
const fn max_stream_length(size: usize) -> usize {
    size + size / 8 + 1024
}

/// Inflates the zlib stream at the start of `input`. Returns its output and its compressed length.
pub(super) fn inflate(input: &[u8], limit: usize) -> Result<(Vec<u8>, usize), InflateError> {
    let max_length = max_stream_length(limit);
    let input = input.get(..max_length).unwrap_or(input);
    let mut stream = Decompress::new(true);
    // One byte more than allowed shows that the output is too large. `decompress_vec` never grows the vector.
    let mut output = Vec::with_capacity(limit + 1);
    let status = stream.decompress_vec(input, &mut output, FlushDecompress::Finish);
    let length = usize::try_from(stream.total_in()).map_err(|_| InflateError::TooLarge)?;
    match status {
        _ if output.len() > limit => Err(InflateError::TooLarge),
        Ok(Status::StreamEnd) => Ok((output, length)),
        Ok(Status::Ok | Status::BufError) if input.len() < max_length => Err(InflateError::Incomplete),
        Ok(Status::Ok | Status::BufError) => Err(InflateError::TooLarge),
        Err(_) => Err(InflateError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;

    use super::*;

    fn deflate(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn the_compressed_length_is_exact_with_any_data_after_it() {
        for size in [0, 1, 300, 70_000] {
            let bytes: Vec<u8> = (0..size).map(|at: u32| at.to_be_bytes()[3] ^ at.to_be_bytes()[2]).collect();
            let mut input = deflate(&bytes);
            let length = input.len();
            input.extend([0x78, 0x9c, 0xff, 0]);
            assert_eq!(inflate(&input, bytes.len()), Ok((bytes, length)), "{size}");
        }
    }

    #[test]
    fn every_prefix_of_a_stream_is_incomplete() {
        let input = deflate(&b"the same words again and again ".repeat(9));
        for end in 0..input.len() {
            assert_eq!(inflate(&input[..end], 1000), Err(InflateError::Incomplete), "{end}");
        }
    }

    #[test]
    fn output_beyond_the_limit_is_refused_and_not_allocated() {
        let bomb = deflate(&vec![0; 1 << 20]);
        for limit in [0, 1, 1000, (1 << 20) - 1] {
            assert_eq!(inflate(&bomb, limit), Err(InflateError::TooLarge), "{limit}");
        }
        assert!(inflate(&bomb, 1 << 20).is_ok());
    }

    #[test]
    fn corrupt_headers_and_checksums_are_malformed() {
        let intact = deflate(b"content");
        for at in [0, 1, intact.len() - 1] {
            let mut corrupt = intact.clone();
            corrupt[at] ^= 0x10;
            assert_eq!(inflate(&corrupt, 100), Err(InflateError::Malformed), "{at}");
        }
    }
}
