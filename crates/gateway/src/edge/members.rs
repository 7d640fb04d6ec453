//! `/v1/members`: the members of the caller's organization.

use axum::Json;
use axum::http::StatusCode;
use proto::http::{AddMember, ErrorBody, MemberEntry, MemberList, OkReply, SetRole};
use proto::{Role, UserId, text};
use store::{Member, NewMember};

use super::administer::administer;
use super::auth::User;
use super::params::Path;
use super::{ApiError, Body};
use crate::access::Act;
use crate::app::AppState;
use gate::Subject;

#[utoipa::path(get, path = "/v1/members", tag = "identity", responses((status = 200, body = MemberList)))]
pub(super) async fn list(app: AppState, user: User) -> Result<Json<MemberList>, ApiError> {
    let members = app.store.members(user.org).await?.into_iter().map(entry).collect();
    Ok(Json(MemberList { members }))
}

/// Adds a member. If no user has this email address, one is created.
#[utoipa::path(post, path = "/v1/members", tag = "identity", request_body = AddMember,
    responses((status = 201, body = MemberEntry), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn add(
    app: AppState,
    admin: User,
    Body(new): Body<AddMember>,
) -> Result<(StatusCode, Json<MemberEntry>), ApiError> {
    may_give(&admin, new.role)?;
    let email = new.email.trim();
    if !text::is_email(email) {
        return Err(ApiError::bad_request("email must be an address"));
    }
    let name = new.name.unwrap_or_else(|| email.to_owned());
    if !text::is_line(&name, text::MAX_NAME) {
        return Err(ApiError::bad_request("name must be one line of 1 to 320 characters"));
    }
    let at = app.clock.now();
    let user_id = UserId::from(app.rng.uuid(at));
    let member = NewMember { user_id, email: email.to_owned(), name, org_id: admin.org, role: new.role, at };
    let details = format!("role {}", new.role);
    let user = administer(&app, &admin, Subject::Member, "add", details).add_member(member).await?;
    let member =
        app.store.member(admin.org, user).await?.ok_or_else(|| ApiError::conflict("Removed meanwhile"))?;
    Ok((StatusCode::CREATED, Json(entry(member))))
}

#[utoipa::path(patch, path = "/v1/members/{userId}", tag = "identity", request_body = SetRole,
    params(("userId" = UserId, Path)),
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn set_role(
    app: AppState,
    user: User,
    Path(target): Path<UserId>,
    Body(change): Body<SetRole>,
) -> Result<Json<OkReply>, ApiError> {
    let details = format!("user {target}, role {}", change.role);
    let store = administer(&app, &user, Subject::Role, "change", details);
    store.change_member(user.org, target, Some(change.role), app.clock.now()).await?;
    Ok(Json(OkReply::OK))
}

/// Removes a member. All API keys and tickets of the membership end with it, and so do requests that wait for approval and
/// were made with those keys.
#[utoipa::path(delete, path = "/v1/members/{userId}", tag = "identity", params(("userId" = UserId, Path)),
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn remove(
    app: AppState,
    admin: User,
    Path(target): Path<UserId>,
) -> Result<Json<OkReply>, ApiError> {
    let store = administer(&app, &admin, Subject::Member, "remove", format!("user {target}"));
    if admin.may(Act::ManageRoles, false) {
        store.change_member(admin.org, target, None, app.clock.now()).await?;
    } else if !store.remove_plain_member(admin.org, target, app.clock.now()).await? {
        let member = app.store.member(admin.org, target).await?;
        return Err(match member {
            Some(_) => ApiError::forbidden("Only an owner may remove owners and admins"),
            None => ApiError::not_found("This member does not exist"),
        });
    }
    Ok(Json(OkReply::OK))
}

/// Refuses to add an admin or owner if the caller may not manage roles: such a caller may add plain members only.
fn may_give(admin: &User, role: Role) -> Result<(), ApiError> {
    let allowed = role == Role::Member || admin.may(Act::ManageRoles, false);
    if allowed { Ok(()) } else { Err(ApiError::forbidden("Only an owner may make admins and owners")) }
}

fn entry(member: Member) -> MemberEntry {
    MemberEntry {
        user_id: member.user_id,
        email: member.email,
        name: member.name,
        role: member.role,
        created_at: member.created_at,
    }
}
