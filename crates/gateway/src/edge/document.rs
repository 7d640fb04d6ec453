//! The description of the API (`/openapi.json`), and what all routes share in it: the bearer scheme and the error
//! responses of extractors.

use utoipa::openapi::path::{Operation, Parameter, ParameterIn};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{Modify, OpenApi};

#[derive(OpenApi)]
#[openapi(
    info(title = "proliferate", description = "A gateway for coding agents.", license(name = "Apache-2.0")),
    modifiers(&Bearer),
    security(("bearer" = []))
)]
pub(super) struct Document;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        document.components.get_or_insert_default().add_security_scheme("bearer", scheme);
    }
}

const OF_ALL: [(&str, &str); 3] = [
    ("429", "The caller has used its share; Retry-After says when to try again"),
    ("500", "The gateway failed; its log says why"),
    ("503", "The database, or another service that the gateway needs, is not available"),
];
const OF_CREDENTIALS: [(&str, &str); 2] =
    [("401", "No valid credential"), ("403", "The caller is known and may not do this")];
const OF_PATHS: [(&str, &str); 1] = [("404", "There is no such thing, or the caller may not know of it")];
const OF_QUERIES: [(&str, &str); 1] = [("400", "The query is not of the expected shape")];
const OF_ORGANIZATIONS: [(&str, &str); 1] =
    [("404", "The caller's token is not for the organization that it names")];
const OF_BODIES: [(&str, &str); 3] = [
    ("400", "The body is malformed or not of the expected shape"),
    ("408", "The body did not arrive in time"),
    ("413", "The body is larger than PROLIFERATE_MAX_BODY_BYTES, or 32 MiB for a prompt, or 256 KiB for MCP"),
];

/// Adds the error responses of extractors to every operation, so that no route has to list them.
pub(super) fn complete(document: &mut utoipa::openapi::OpenApi) {
    for (path, item) in &mut document.paths.paths {
        let all = [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete];
        // Errors of the model proxy have the form of the model APIs.
        let ours = !path.starts_with("/llm/");
        for operation in all.into_iter().flatten() {
            let (secured, body) = (operation.security.is_none(), operation.request_body.is_some());
            let query = operation.parameters.iter().flatten().any(is_query);
            let organization = operation.parameters.iter().flatten().any(names_organization);
            add(operation, &OF_ALL, ours);
            for (applies, refusals) in [
                (secured, &OF_CREDENTIALS[..]),
                (path.contains('{'), &OF_PATHS[..]),
                (query, &OF_QUERIES[..]),
                (organization, &OF_ORGANIZATIONS[..]),
                (body, &OF_BODIES[..]),
            ] {
                add(operation, if applies { refusals } else { &[] }, ours);
            }
        }
    }
}

fn is_query(parameter: &RefOr<Parameter>) -> bool {
    matches!(parameter, RefOr::T(parameter) if parameter.parameter_in == ParameterIn::Query)
}

fn names_organization(parameter: &RefOr<Parameter>) -> bool {
    let RefOr::T(parameter) = parameter else { return false };
    matches!(parameter.name.as_str(), "organizationId" | "organization_id")
}

fn add(operation: &mut Operation, refusals: &[(&str, &str)], ours: bool) {
    for (status, why) in refusals {
        let known = &mut operation.responses.responses;
        known.entry((*status).to_owned()).or_insert_with(|| RefOr::T(refusal(why, ours)));
    }
}

fn refusal(why: &str, ours: bool) -> Response {
    let response = ResponseBuilder::new().description(why);
    let body = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
    if ours { response.content("application/json", body).build() } else { response.build() }
}
