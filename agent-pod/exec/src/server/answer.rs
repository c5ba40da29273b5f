//! Making every answer fit a frame: what is too long is cut, and says so.

use cadre_protocol::exec::{ExecBody, ExecErrorCode, ExecResponse};
use cadre_protocol::tool::WorkspaceEffect;
use tokio_util::bytes::Bytes;

use crate::frame;

/// Texts shorter than this are not cut any more, in bytes.
const SHORT: usize = 1 << 10;

/// The frame of an answer. Text grows when it is written as JSON, so its size is known only then.
pub(super) fn frame(mut response: ExecResponse) -> Option<Bytes> {
    loop {
        match frame::encode(&response) {
            Ok(content) => return Some(content),
            Err(_) if shrink(&mut response.body) => {}
            Err(_) if matches!(response.body, ExecBody::Failed { .. }) => return None,
            Err(_) => {
                let message = "the answer does not fit a frame".to_owned();
                response.body = ExecBody::Failed { code: ExecErrorCode::TooLarge, message };
            }
        }
    }
}

/// Cuts the longest part by half. Whether there was anything to cut.
fn shrink(body: &mut ExecBody) -> bool {
    match body {
        ExecBody::Exited { stdout, stderr, truncated, effect, .. } => {
            let longer = if stdout.len() >= stderr.len() { stdout } else { stderr };
            if longer.len() < SHORT {
                return shrink_effect(effect);
            }
            *truncated = true;
            cut_middle(longer);
            true
        }
        ExecBody::Text { text, truncated, .. } => {
            *truncated = true;
            cut_end(text)
        }
        ExecBody::Listing { entries, truncated } => {
            *truncated = true;
            halve(entries)
        }
        ExecBody::Matches { lines, truncated } => {
            *truncated = true;
            halve(lines)
        }
        ExecBody::Done { effect } => shrink_effect(effect),
        ExecBody::Failed { message, .. } => cut_end(message),
        ExecBody::Ready { .. } | ExecBody::Missing { .. } => false,
    }
}

fn shrink_effect(effect: &mut WorkspaceEffect) -> bool {
    effect.truncated = true;
    let WorkspaceEffect { files, removed, .. } = effect;
    halve(if removed.len() > files.len() { removed } else { files })
}

fn halve<T>(items: &mut Vec<T>) -> bool {
    let had = !items.is_empty();
    items.truncate(items.len() / 2);
    had
}

fn cut_end(text: &mut String) -> bool {
    let had = text.len() >= SHORT;
    text.truncate(text.floor_char_boundary(text.len() / 2));
    had
}

/// Leaves the first and the last quarter.
fn cut_middle(text: &mut String) {
    let start = text.floor_char_boundary(text.len() / 4);
    let end = text.ceil_char_boundary(text.len() - text.len() / 4);
    text.replace_range(start..end, "\n[… left out …]\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use cadre_protocol::exec::{FileEntry, MAX_FRAME_BYTES, MAX_OUTPUT_BYTES};

    fn fitted(body: ExecBody) -> ExecBody {
        let content = frame(ExecResponse { id: 1, body }).unwrap();
        assert!(content.len() <= MAX_FRAME_BYTES);
        frame::decode::<ExecResponse>(&content).unwrap().body
    }

    #[test]
    fn output_that_grows_in_json_keeps_its_ends() {
        let text = format!("start{}end", "\u{1}".repeat(MAX_OUTPUT_BYTES));
        let body = ExecBody::Exited {
            code: Some(0),
            signal: None,
            timed_out: false,
            killed: false,
            full: None,
            stdout: text.clone(),
            stderr: text,
            truncated: false,
            effect: WorkspaceEffect::default(),
        };
        let ExecBody::Exited { stdout, stderr, truncated: true, .. } = fitted(body) else { panic!("not cut") };
        for text in [stdout, stderr] {
            assert!(text.starts_with("start") && text.ends_with("end") && text.contains("left out"));
        }
    }

    #[test]
    fn lists_and_texts_are_cut_and_say_so() {
        let path = "é".repeat(2000);
        let entry = FileEntry { path: path.clone(), directory: false, size: 1 };
        let listing = fitted(ExecBody::Listing { entries: vec![entry; 5000], truncated: false });
        assert!(matches!(listing, ExecBody::Listing { truncated: true, entries } if !entries.is_empty()));
        let matches = fitted(ExecBody::Matches { lines: vec![path.clone(); 2000], truncated: false });
        assert!(matches!(matches, ExecBody::Matches { truncated: true, lines } if !lines.is_empty()));
        let text = fitted(ExecBody::Text { text: "\u{2}".repeat(512 << 10), total_lines: 1, truncated: false });
        assert!(matches!(text, ExecBody::Text { truncated: true, text, .. } if text.len() > SHORT));
        let missing = fitted(ExecBody::Missing { paths: vec![path; 2000] });
        assert!(matches!(missing, ExecBody::Failed { code: ExecErrorCode::TooLarge, .. }));
    }
}
