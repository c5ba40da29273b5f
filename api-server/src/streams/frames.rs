//! Cutting chunks of frames. Pure.
//!
//! A frame is `id: N`, `event: Name`, `data: {…}` and a blank line; its JSON has no line breaks, so a blank line ends it.

/// The part of `frames` that a client which has everything up to and including `after` still needs.
#[must_use]
pub fn beyond(frames: &str, after: u64) -> &str {
    let mut rest = frames;
    while let Some(frame) = first(rest) {
        if id(frame).is_none_or(|id| id > after) {
            break;
        }
        rest = &rest[frame.len()..];
    }
    rest
}

/// The frames of one event.
#[must_use]
pub fn only(frames: &str, event: &str) -> String {
    let mut kept = String::new();
    let mut rest = frames;
    while let Some(frame) = first(rest) {
        if name(frame) == Some(event) {
            kept.push_str(frame);
        }
        rest = &rest[frame.len()..];
    }
    kept
}

fn first(frames: &str) -> Option<&str> {
    if frames.is_empty() {
        return None;
    }
    Some(frames.find("\n\n").map_or(frames, |end| &frames[..end + 2]))
}

fn id(frame: &str) -> Option<u64> {
    frame.strip_prefix("id: ")?.lines().next()?.parse().ok()
}

fn name(frame: &str) -> Option<&str> {
    frame.lines().find_map(|line| line.strip_prefix("event: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(index: u64) -> String {
        format!("id: {index}\nevent: RunContent\ndata: {{\"event_index\":{index}}}\n\n")
    }

    #[test]
    fn every_cut_leaves_exactly_what_comes_after_it() {
        // Numbers have holes: not every journal entry has an event.
        let indices = [0_u64, 1, 4, 5, 9];
        let all: String = indices.iter().map(|index| frame(*index)).collect();
        for after in 0..11 {
            let expected: String = indices.iter().filter(|index| **index > after).map(|index| frame(*index)).collect();
            assert_eq!(beyond(&all, after), expected, "after {after}");
        }
    }

    #[test]
    fn one_kind_of_event_can_be_kept() {
        let started = "id: 0\nevent: RunStarted\ndata: {}\n\n";
        let all = format!("{started}{}{}", frame(1), frame(2));
        assert_eq!(only(&all, "RunContent"), format!("{}{}", frame(1), frame(2)));
        assert_eq!(only(&all, "RunStarted"), started);
        assert_eq!(only("", "RunContent"), "");
    }
}
