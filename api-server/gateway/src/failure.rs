//! From what a provider says about a failure to our categories.
//!
//! A provider's code decides before its status does, because providers answer 400 and 429 for several things.
//! Messages come from strangers: they are cleaned, capped, and freed of the key that was sent.

use std::time::Duration;

use cadre_protocol::model::{ModelError, ModelErrorCategory};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use ModelErrorCategory as Category;

/// Longest message that leaves the gateway, in characters.
const MAX_MESSAGE_CHARS: usize = 2_000;
/// Longest message inside it. Longer than the above, so that no key is cut in two before it is looked for.
const MAX_RAW_CHARS: usize = 64 << 10;

/// An error with a clean message.
pub(crate) fn failure(category: Category, message: impl AsRef<str>) -> ModelError {
    ModelError { category, message: clean(message.as_ref(), MAX_RAW_CHARS), status: None, retry_after_ms: None }
}

/// An answer that can't be understood.
pub(crate) fn protocol(message: impl AsRef<str>) -> ModelError {
    failure(Category::Protocol, message)
}

/// An answer with an error status.
pub(crate) fn from_status(provider: &str, status: u16, retry_after: Option<Duration>, body: &str) -> ModelError {
    let said = Said::read(body);
    let category = said.category().unwrap_or_else(|| by_status(status));
    ModelError {
        status: Some(status),
        retry_after_ms: retry_after.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
        ..failure(category, said.sentence(&format!("{provider} answered {status}")))
    }
}

/// An error object in the middle of a stream.
pub(crate) fn from_event(provider: &str, error: &Value) -> ModelError {
    let said = Said::of(error);
    let category = said.category().unwrap_or(Category::Provider);
    failure(category, said.sentence(&format!("{provider} broke off the answer")))
}

/// The same error without the key, should the provider have echoed it.
pub(crate) fn redact(mut error: ModelError, key: Option<&SecretString>) -> ModelError {
    if let Some(key) = key.map(|key| key.expose_secret().trim()).filter(|key| !key.is_empty()) {
        error.message = error.message.replace(key, "[redacted]");
    }
    error
}

/// The same error with a message that is short enough to be shown.
pub(crate) fn capped(mut error: ModelError) -> ModelError {
    error.message = clean(&error.message, MAX_MESSAGE_CHARS);
    error
}

