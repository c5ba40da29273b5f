//! The trace that a request belongs to: W3C's `traceparent`. Pure.

use opentelemetry::trace::{SpanId, TraceId};

/// A caller's span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// Its trace.
    pub trace_id: TraceId,
    /// The span.
    pub span_id: SpanId,
    /// Whether the caller records its trace.
    pub sampled: bool,
}

/// Characters of version 00; later versions may have more after them.
const CHARS: usize = 55;

impl TraceParent {
    /// Reads a header. None when it is malformed: then the trace begins here, as the standard wants it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let shape = [version, trace, span, flags].map(str::len) == [2, 32, 16, 2];
        let is_known = version != "ff" && (version != "00" || text.len() == CHARS);
        if !shape || !is_known || ![version, trace, span, flags].into_iter().all(is_hex) {
            return None;
        }
        let (trace_id, span_id) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
        let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        (trace_id != TraceId::INVALID && span_id != SpanId::INVALID).then_some(Self { trace_id, span_id, sampled })
    }

    /// The header of version 00.
    #[must_use]
    pub fn text(&self) -> String {
        format!("00-{}-{}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_headers_are_read_and_others_begin_a_trace() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let parent = TraceParent::parse(good).unwrap();
        assert!(parent.sampled);
        assert_eq!(parent.text(), good);
        let later = format!("cc-{}-what-ever", good.get(3..).unwrap());
        assert_eq!(TraceParent::parse(&later), Some(parent));
        assert!(!TraceParent::parse(&good.replace("-01", "-02")).unwrap().sampled);
        for bad in [
            "",
            "00",
            &good.to_uppercase(),
            &format!("{good}-more"),
            &good.replacen("00", "ff", 1),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-000f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceParent::parse(bad), None, "{bad}");
        }
    }
}
