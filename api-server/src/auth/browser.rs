//! Local mode without a key: a web page that the user happens to look at must not reach the port (security rule 4).
//!
//! `Host` is checked against DNS rebinding, `Origin` and `Sec-Fetch-Site` against cross-site requests.

use std::net::IpAddr;

use http::request::Parts;
use http::{HeaderMap, header};

/// Why a request is refused; the text goes to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// The name that the client used is not this machine's loopback.
    #[error("Host is not allowed: use localhost or the address that the server listens on")]
    Host,
    /// A page of another origin sent it.
    #[error("Requests from other origins are refused; set OS_SECURITY_KEY to use the API from elsewhere")]
    Origin,
}

/// Refuses what a browser sends on behalf of a foreign page.
///
/// # Errors
/// When it is foreign.
pub fn check(parts: &Parts, listen_host: &str) -> Result<(), Foreign> {
    let authority = authority(parts).ok_or(Foreign::Host)?;
    if !is_own_host(host_of(authority), listen_host) {
        return Err(Foreign::Host);
    }
    if let Some(origin) = parts.headers.get(header::ORIGIN) {
        let same = origin.to_str().is_ok_and(|origin| is_same_origin(origin, authority));
        if !same {
            return Err(Foreign::Origin);
        }
    }
    match fetch_site(&parts.headers) {
        Some("cross-site") => Err(Foreign::Origin),
        _ => Ok(()),
    }
}

/// HTTP/1 has the `Host` header, HTTP/2 the authority of the URI.
fn authority(parts: &Parts) -> Option<&str> {
    match parts.headers.get(header::HOST) {
        Some(host) => host.to_str().ok(),
        None => parts.uri.authority().map(http::uri::Authority::as_str),
    }
}

fn fetch_site(headers: &HeaderMap) -> Option<&str> {
    headers.get("sec-fetch-site").and_then(|value| value.to_str().ok())
}

fn is_same_origin(origin: &str, authority: &str) -> bool {
    origin.split_once("://").is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(authority))
}

/// Host without its port; an IPv6 address loses its brackets.
fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    authority.rsplit_once(':').map_or(authority, |(host, _)| host)
}

fn is_own_host(host: &str, listen_host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.eq_ignore_ascii_case(listen_host)
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(headers: &[(&str, &str)]) -> Result<(), Foreign> {
        let mut request = http::Request::post("/agents/a/runs");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        check(&parts, "127.0.0.1")
    }

    #[test]
    fn local_programs_and_own_pages_pass() {
        for host in ["localhost", "localhost:7777", "127.0.0.1:7777", "127.8.8.8", "[::1]:7777", "LOCALHOST:1"] {
            assert_eq!(verdict(&[("host", host)]), Ok(()), "{host}");
        }
        let own = [("host", "localhost:7777"), ("origin", "http://localhost:7777"), ("sec-fetch-site", "same-origin")];
        assert_eq!(verdict(&own), Ok(()));
        assert_eq!(verdict(&[("host", "localhost:7777"), ("sec-fetch-site", "none")]), Ok(()));
    }

    #[test]
    fn other_names_are_refused() {
        for host in ["evil.example", "evil.example:7777", "localhost.evil.example", "10.0.0.1", "[fe80::1]:7777", ""] {
            assert_eq!(verdict(&[("host", host)]), Err(Foreign::Host), "{host}");
        }
        assert_eq!(verdict(&[]), Err(Foreign::Host));
    }

    #[test]
    fn other_origins_are_refused() {
        for origin in ["https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1:7777"] {
            let headers = [("host", "localhost:7777"), ("origin", origin)];
            assert_eq!(verdict(&headers), Err(Foreign::Origin), "{origin}");
        }
        assert_eq!(verdict(&[("host", "localhost"), ("sec-fetch-site", "cross-site")]), Err(Foreign::Origin));
    }
}
