//! Event streams: names of events and when they came. Pure.

/// Cuts a stream into events as its bytes arrive.
#[derive(Debug, Default)]
pub struct Events {
    rest: Vec<u8>,
}

impl Events {
    /// Takes bytes, answers the names of the events that they complete. Comments are no events.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut names = Vec::new();
        for byte in bytes {
            self.rest.push(*byte);
            if self.rest.ends_with(b"\n\n") {
                names.extend(name(&self.rest));
                self.rest.clear();
            }
        }
        names
    }
}

fn name(frame: &[u8]) -> Option<String> {
    let name = frame.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"event: "))?;
    Some(String::from_utf8_lossy(name).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_wherever_the_bytes_are_cut() {
        let text = b": keepalive\n\nid: 0\nevent: RunStarted\ndata: {}\n\nevent: RunContent\ndata: {\"a\":1}\n\n";
        for cut in 0..text.len() {
            let mut events = Events::default();
            let mut names = events.push(&text[..cut]);
            names.extend(events.push(&text[cut..]));
            assert_eq!(names, ["RunStarted", "RunContent"], "cut at {cut}");
        }
    }
}
