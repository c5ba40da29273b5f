//! Pages of lists.

use serde::Serialize;
use utoipa::ToSchema;

/// One page.
#[derive(Debug, Serialize, ToSchema)]
pub struct Page<T> {
    /// The rows.
    pub data: Vec<T>,
    /// Where in the list they are.
    pub meta: PageMeta,
}

/// Where in a list a page is.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub struct PageMeta {
    /// From 1.
    pub page: u64,
    /// Most rows of a page.
    pub limit: u64,
    /// Pages in all.
    pub total_pages: u64,
    /// Rows in all.
    pub total_count: u64,
    /// How long the look-up took, in milliseconds.
    pub search_time_ms: f64,
}

impl PageMeta {
    /// The place of page `page` (from 1) of `total_count` rows.
    #[must_use]
    pub fn new(page: u64, limit: u64, total_count: u64, search_time: std::time::Duration) -> Self {
        let total_pages = total_count.div_ceil(limit.max(1));
        Self { page, limit, total_pages, total_count, search_time_ms: search_time.as_secs_f64() * 1000.0 }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_last_page_may_be_short() {
        assert_eq!(PageMeta::new(1, 20, 0, Duration::ZERO).total_pages, 0);
        assert_eq!(PageMeta::new(1, 20, 20, Duration::ZERO).total_pages, 1);
        assert_eq!(PageMeta::new(2, 20, 21, Duration::from_millis(3)).total_pages, 2);
    }
}
