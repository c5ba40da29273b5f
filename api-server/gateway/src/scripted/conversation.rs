//! What a script needs to know of the conversation.

use cadre_protocol::message::{Message, Role};

const FENCE: &str = "```";
const OPENING: &str = "```script";

/// The conversation, seen from the user's last message.
#[derive(Debug, Default)]
pub(super) struct Conversation<'a> {
    /// Id of the user's last message.
    pub(super) id: &'a str,
    /// That message without its script.
    pub(super) input: String,
    /// The script in it.
    pub(super) script: Option<&'a str>,
    /// Answers since then.
    pub(super) turn: usize,
    /// All messages before it.
    pub(super) before: &'a [Message],
    /// All messages after it.
    pub(super) since: &'a [Message],
}

impl<'a> Conversation<'a> {
    pub(super) fn read(messages: &'a [Message]) -> Self {
        // A note is no new question: the script goes on where it was.
        let asks = |message: &Message| message.role == Role::User && !message.is_note();
        let Some(last) = messages.iter().rposition(asks) else {
            return Self { since: messages, turn: answers(messages), ..Self::default() };
        };
        let (before, rest) = messages.split_at(last);
        let Some((user, since)) = rest.split_first() else { return Self::default() };
        let (script, input) = split_script(&user.content);
        Self { id: &user.id, input, script, turn: answers(since), before, since }
    }

    /// The last result of any tool, or of the tool `name`.
    pub(super) fn result(&self, name: Option<&str>) -> &'a str {
        let wanted = |message: &&Message| {
            message.role == Role::Tool && name.is_none_or(|name| message.tool_name.as_deref() == Some(name))
        };
        self.since.iter().rev().find(wanted).map_or("", |message| &message.content)
    }

    /// What the model said last before the user's last message.
    pub(super) fn previous(&self) -> &'a str {
        let said = |message: &&Message| message.role == Role::Assistant && !message.content.is_empty();
        self.before.iter().rev().find(said).map_or("", |message| &message.content)
    }

    /// The instructions.
    pub(super) fn system(&self) -> &'a str {
        let all = self.before.iter().chain(self.since);
        all.into_iter().find(|message| message.role == Role::System).map_or("", |message| &message.content)
    }
}

fn answers(messages: &[Message]) -> usize {
    messages.iter().filter(|message| message.role == Role::Assistant).count()
}

/// Splits a message into the script of its first ` ```script ` block and the text around that block.
fn split_script(content: &str) -> (Option<&str>, String) {
    let plain = || (None, content.to_owned());
    let Some(start) = line_that_begins(content, 0, |line| line.trim_end() == OPENING) else { return plain() };
    let Some(body) = content[start..].find('\n').map(|end| start + end + 1) else { return plain() };
    let Some(end) = line_that_begins(content, body, |line| line.trim_end() == FENCE) else { return plain() };
    let after = content[end..].find('\n').map_or("", |line| &content[end + line + 1..]);
    let around = format!("{}{}", &content[..start], after);
    (Some(&content[body..end]), around.trim().to_owned())
}

/// Byte position of the first line at or after `from` for which `is` holds.
fn line_that_begins(content: &str, from: usize, is: impl Fn(&str) -> bool) -> Option<usize> {
    let mut position = from;
    for line in content[from..].split_inclusive('\n') {
        if is(line) {
            return Some(position);
        }
        position += line.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_does_not_begin_the_script_anew() {
        let say = |role, text: &str| Message::text(role, text, 0);
        let note = format!("{} The workspace was replaced.", cadre_protocol::message::NOTE);
        let messages =
            [say(Role::User, "go"), say(Role::Assistant, "one"), say(Role::User, &note), say(Role::Assistant, "two")];
        let conversation = Conversation::read(&messages);
        assert_eq!((conversation.input.as_str(), conversation.turn), ("go", 2));
    }

    #[test]
    fn scripts_are_found_in_messages() {
        let cases = [
            ("hello", None, "hello"),
            ("```script\n- hi\n```", Some("- hi\n"), ""),
            ("Do it.\n```script\n- hi\n- ho\n```\nThanks", Some("- hi\n- ho\n"), "Do it.\nThanks"),
            ("```script\r\n- hi\r\n```\r\n", Some("- hi\r\n"), ""),
            ("```script\n- never closed", None, "```script\n- never closed"),
            ("```bash\nls\n```", None, "```bash\nls\n```"),
            ("```script", None, "```script"),
        ];
        for (content, script, input) in cases {
            assert_eq!(split_script(content), (script, input.to_owned()), "{content:?}");
        }
    }
}
