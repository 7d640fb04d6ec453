//! The model of a session's agent: which one can be chosen, and how it is changed.

use proto::SessionId;

use super::{SessionError, SessionServices};

/// The id under which a chosen model is stored. `field` is the field of the request that chooses it.
pub async fn check_model(
    services: &SessionServices,
    field: &'static str,
    text: &str,
) -> Result<String, SessionError> {
    services.admission.check_model(text).await.map_err(|error| SessionError::Model(field, error))
}

/// Changes the model of a session from its next prompt on, and returns its stored id. A running turn keeps its model.
pub async fn set_model(
    services: &SessionServices,
    session: SessionId,
    text: &str,
) -> Result<String, SessionError> {
    let model = check_model(services, "modelId", text).await?;
    services.hubs.open(session).await?.set_model(model.clone()).await??;
    Ok(model)
}
