//! Server-sent events, decoded with bounds.
//!
//! After the WHATWG HTML standard, section 9.2.6, with one leniency: an event that the end of the stream leaves without
//! its blank line still counts, because some servers forget that line after the last event.

/// Most bytes of one event.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) data: String,
}

/// An event is longer than any sensible one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooLong;

/// Takes bytes as they arrive and gives events as they end.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    line: Vec<u8>,
    event: Event,
    has_data: bool,
    after_cr: bool,
    begun: bool,
}

impl Decoder {
    /// The events that end within `bytes`.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<Event>, TooLong> {
        let mut events = Vec::new();
        for piece in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let (content, ending) = match piece.split_last() {
                Some((ending @ (b'\n' | b'\r'), content)) => (content, Some(*ending)),
                _ => (piece, None),
            };
            // The second half of a CR LF, perhaps in another chunk than the first.
            let second_half = std::mem::take(&mut self.after_cr) && content.is_empty() && ending == Some(b'\n');
            if second_half {
                continue;
            }
            self.line.extend_from_slice(content);
            if self.line.len() + self.event.data.len() > MAX_EVENT_BYTES {
                return Err(TooLong);
            }
            if let Some(ending) = ending {
                self.after_cr = ending == b'\r';
                events.extend(self.end_of_line());
            }
        }
        Ok(events)
    }

    /// The event that the end of the stream cut off, if it has data.
    pub(crate) fn finish(mut self) -> Option<Event> {
        let last = if self.line.is_empty() { None } else { self.end_of_line() };
        last.or_else(|| self.dispatch())
    }

    fn end_of_line(&mut self) -> Option<Event> {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        let line = if self.begun { &*line } else { line.trim_start_matches('\u{feff}') };
        self.begun = true;
        if line.is_empty() {
            return self.dispatch();
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.name),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            _ => {}
        }
        None
    }

    fn dispatch(&mut self) -> Option<Event> {
        let event = std::mem::take(&mut self.event);
        std::mem::take(&mut self.has_data).then_some(event)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(chunks: &[&[u8]]) -> Vec<Event> {
        let mut decoder = Decoder::default();
        let mut events = Vec::new();
        for chunk in chunks {
            events.extend(decoder.push(chunk).unwrap());
        }
        events.extend(decoder.finish());
        events
    }

    fn event(name: &str, data: &str) -> Event {
        Event { name: name.to_owned(), data: data.to_owned() }
    }

    #[test]
    fn events_are_read_as_the_standard_says() {
        let cases: [(&str, Vec<Event>); 9] = [
            ("data: a\n\n", vec![event("", "a")]),
            ("\u{feff}event: x\r\ndata:a\r\ndata: b\r\n\r\n", vec![event("x", "a\nb")]),
            ("data: a\r\rdata: b\n\n", vec![event("", "a"), event("", "b")]),
            (": comment\nid: 1\nretry: 5\n\n", vec![]),
            ("event: only a name\n\n", vec![]),
            ("data\n\n", vec![event("", "")]),
            ("data:  two spaces\n\n", vec![event("", " two spaces")]),
            ("data: no blank line", vec![event("", "no blank line")]),
            ("data: no blank line\n", vec![event("", "no blank line")]),
        ];
        for (stream, expected) in cases {
            assert_eq!(decode(&[stream.as_bytes()]), expected, "{stream:?}");
        }
    }

    #[test]
    fn endless_events_are_refused() {
        let mut decoder = Decoder::default();
        let chunk = vec![b'x'; 1 << 20];
        let result = (0..=16).map(|_| decoder.push(&chunk)).find(Result::is_err);
        assert_eq!(result, Some(Err(TooLong)));
    }

    proptest! {
        #[test]
        fn splitting_changes_nothing(stream in "(data|event|:|\\PC|é|[\r\n: a]){0,60}", cut in 0_usize..200) {
            let bytes = stream.as_bytes();
            let (head, tail) = bytes.split_at(cut.min(bytes.len()));
            prop_assert_eq!(decode(&[head, tail]), decode(&[bytes]));
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(decode(&single), decode(&[bytes]));
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
            decode(&[&bytes]);
        }
    }
}
