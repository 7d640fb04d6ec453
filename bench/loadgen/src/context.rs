//! State that every command needs: the common options, a user token, new sessions, and the output of results.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::args::Common;
use crate::http::Connection;
use crate::tokens::{sandbox_token, user_jwt};
use crate::usage::{self, Usage};
use crate::{Error, Result};

/// Number of connections that create sessions and sockets concurrently, outside the measurement.
pub const OPENERS: usize = 16;

pub struct Context {
    pub common: Common,
    pub user_token: String,
}

impl Context {
    pub fn new(common: Common) -> Self {
        let user_token = user_jwt(&common.user, &common.org, &common.jwt_secret);
        Self { common, user_token }
    }

    pub fn sandbox_token(&self, session: &str) -> String {
        sandbox_token(&self.common.service_secret, session)
    }

    pub fn begin_usage(&self) -> Usage {
        Usage::begin(&self.common.pids)
    }

    pub async fn wait_quiet(&self) {
        usage::wait_quiet(&self.common.pids, self.common.quiet, self.common.quiet_max).await;
    }

    /// Prints a result as one JSON line.
    pub fn emit(&self, mut result: Value, command: &str) {
        result["cmd"] = json!(command);
        result["tag"] = json!(self.common.tag);
        println!("{result}");
    }

    pub fn create_body(&self, number: usize, kind: &str) -> String {
        let configuration = format!("00000000-0000-4000-8000-{:012x}", number % self.common.configs + 1);
        json!({"organizationId": self.common.org, "configurationId": configuration, "sessionType": kind,
            "clientType": "web", "sandboxMode": "deferred"})
        .to_string()
    }

    pub async fn create_sessions(self: &Arc<Self>, count: usize, kind: &'static str) -> Result<Vec<String>> {
        let next = Arc::new(AtomicUsize::new(0));
        let workers: Vec<_> = (0..count.min(OPENERS))
            .map(|_| tokio::spawn(create_some(self.clone(), next.clone(), count, kind)))
            .collect();
        let mut sessions = Vec::new();
        for worker in workers {
            sessions.extend(worker.await??);
        }
        Ok(sessions)
    }
}

/// One worker's share of `count` sessions.
async fn create_some(
    context: Arc<Context>,
    next: Arc<AtomicUsize>,
    count: usize,
    kind: &str,
) -> Result<Vec<String>> {
    let mut connection = Connection::new(&context.common.addr);
    let mut sessions = Vec::new();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= count {
            return Ok(sessions);
        }
        let body = context.create_body(number, kind);
        let (status, answer) =
            connection.send("POST", "/proliferate/sessions", &context.user_token, Some(body)).await?;
        if status != 201 {
            return Err(format!("create session: {status} {}", String::from_utf8_lossy(&answer)).into());
        }
        let answer: Value = serde_json::from_slice(&answer)?;
        let session = answer["sessionId"].as_str().ok_or_else(|| Error::from("no sessionId"))?;
        sessions.push(session.to_owned());
    }
}
