//! Frames of the socket between engine and exec-server: a length (u32, big endian) and JSON of at most 1 MiB.

use cadre_protocol::exec::MAX_FRAME_BYTES;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::bytes::{Bytes, BytesMut};
use tokio_util::codec::{Decoder, LengthDelimitedCodec};

/// Why a frame could not be read or written. Each of them ends the connection it came from.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The length is above [`MAX_FRAME_BYTES`].
    #[error("a frame is longer than {MAX_FRAME_BYTES} bytes")]
    TooLarge,
    /// The content is not the JSON that was expected here.
    #[error("a frame does not hold the expected JSON")]
    Json(#[source] serde_json::Error),
}

/// The splitter of a byte stream into frames, for `FramedRead` and `FramedWrite`.
#[must_use]
pub fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().max_frame_length(MAX_FRAME_BYTES).new_codec()
}

/// Writes a value as the content of one frame.
///
/// # Errors
/// When it is longer than a frame may be, or cannot be written as JSON.
pub fn encode<T: Serialize>(value: &T) -> Result<Bytes, FrameError> {
    let content = serde_json::to_vec(value).map_err(FrameError::Json)?;
    if content.len() > MAX_FRAME_BYTES { Err(FrameError::TooLarge) } else { Ok(content.into()) }
}

/// Reads the content of one frame. JSON that nests deeper than 128 levels is refused.
///
/// # Errors
/// When it is not the JSON of a `T`.
pub fn decode<T: DeserializeOwned>(content: &[u8]) -> Result<T, FrameError> {
    serde_json::from_slice(content).map_err(FrameError::Json)
}

/// Takes the next whole frame out of `buffer`, or `None` while it is incomplete.
///
/// # Errors
/// When the announced length is too large.
pub fn split(codec: &mut LengthDelimitedCodec, buffer: &mut BytesMut) -> Result<Option<BytesMut>, FrameError> {
    codec.decode(buffer).map_err(|_| FrameError::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cadre_protocol::exec::{ExecBody, ExecErrorCode, ExecOp, ExecRequest, ExecResponse};
    use proptest::prelude::*;
    use tokio_util::bytes::BufMut;
    use tokio_util::codec::Encoder;

    proptest! {
        #[test]
        fn any_bytes_are_split_without_panic_or_growth(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
            let (mut codec, mut buffer) = (codec(), BytesMut::from(bytes.as_slice()));
            while let Ok(Some(content)) = split(&mut codec, &mut buffer) {
                prop_assert!(content.len() <= bytes.len());
                let _ = decode::<ExecResponse>(&content);
            }
            prop_assert!(buffer.capacity() <= bytes.len() + 2 * MAX_FRAME_BYTES);
        }

        #[test]
        fn frames_survive_any_cut(texts in proptest::collection::vec(".{0,40}", 1..6), step in 1_usize..50) {
            let mut stream = BytesMut::new();
            for (id, text) in texts.iter().enumerate() {
                let body = ExecBody::Failed { code: ExecErrorCode::Io, message: text.clone() };
                let content = encode(&ExecResponse { id: id as u64, body }).unwrap();
                codec().encode(content, &mut stream).unwrap();
            }
            let (mut codec, mut buffer, mut read) = (codec(), BytesMut::new(), Vec::new());
            for piece in stream.chunks(step) {
                buffer.put_slice(piece);
                while let Some(content) = split(&mut codec, &mut buffer).unwrap() {
                    read.push(decode::<ExecResponse>(&content).unwrap());
                }
            }
            let found: Vec<String> = read.into_iter().filter_map(|response| match response.body {
                ExecBody::Failed { message, .. } => Some(message),
                _ => None,
            }).collect();
            prop_assert_eq!(found, texts);
        }
    }

    #[test]
    fn an_announced_length_above_the_cap_is_refused_before_it_is_read() {
        let mut buffer = BytesMut::new();
        buffer.put_u32(u32::try_from(MAX_FRAME_BYTES).unwrap() + 1);
        assert!(matches!(split(&mut codec(), &mut buffer), Err(FrameError::TooLarge)));
    }

    #[test]
    fn a_value_above_the_cap_is_not_written() {
        let op = ExecOp::Write { path: "a".into(), content: "x".repeat(MAX_FRAME_BYTES) };
        assert!(matches!(encode(&ExecRequest { id: 1, op }), Err(FrameError::TooLarge)));
    }

    #[test]
    fn deep_json_is_refused() {
        assert!(decode::<ExecResponse>("[".repeat(100_000).as_bytes()).is_err());
    }
}
