//! The model of a session's agent.

use super::{SessionError, SessionServices};

/// The id under which a chosen model is stored. `field` is the field of the request that chooses it.
pub async fn check_model(
    services: &SessionServices,
    field: &'static str,
    text: &str,
) -> Result<String, SessionError> {
    services.admission.check_model(text).await.map_err(|error| SessionError::Model(field, error))
}
