//! The codec: any split of any bytes gives the same frames or a typed error.

use bytes::{Bytes, BytesMut};
use channel::frame::{Flow, Frame, FrameError, HEADER, Lane, MAX_PAYLOAD};
use proptest::prelude::*;

fn payload() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        9 => prop::collection::vec(any::<u8>(), 1..300),
        1 => (MAX_PAYLOAD - 2..=MAX_PAYLOAD).prop_map(|length| vec![7; length]),
    ]
    .prop_map(Bytes::from)
}

fn frame() -> impl Strategy<Value = Frame> {
    let lane = prop_oneof![Just(Lane::Main), Just(Lane::Errors)];
    let flow = prop_oneof![Just(Flow::Data), Just(Flow::Control)];
    prop_oneof![
        payload().prop_map(Frame::Hello),
        (1_u32.., payload()).prop_map(|(id, bytes)| Frame::Open(id, bytes)),
        (1_u32.., lane, payload()).prop_map(|(id, lane, bytes)| Frame::Data(id, lane, bytes)),
        (1_u32.., payload()).prop_map(|(id, bytes)| Frame::Control(id, bytes)),
        (1_u32..).prop_map(Frame::End),
        (1_u32.., payload()).prop_map(|(id, bytes)| Frame::Done(id, bytes)),
        (1_u32.., payload()).prop_map(|(id, bytes)| Frame::Reset(id, bytes)),
        (1_u32.., flow, any::<u32>()).prop_map(|(id, flow, n)| Frame::Credit(id, flow, n)),
        any::<u32>().prop_map(Frame::Ping),
        any::<u32>().prop_map(Frame::Pong),
    ]
}

fn decode_all(buffer: &mut BytesMut) -> Result<Vec<Frame>, FrameError> {
    let mut frames = Vec::new();
    while let Some(frame) = Frame::decode(buffer)? {
        frames.push(frame);
    }
    Ok(frames)
}

proptest! {
    #[test]
    fn any_split_of_the_bytes_gives_the_same_frames(
        frames in prop::collection::vec(frame(), 1..8),
        cuts in prop::collection::vec(1_usize..5000, 1..50),
    ) {
        let mut whole = BytesMut::new();
        for frame in &frames {
            frame.encode(&mut whole);
        }
        let (mut buffer, mut got, mut cuts) = (BytesMut::new(), Vec::new(), cuts.into_iter().cycle());
        while !whole.is_empty() {
            let cut = cuts.next().unwrap().min(whole.len());
            buffer.extend_from_slice(&whole.split_to(cut));
            got.extend(decode_all(&mut buffer).unwrap());
            prop_assert!(buffer.len() < HEADER + MAX_PAYLOAD);
        }
        prop_assert!(got == frames);
        prop_assert!(buffer.is_empty());
    }

    #[test]
    fn decoded_frames_encode_to_the_consumed_bytes(
        bytes in prop::collection::vec(prop_oneof![3 => 0_u8..14, 1 => any::<u8>()], 0..400),
    ) {
        let mut buffer = BytesMut::from(bytes.as_slice());
        let mut written = BytesMut::new();
        while let Ok(Some(frame)) = Frame::decode(&mut buffer) {
            frame.encode(&mut written);
        }
        prop_assert_eq!(&bytes[..written.len()], &written[..]);
        prop_assert_eq!(&bytes[written.len()..], &buffer[..]);
    }
}

fn head(length: u32, kind: u8, stream: u32) -> BytesMut {
    let mut out = BytesMut::new();
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&[kind]);
    out.extend_from_slice(&stream.to_be_bytes());
    out
}

#[test]
fn invalid_head_is_refused_before_its_payload_arrives() {
    let long = MAX_PAYLOAD + 1;
    let cases = [
        (head(65_537, 3, 1), FrameError::TooLong { length: long, most: MAX_PAYLOAD }),
        (head(u32::MAX, 2, 1), FrameError::TooLong { length: 0xffff_ffff, most: MAX_PAYLOAD }),
        (head(1, 0, 1), FrameError::UnknownKind(0)),
        (head(1, 13, 1), FrameError::UnknownKind(13)),
        (head(0, 3, 1), FrameError::WrongLength { kind: 3, length: 0 }),
        (head(1, 6, 1), FrameError::WrongLength { kind: 6, length: 1 }),
        (head(5, 9, 1), FrameError::WrongLength { kind: 9, length: 5 }),
        (head(3, 11, 0), FrameError::WrongLength { kind: 11, length: 3 }),
        (head(1, 3, 0), FrameError::WrongStream { kind: 3, stream: 0 }),
        (head(1, 1, 5), FrameError::WrongStream { kind: 1, stream: 5 }),
    ];
    for (mut bytes, error) in cases {
        assert_eq!(Frame::decode(&mut bytes), Err(error));
    }
    assert_eq!(Frame::decode(&mut head(65_536, 3, 1)), Ok(None));
    assert_eq!(Frame::decode(&mut BytesMut::from(&[0xff; HEADER - 1][..])), Ok(None));
}

#[test]
fn debug_output_holds_no_contents() {
    let frame = Frame::Control(9, Bytes::from_static(b"swordfish"));
    assert_eq!(format!("{frame:?}"), "Control(9, 9 bytes)");
}
