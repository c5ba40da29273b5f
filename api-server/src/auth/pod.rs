//! Who a worker is.
