//! Lists of hosts that somebody allows: exact names, `*.suffix`, each perhaps with a port.

use url::Url;

/// Whether `list` allows `url`. An entry without a port allows every port; `*.example.com` allows every name below
/// `example.com` but not that name itself; a bare `*` allows nothing, since it would make the list pointless.
pub(crate) fn allowed<S: AsRef<str>>(list: &[S], url: &Url) -> bool {
    let Some(host) = url.host_str() else { return false };
    let host = normal(host);
    list.iter().any(|entry| matches(entry.as_ref(), &host, url.port_or_known_default()))
}

fn matches(entry: &str, host: &str, port: Option<u16>) -> bool {
    let entry = normal(entry);
    let (name, wanted) = split_port(&entry);
    if wanted.is_some() && wanted != port {
        return false;
    }
    match name.strip_prefix("*.") {
        Some(suffix) => {
            !suffix.is_empty() && host.strip_suffix(suffix).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
        }
        None => !name.is_empty() && name == host,
    }
}

fn split_port(entry: &str) -> (&str, Option<u16>) {
    match entry.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => match port.parse() {
            Ok(port) => (name, Some(port)),
            Err(_) => (entry, None),
        },
        _ => (entry, None),
    }
}

fn normal(name: &str) -> String {
    name.trim().trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_allow_what_they_say() {
        let cases = [
            ("api.example.com", "https://api.example.com/x", true),
            (" API.Example.com. ", "https://api.example.com", true),
            ("api.example.com", "https://api.example.com.evil.net", false),
            ("api.example.com", "https://xapi.example.com", false),
            ("*.example.com", "https://a.example.com", true),
            ("*.example.com", "https://a.b.example.com", true),
            ("*.example.com", "https://example.com", false),
            ("*.example.com", "https://evilexample.com", false),
            ("*", "https://example.com", false),
            ("*.", "https://example.com", false),
            ("", "https://example.com", false),
            ("example.com:8443", "https://example.com:8443", true),
            ("example.com:8443", "https://example.com", false),
            ("example.com:443", "https://example.com", true),
            ("127.0.0.1", "http://127.0.0.1:9999", true),
            ("[::1]:80", "http://[::1]/", true),
        ];
        for (entry, url, expected) in cases {
            assert_eq!(allowed(&[entry], &Url::parse(url).unwrap()), expected, "{entry} {url}");
        }
    }
}
