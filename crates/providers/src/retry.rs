//! When a request is sent again: only if nothing can have happened, or if repeating it is harmless, and not before the
//! vendor's `Retry-After` has passed.

use std::time::Duration;

use crate::ApiError;

/// How often a request is sent at most.
pub const MAX_ATTEMPTS: u32 = 3;
/// The longest pause before another attempt. If a vendor demands a longer one, there is no other attempt
/// and the caller gets an error.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// How one attempt ended.
pub enum Attempt<'a> {
    /// No connection was made, so nothing was sent.
    NotSent,
    /// The connection broke or the answer did not come in time, after something may have been sent.
    Broken,
    /// The vendor answered with an error.
    Answered { error: &'a ApiError, retry_after: Option<&'a str> },
}

/// The pause before the next attempt, or none if there must not be one. `made` is the number of attempts so far.
pub fn pause(replay_safe: bool, made: u32, attempt: &Attempt<'_>) -> Option<Duration> {
    if made >= MAX_ATTEMPTS {
        return None;
    }
    let backoff = Duration::from_millis(500) * 2_u32.pow(made.saturating_sub(1));
    let (may_repeat, retry_after) = match attempt {
        Attempt::NotSent => (true, None),
        Attempt::Broken => (replay_safe, None),
        Attempt::Answered { error: ApiError::RateLimited(_), retry_after } => (true, *retry_after),
        Attempt::Answered { error: ApiError::Failed(_), retry_after } => (replay_safe, *retry_after),
        Attempt::Answered { error: ApiError::Refused(_), .. } => (false, None),
    };
    let pause = match retry_after {
        None => backoff,
        // A date instead of seconds: its clock is not ours, so there is no other attempt.
        Some(text) => Duration::from_secs(text.trim().parse().ok()?),
    };
    (may_repeat && pause <= MAX_DELAY).then_some(pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered<'a>(error: &'a ApiError, retry_after: Option<&'a str>) -> Attempt<'a> {
        Attempt::Answered { error, retry_after }
    }

    #[test]
    fn a_write_is_repeated_only_if_nothing_can_have_happened() {
        let (limited, failed) = (ApiError::RateLimited(String::new()), ApiError::Failed(String::new()));
        assert_eq!(pause(false, 1, &Attempt::NotSent), Some(Duration::from_millis(500)));
        assert_eq!(pause(false, 1, &answered(&limited, Some("2"))), Some(Duration::from_secs(2)));
        assert_eq!(pause(false, 1, &Attempt::Broken), None);
        assert_eq!(pause(false, 1, &answered(&failed, Some("1"))), None);
        assert_eq!(pause(true, 2, &Attempt::Broken), Some(Duration::from_secs(1)));
        assert_eq!(pause(true, 1, &answered(&failed, None)), Some(Duration::from_millis(500)));
    }

    #[test]
    fn refusals_long_pauses_and_spent_attempts_are_final() {
        let (limited, refused) = (ApiError::RateLimited(String::new()), ApiError::Refused(String::new()));
        assert_eq!(pause(true, 1, &answered(&refused, None)), None);
        for late in ["11", "3600", "Wed, 21 Oct 2026 07:28:00 GMT", "-1", ""] {
            assert_eq!(pause(true, 1, &answered(&limited, Some(late))), None, "{late}");
        }
        assert_eq!(pause(true, MAX_ATTEMPTS, &Attempt::NotSent), None);
    }
}
