//! Ctrl-C: the first one asks, the second one leaves at once.

use tokio_util::sync::CancellationToken;

/// Exit code of a program that Ctrl-C ended: 128 + SIGINT.
pub const INTERRUPTED: u8 = 130;

/// Fires at the first Ctrl-C. The second one ends the process.
#[must_use]
pub fn listen() -> CancellationToken {
    let token = CancellationToken::new();
    let fired = token.clone();
    tokio::spawn(async move {
        for first in [true, false] {
            if tokio::signal::ctrl_c().await.is_err() {
                return;
            }
            if !first {
                std::process::exit(INTERRUPTED.into());
            }
            fired.cancel();
        }
    });
    token
}
