//! The services of a session's app in its sandbox. The agent's own service is not one of them.

use gate::Permit;
use proto::http::{ServiceEntry, ServiceLog, ServiceStatus, StartService};
use proto::socket::AutoStartCommand;
use sandboxd::protocol::{ServiceInfo, ServiceState};
use sandboxd::{ClientError, Sandboxd};

use super::auto_start;

/// Sets the services of an app apart from the agent's own.
const APP_PREFIX: &str = "app-";
/// The most of a log that is returned.
const MAX_LOG: usize = 64 * 1024;

pub(crate) async fn list(inside: &Sandboxd) -> Result<Vec<ServiceEntry>, ClientError> {
    Ok(inside.service_list().await?.into_iter().filter_map(entry).collect())
}

/// Starts a service. It replaces one of the same name.
pub(crate) async fn start(
    _: &Permit,
    inside: &Sandboxd,
    service: StartService,
) -> Result<Option<ServiceEntry>, ClientError> {
    let StartService { name, command, cwd } = service;
    let command = AutoStartCommand { name, command, cwd, workspace_path: None };
    Ok(entry(inside.service_start(auto_start::service(&command)).await?))
}

/// Stops a service. Stopping an unknown one is not an error.
pub(crate) async fn stop(_: &Permit, inside: &Sandboxd, name: &str) -> Result<(), ClientError> {
    inside.service_stop(&service_name(name)).await
}

pub(crate) async fn restart(
    _: &Permit,
    inside: &Sandboxd,
    name: &str,
) -> Result<Option<ServiceEntry>, ClientError> {
    Ok(entry(inside.service_restart(&service_name(name)).await?))
}

/// The newest output of a service.
pub(crate) async fn log(inside: &Sandboxd, name: &str) -> Result<ServiceLog, ClientError> {
    let mut stream = inside.logs(&service_name(name), false).await?;
    let (mut bytes, mut truncated) = (Vec::new(), false);
    while let Some(part) = stream.next().await? {
        bytes.extend_from_slice(&part);
        if bytes.len() > MAX_LOG {
            truncated = true;
            bytes.drain(..bytes.len() - MAX_LOG);
        }
    }
    Ok(ServiceLog { log: String::from_utf8_lossy(&bytes).into_owned(), truncated })
}

/// The supervisor's name of a service that people name: the agent's own, or one of the app.
pub(crate) fn name_inside(inside: &[String], named: &str) -> Option<String> {
    let app = service_name(named);
    [named.to_owned(), app].into_iter().find(|name| inside.contains(name))
}

/// The name of a service for people.
pub(crate) fn shown_name(name: &str) -> &str {
    name.strip_prefix(APP_PREFIX).unwrap_or(name)
}

/// The supervisor's name of a service.
pub(super) fn service_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '-' };
    let name: String = name.chars().map(plain).take(MAX_NAME).collect();
    format!("{APP_PREFIX}{name}")
}

/// The supervisor accepts 64 characters.
const MAX_NAME: usize = 60;

fn entry(info: ServiceInfo) -> Option<ServiceEntry> {
    let status = match info.state {
        // One that has never exited is only being started.
        ServiceState::Waiting if info.last_exit.is_none() && info.restarts == 0 => ServiceStatus::Running,
        ServiceState::Running => ServiceStatus::Running,
        ServiceState::Stopped => ServiceStatus::Stopped,
        ServiceState::Waiting | ServiceState::Failed => ServiceStatus::Error,
    };
    Some(ServiceEntry {
        name: info.name.strip_prefix(APP_PREFIX)?.to_owned(),
        command: info.command,
        status,
        pid: info.pid,
        restarts: info.restarts,
        started_at: info.started_at,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_services_are_valid_and_never_the_agents() {
        assert_eq!(service_name("agent"), "app-agent");
        assert_eq!(service_name("../x y"), "app----x-y");
        assert_eq!(service_name(&"x".repeat(100)).len(), 64);
    }

    #[test]
    fn people_name_a_service_as_the_list_shows_it() {
        let inside = ["agent", "app-web", "app-agent"].map(str::to_owned);
        assert_eq!(name_inside(&inside, "web").as_deref(), Some("app-web"));
        assert_eq!(name_inside(&inside, "agent").as_deref(), Some("agent"));
        assert_eq!(name_inside(&inside, "app-agent").as_deref(), Some("app-agent"));
        assert_eq!(name_inside(&inside, "db"), None);
        assert_eq!(inside.iter().map(|name| shown_name(name)).collect::<Vec<_>>(), ["agent", "web", "agent"]);
    }
}
