//! Headers that strangers choose: grammar, forbidden names, caps.

use http::{HeaderMap, HeaderName, HeaderValue};

const MAX_HEADERS: usize = 64;
const MAX_BYTES: usize = 16 << 10;

/// Names that belong to the connection, to the client itself, or to proxies.
const CONNECTION: [&str; 16] = [
    "connection",
    "content-length",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-real-ip",
];

/// Names that carry credentials; a Model has `auth` for that.
const CREDENTIALS: [&str; 6] = ["api-key", "authorization", "cookie", "x-api-key", "x-auth-token", "x-goog-api-key"];

/// A header that is not sent. Says the name at most, never the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeaderError {
    #[error("a header name is malformed")]
    Name,
    #[error("the value of header {0} is malformed")]
    Value(String),
    #[error("header {0} may not be set")]
    Forbidden(String),
    #[error("there are too many headers, or they are too long")]
    TooLarge,
}

/// Checked headers. With `credentials`, such headers may be among them.
pub(crate) fn build<'a>(
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    credentials: bool,
) -> Result<HeaderMap, HeaderError> {
    let mut headers = HeaderMap::new();
    let mut bytes = 0;
    for (name, value) in pairs {
        bytes += name.len() + value.len();
        if headers.len() >= MAX_HEADERS || bytes > MAX_BYTES {
            return Err(HeaderError::TooLarge);
        }
        let name: HeaderName = name.parse().map_err(|_| HeaderError::Name)?;
        let text = name.as_str();
        if CONNECTION.contains(&text) || text.starts_with("x-forwarded-") || text.starts_with("proxy-") {
            return Err(HeaderError::Forbidden(text.to_owned()));
        }
        if !credentials && CREDENTIALS.contains(&text) {
            return Err(HeaderError::Forbidden(text.to_owned()));
        }
        let value = HeaderValue::from_str(value).map_err(|_| HeaderError::Value(text.to_owned()))?;
        headers.insert(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_checked() {
        let forbidden = |name: &str| Some(HeaderError::Forbidden(name.to_owned()));
        let cases = [
            ("X-Custom", "yes", None),
            ("accept", "text/html", None),
            ("Host", "evil", forbidden("host")),
            ("Transfer-Encoding", "chunked", forbidden("transfer-encoding")),
            ("Connection", "x", forbidden("connection")),
            ("X-Forwarded-For", "1.2.3.4", forbidden("x-forwarded-for")),
            ("X-Forwarded-Anything", "1", forbidden("x-forwarded-anything")),
            ("Proxy-Whatever", "1", forbidden("proxy-whatever")),
            ("Authorization", "Bearer x", forbidden("authorization")),
            ("a b", "x", Some(HeaderError::Name)),
            ("a\r\nHost", "x", Some(HeaderError::Name)),
            ("", "x", Some(HeaderError::Name)),
            ("x-a", "1\r\nX-Evil: 2", Some(HeaderError::Value("x-a".to_owned()))),
            ("x-a", "1\n2", Some(HeaderError::Value("x-a".to_owned()))),
            ("x-a", "\0", Some(HeaderError::Value("x-a".to_owned()))),
        ];
        for (name, value, expected) in cases {
            assert_eq!(build([(name, value)], false).err(), expected, "{name:?}");
        }
        assert!(build([("authorization", "Bearer x")], true).is_ok());
    }

    #[test]
    fn there_are_caps() {
        let long = "x".repeat(MAX_BYTES);
        assert_eq!(build([("x-a", long.as_str())], false).err(), Some(HeaderError::TooLarge));
        let names: Vec<String> = (0..=MAX_HEADERS).map(|n| format!("x-{n}")).collect();
        assert_eq!(build(names.iter().map(|n| (n.as_str(), "")), false).err(), Some(HeaderError::TooLarge));
    }
}
