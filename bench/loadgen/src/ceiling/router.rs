//! The HTTP routes of the ceiling, the WebSocket upgrade, and the format of its answers.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::App;

type Body = Full<Bytes>;
pub type Reply = (u16, Bytes);

impl App {
    pub async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let post = request.method() == Method::POST;
        if let (["proliferate", session], false) = (segments.as_slice(), post) {
            return self.upgrade(session, request);
        }
        let (head, body) = request.into_parts();
        let authorization = head.headers.get("authorization").and_then(|value| value.to_str().ok());
        let token = authorization.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or("");
        let body = if post {
            body.collect().await.map(|body| body.to_bytes()).unwrap_or_default()
        } else {
            Bytes::new()
        };
        http(match (segments.as_slice(), post) {
            (["health" | "ready"], false) => (200, Bytes::from_static(b"{\"status\":\"ok\"}")),
            (["proliferate", "sessions"], true) => self.create_session(token, &body).await,
            (["proliferate", session, "tools", tool], true) => {
                self.call_tool(session, tool, token, &body).await
            }
            (["proliferate", session, "actions", "invoke"], true) => self.invoke(session, token, &body).await,
            (["proliferate", session, "actions", "available"], false) => self.available(session, token),
            _ => error(404, "Not found"),
        })
    }

    fn available(&self, session: &str, token: &str) -> Reply {
        if self.keys.sandbox(token, session) || self.keys.jwt(token).is_some() {
            (200, self.catalogue.clone())
        } else {
            error(401, "Invalid token")
        }
    }

    fn upgrade(self: Arc<Self>, session_id: &str, mut request: Request<Incoming>) -> Response<Body> {
        let query = request.uri().query().unwrap_or("");
        let token = query.split('&').find_map(|pair| pair.strip_prefix("token=")).unwrap_or("");
        let key = request.headers().get("sec-websocket-key").map(|key| derive_accept_key(key.as_bytes()));
        let (Some(_), Some(key)) = (self.keys.jwt(token), key) else {
            return http(error(401, "Invalid token"));
        };
        let Some(session) = self.session(session_id) else {
            return http(error(404, "Session not found"));
        };
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let Ok(upgraded) = upgrade.await else { return };
            if let Ok(parts) = upgraded.downcast::<TokioIo<TcpStream>>() {
                self.serve_socket(session, parts.io.into_inner(), parts.read_buf).await;
            }
        });
        Response::builder()
            .status(101)
            .header("upgrade", "websocket")
            .header("connection", "Upgrade")
            .header("sec-websocket-accept", key)
            .body(Body::default())
            .expect("an accept key is base64")
    }
}

pub fn reply(code: u16, body: &Value) -> Reply {
    (code, Bytes::from(body.to_string()))
}

pub fn error(code: u16, text: &str) -> Reply {
    reply(code, &json!({"error": text}))
}

fn http((code, body): Reply) -> Response<Body> {
    Response::builder()
        .status(code)
        .header("content-type", "application/json")
        .body(Full::new(body))
        .expect("the status and the header are valid")
}
