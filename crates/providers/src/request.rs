//! A request to a vendor without its token. Ids and slugs come from an agent, so each stays within its path segment.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use policy::Method;
use serde_json::{Map, Value};
use url::Url;

use crate::{InvalidParams, Params};

/// The characters that a path segment may contain as they are: the unreserved ones of RFC 3986.
const SEGMENT_ESCAPES: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A request to a vendor, without the vendor's headers and the token.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub method: Method,
    pub url: Url,
    pub body: Option<Value>,
}

impl Request {
    /// A request for a path below the base URL. Every segment is encoded.
    pub(crate) fn new(method: Method, base: &Url, segments: &[&str]) -> Result<Self, InvalidParams> {
        let mut path = base.path().trim_end_matches('/').to_owned();
        for segment in segments {
            path.push('/');
            path.push_str(&encode(segment)?);
        }
        let mut url = base.clone();
        url.set_path(&path);
        Ok(Self { method, url, body: None })
    }

    /// Ends the path with a slash, as Sentry demands.
    pub(crate) fn with_slash(mut self) -> Self {
        let path = format!("{}/", self.url.path());
        self.url.set_path(&path);
        self
    }

    /// Adds these parameters to the query if the call has them.
    pub(crate) fn with_query(mut self, params: &Params<'_>, names: &[&str]) -> Self {
        for (name, value) in params.only(names) {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            self.url.query_pairs_mut().append_pair(&name, &text);
        }
        self
    }

    pub(crate) fn with_body(mut self, body: Map<String, Value>) -> Self {
        self.body = Some(Value::Object(body));
        self
    }
}

/// Encodes one path segment. Dots alone would name another directory, and URL parsers resolve them even when encoded.
fn encode(segment: &str) -> Result<String, InvalidParams> {
    if matches!(segment, "" | "." | "..") {
        return Err(InvalidParams("a name in the path must not be empty, `.` or `..`".to_owned()));
    }
    Ok(utf8_percent_encode(segment, SEGMENT_ESCAPES).to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_parameter_leaves_its_segment(hostile in "[a-z./%?#\\\\@:; \n\u{e9}]{1,12}") {
            let base = Url::parse("https://vendor.example/api/0/").unwrap();
            let Ok(request) = Request::new(Method::Get, &base, &["issues", &hostile, "events"]) else {
                prop_assert!(matches!(hostile.as_str(), "." | ".."));
                return Ok(());
            };
            let segments: Vec<_> = request.url.path_segments().unwrap().collect();
            prop_assert_eq!(segments.len(), 5, "{}", request.url);
            prop_assert_eq!((segments[2], segments[4]), ("issues", "events"));
            prop_assert_eq!(request.url.host_str(), Some("vendor.example"));
            prop_assert_eq!((request.url.query(), request.url.fragment()), (None, None));
            let decoded = percent_encoding::percent_decode_str(segments[3]).decode_utf8().unwrap();
            prop_assert_eq!(decoded.as_ref(), hostile.as_str());
        }
    }

    #[test]
    fn names_of_other_directories_are_refused() {
        let base = Url::parse("https://vendor.example/api").unwrap();
        for segment in ["", ".", ".."] {
            assert!(Request::new(Method::Get, &base, &["issues", segment]).is_err(), "{segment:?}");
        }
        let encoded = Request::new(Method::Get, &base, &["issues", "%2e%2e", "x"]).unwrap();
        assert_eq!(encoded.url.path(), "/api/issues/%252e%252e/x");
    }
}