/// `Retry-After` in seconds, or OpenAI's and Azure's `retry-after-ms`. Dates are not read: clocks differ.
pub(crate) fn retry_after(headers: &http::HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = number("retry-after-ms").map(|millis| millis / 1000.0).or_else(|| number("retry-after"))?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// Without control characters, and at most `chars` long.
fn clean(text: &str, chars: usize) -> String {
    let printable = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut short: String = printable.take(chars.saturating_add(1)).collect();
    if let Some((end, _)) = short.char_indices().nth(chars) {
        short.truncate(end);
        short.pop();
        short.push('…');
    }
    short
}

/// What a provider says, whichever shape it chose.
#[derive(Debug, Default)]
struct Said {
    codes: Vec<String>,
    message: Option<String>,
}

impl Said {
    /// What is no JSON is no sentence for people, and may be any page of any host.
    fn read(body: &str) -> Self {
        serde_json::from_str::<Value>(body).map(|value| Self::of(&value)).unwrap_or_default()
    }

    fn of(value: &Value) -> Self {
        // Some servers wrap the error object in a list.
        let value = value.as_array().and_then(|list| list.first()).unwrap_or(value);
        let error = value.get("error").filter(|error| !error.is_null()).unwrap_or(value);
        if let Some(text) = error.as_str() {
            return Self { codes: Vec::new(), message: Some(text.to_owned()) };
        }
        let text = |name: &str| error.get(name).and_then(Value::as_str).map(str::to_owned);
        let codes = [text("code"), text("type"), text("status")].into_iter().flatten().collect();
        let message = text("message").or_else(|| text("detail")).or_else(|| text("msg"));
        Self { codes, message }
    }

    fn category(&self) -> Option<Category> {
        let message = self.message.as_deref().unwrap_or_default().to_ascii_lowercase();
        by_message(&message).or_else(|| self.codes.iter().find_map(|code| by_code(code)))
    }

    fn sentence(&self, start: &str) -> String {
        match self.message.as_deref().map(str::trim).filter(|message| !message.is_empty()) {
            Some(message) => format!("{start}: {message}"),
            None => match self.codes.first() {
                Some(code) => format!("{start}: {code}"),
                None => start.to_owned(),
            },
        }
    }
}

fn by_code(code: &str) -> Option<Category> {
    Some(match code {
        "insufficient_quota"
        | "billing_hard_limit_reached"
        | "billing_not_active"
        | "billing_error"
        | "insufficient_balance"
        | "insufficient_credits"
        | "usage_limit_reached"
        | "usage_limit_exceeded" => Category::Billing,
        "context_length_exceeded" | "context_window_exceeded" | "request_too_large" | "string_above_max_length" => {
            Category::ContextWindow
        }
        "content_policy_violation" | "content_filter" | "invalid_prompt" | "cyber_policy" => Category::Policy,
        "rate_limit_exceeded" | "rate_limit_error" | "too_many_requests" => Category::RateLimit,
        "invalid_api_key" | "authentication_error" | "permission_error" => Category::Authentication,
        "overloaded_error" | "api_error" | "server_error" | "slow_down" => Category::Provider,
        "timeout_error" => Category::Timeout,
        "model_not_found" | "not_found_error" | "unsupported_parameter" | "unsupported_value" => Category::BadRequest,
        _ => return None,
    })
}

/// Phrases for cases that share a code with others: Anthropic tells a full context and an empty account only in words,
/// and compatible servers have no codes.
fn by_message(message: &str) -> Option<Category> {
    let says = |phrases: &[&str]| phrases.iter().any(|phrase| message.contains(phrase));
    if says(&["credit balance is too low", "insufficient balance", "insufficient credits"]) {
        return Some(Category::Billing);
    }
    let full = [
        "prompt is too long",
        "maximum context length",
        "exceeds the context window",
        "exceed context limit",
        "exceeds the available context size",
        "maximum prompt length",
        "longer than the maximum model length",
    ];
    says(&full).then_some(Category::ContextWindow)
}

fn by_status(status: u16) -> Category {
    match status {
        401 | 403 => Category::Authentication,
        402 => Category::Billing,
        408 => Category::Timeout,
        413 => Category::ContextWindow,
        429 => Category::RateLimit,
        409 | 425 | 500.. => Category::Provider,
        _ => Category::BadRequest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_and_codes_become_categories() {
        let openai = |code: &str| format!(r#"{{"error":{{"message":"m","type":"t","code":"{code}"}}}}"#);
        let anthropic = |kind: &str, message: &str| {
            format!(r#"{{"type":"error","error":{{"type":"{kind}","message":"{message}"}}}}"#)
        };
        let cases = [
            (400, String::new(), Category::BadRequest),
            (400, openai("context_length_exceeded"), Category::ContextWindow),
            (400, openai("content_policy_violation"), Category::Policy),
            (400, anthropic("invalid_request_error", "prompt is too long: 9 > 8"), Category::ContextWindow),
            (400, anthropic("invalid_request_error", "Your credit balance is too low to use"), Category::Billing),
            (400, anthropic("invalid_request_error", "max_tokens: required"), Category::BadRequest),
            (400, r#"{"detail":"This model's maximum context length is 8"}"#.into(), Category::ContextWindow),
            (400, r#"[{"error":{"message":"m","status":"INVALID"}}]"#.into(), Category::BadRequest),
            (401, openai("invalid_api_key"), Category::Authentication),
            (402, String::new(), Category::Billing),
            (403, anthropic("permission_error", "no"), Category::Authentication),
            (404, openai("model_not_found"), Category::BadRequest),
            (408, String::new(), Category::Timeout),
            (413, anthropic("request_too_large", "big"), Category::ContextWindow),
            (422, r#"{"error":"unprocessable"}"#.into(), Category::BadRequest),
            (429, openai("rate_limit_exceeded"), Category::RateLimit),
            (429, openai("insufficient_quota"), Category::Billing),
            (429, openai("usage_limit_reached"), Category::Billing),
            (429, anthropic("usage_limit_exceeded", "until Monday"), Category::Billing),
            (500, "<html>oops".into(), Category::Provider),
            (503, String::new(), Category::Provider),
            (529, anthropic("overloaded_error", "Overloaded"), Category::Provider),
            (302, String::new(), Category::BadRequest),
        ];
        for (status, body, expected) in cases {
            let error = from_status("P", status, None, &body);
            assert_eq!(error.category, expected, "{status} {body}");
            assert_eq!(error.status, Some(status));
        }
    }

    #[test]
    fn messages_are_clean_short_and_keyless() {
        let key = SecretString::from("sk-canary\n");
        // One of the echoes lies across the end of what is shown.
        let said = format!("a\r\nb sk-canary {}sk-canary{}", "x".repeat(1_950), "y".repeat(200_000));
        let body = serde_json::json!({"error": {"message": said}}).to_string();
        let error = capped(redact(from_status("P", 400, None, &body), Some(&key)));
        assert!(!error.message.contains("sk-") && !error.message.contains('\n'));
        assert!(error.message.starts_with("P answered 400: a  b [redacted]"));
        assert_eq!(error.message.chars().count(), MAX_MESSAGE_CHARS);
    }

    #[test]
    fn a_page_is_not_passed_on() {
        let error = from_status("P", 502, None, "<html>10.0.0.7 said: secret</html>");
        assert_eq!(error.message, "P answered 502");
    }

    #[test]
    fn waiting_times_are_read() {
        let mut headers = http::HeaderMap::new();
        assert_eq!(retry_after(&headers), None);
        headers.insert("retry-after", http::HeaderValue::from_static("2"));
        assert_eq!(retry_after(&headers), Some(Duration::from_secs(2)));
        headers.insert("retry-after-ms", http::HeaderValue::from_static("150"));
        assert_eq!(retry_after(&headers), Some(Duration::from_millis(150)));
        headers.clear();
        headers.insert("retry-after", http::HeaderValue::from_static("-1"));
        assert_eq!(retry_after(&headers), None);
    }
}
