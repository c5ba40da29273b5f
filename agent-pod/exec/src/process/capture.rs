//! Collecting what a command prints: its head and its tail, in memory that does not grow.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;

/// Keeps at most a given number of bytes: the first half and the last.
#[derive(Debug)]
pub(super) struct Kept {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    max_head: usize,
    max_tail: usize,
    dropped: u64,
}

impl Kept {
    pub(super) fn new(max: usize) -> Self {
        let max_tail = max / 2;
        Self { head: Vec::new(), tail: VecDeque::new(), max_head: max - max_tail, max_tail, dropped: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(self.max_head - self.head.len()));
        self.head.extend_from_slice(head);
        let (skipped, rest) = rest.split_at(rest.len().saturating_sub(self.max_tail));
        let excess = (self.tail.len() + rest.len()).saturating_sub(self.max_tail);
        self.tail.drain(..excess);
        self.tail.extend(rest);
        self.dropped += (skipped.len() + excess) as u64;
    }

    /// The text, with a note where bytes were left out, and whether any were.
    pub(super) fn text(&self) -> (String, bool) {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        if self.dropped == 0 {
            // In one piece, for a character may lie across the middle.
            return (String::from_utf8_lossy(&[self.head.as_slice(), &tail].concat()).into_owned(), false);
        }
        let (head, tail) = (String::from_utf8_lossy(&self.head), String::from_utf8_lossy(&tail));
        (format!("{head}\n[… {} bytes left out …]\n{tail}", self.dropped), true)
    }
}

/// A stream that is being collected. Reading goes on to the stream's end, whoever holds this: a command, or a child
/// that outlives it, is never held up by a full pipe.
#[derive(Debug)]
pub(super) struct Capture {
    kept: Arc<Mutex<Kept>>,
    reader: tokio::task::JoinHandle<()>,
}

impl Capture {
    pub(super) fn start(mut stream: impl AsyncRead + Unpin + Send + 'static, max: usize) -> Self {
        let kept = Arc::new(Mutex::new(Kept::new(max)));
        let into = Arc::clone(&kept);
        let reader = tokio::spawn(async move {
            let mut buffer = vec![0; READ_BYTES];
            while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                into.lock().unwrap_or_else(PoisonError::into_inner).push(&buffer[..count]);
            }
        });
        Self { kept, reader }
    }

    /// Waits until the stream has ended.
    pub(super) async fn ended(&mut self) {
        // An error means that the reader is gone, which is an end as well.
        let _ = (&mut self.reader).await;
    }

    pub(super) fn text(&self) -> (String, bool) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn head_and_tail_are_kept_exactly(
            pieces in proptest::collection::vec(proptest::collection::vec(b'a'..=b'z', 0..40), 0..20),
            max in 0_usize..100,
        ) {
            let (mut kept, all) = (Kept::new(max), pieces.concat());
            pieces.iter().for_each(|piece| kept.push(piece));
            let (text, cut) = kept.text();
            prop_assert_eq!(cut, all.len() > max);
            if cut {
                let (head, tail) = (&all[..max - max / 2], &all[all.len() - max / 2..]);
                let left_out = all.len() - max;
                let expected = [head, format!("\n[… {left_out} bytes left out …]\n").as_bytes(), tail].concat();
                prop_assert_eq!(text.as_bytes(), expected);
            } else {
                prop_assert_eq!(text.as_bytes(), all);
            }
        }
    }

    #[test]
    fn a_character_across_the_middle_stays_whole() {
        let mut kept = Kept::new(4);
        kept.push("aéb".as_bytes());
        assert_eq!(kept.text(), ("aéb".to_owned(), false));
    }
}
