//! Builds the conditions of one object, so that Ready, Reconciling and Stalled always agree.

use cadre_crds::common::conditions::{self, READY, RECONCILING, STALLED, Truth};
use cadre_crds::common::reasons::Reason;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Whether an object can be used, in kstatus's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It can: Current.
    Ready,
    /// It can't yet, and heals without an edit: InProgress.
    Waiting(Truth),
    /// It must be edited, or has ended badly for good: Failed.
    Stalled,
    /// It can't, on purpose.
    Resting,
}

/// Conditions under construction.
#[derive(Debug)]
pub struct Conditions<'a> {
    list: Vec<Condition>,
    generation: i64,
    now: &'a Time,
}

impl<'a> Conditions<'a> {
    /// Starts with what is in the object, so that transition times stay.
    #[must_use]
    pub fn of(old: &[Condition], generation: i64, now: &'a Time) -> Self {
        Self { list: old.to_vec(), generation, now }
    }

    /// Sets one.
    #[must_use]
    pub fn set(mut self, kind: &str, truth: impl Into<Truth>, reason: Reason, message: &str) -> Self {
        conditions::set(&mut self.list, kind, truth.into(), reason, message, self.generation, self.now);
        self
    }

    /// Removes one.
    #[must_use]
    pub fn without(mut self, kind: &str) -> Self {
        conditions::remove(&mut self.list, kind);
        self
    }

    /// Sets Ready, Reconciling and Stalled.
    #[must_use]
    pub fn verdict(self, verdict: Verdict, reason: Reason, message: &str) -> Self {
        let (ready, other) = match verdict {
            Verdict::Ready => (Truth::True, None),
            Verdict::Waiting(ready) => (ready, Some(RECONCILING)),
            Verdict::Stalled => (Truth::False, Some(STALLED)),
            Verdict::Resting => (Truth::False, None),
        };
        let mut next = self.set(READY, ready, reason, message);
        for kind in [RECONCILING, STALLED] {
            next = if other == Some(kind) { next.set(kind, Truth::True, reason, message) } else { next.without(kind) };
        }
        next
    }

    /// The finished list.
    #[must_use]
    pub fn finish(self) -> Vec<Condition> {
        self.list
    }
}

/// The reason of a condition, empty when it is absent.
#[must_use]
pub fn reason<'a>(list: &'a [Condition], kind: &str) -> &'a str {
    list.iter().find(|condition| condition.type_ == kind).map_or("", |condition| &condition.reason)
}

/// The status of a condition, empty when it is absent.
#[must_use]
pub fn truth<'a>(list: &'a [Condition], kind: &str) -> &'a str {
    list.iter().find(|condition| condition.type_ == kind).map_or("", |condition| &condition.status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reconciling_and_stalled_are_never_both_there() {
        let now = Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
        let mut list = Vec::new();
        for verdict in [Verdict::Waiting(Truth::Unknown), Verdict::Stalled, Verdict::Ready, Verdict::Resting] {
            list = Conditions::of(&list, 3, &now).verdict(verdict, Reason::Progressing, "m").finish();
            let there = [RECONCILING, STALLED].map(|kind| conditions::is_true(&list, kind));
            let expected = match verdict {
                Verdict::Waiting(_) => [true, false],
                Verdict::Stalled => [false, true],
                Verdict::Ready | Verdict::Resting => [false, false],
            };
            assert_eq!(there, expected, "{verdict:?}");
        }
        assert_eq!((truth(&list, READY), reason(&list, READY)), ("False", "Progressing"));
    }
}
