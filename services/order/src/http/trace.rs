//! The edge of every request: its trace id, its metrics, and the text of its problem.

use axum::{
    extract::{MatchedPath, Request},
    http::{HeaderMap, HeaderName, HeaderValue},
    middleware::Next,
    response::Response,
};

use super::problem::Problem;

/// The header of the W3C trace context.
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The caller's `traceparent`, when it is one: `00-TRACE-SPAN-FLAGS` in lower-case hex, ids not 0.
pub(crate) fn traceparent(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(TRACEPARENT)?.to_str().ok()?;
    let mut parts = text.split('-');
    let version = parts.next()?;
    let (trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?);
    let hex = |part: &str, length: usize| {
        part.len() == length
            && part
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let some = |part: &str| part.bytes().any(|b| b != b'0');
    let sound = version == "00"
        && parts.next().is_none()
        && hex(trace, 32)
        && hex(span, 16)
        && hex(flags, 2)
        && some(trace)
        && some(span);
    sound.then_some(text)
}

/// Carries the trace through, counts the answer, and writes a problem's body.
pub(crate) async fn edge(request: Request, next: Next) -> Response {
    let given = traceparent(request.headers()).map(str::to_owned);
    let route = request.extensions().get::<MatchedPath>().cloned();
    let mut response = next.run(request).await;
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        let traceparent = given.unwrap_or_else(generate);
        let trace_id = traceparent.get(3..35).unwrap_or_default();
        let mut rendered = problem.render(trace_id);
        if let Ok(value) = HeaderValue::from_str(&traceparent) {
            rendered.headers_mut().insert(TRACEPARENT, value);
        }
        // What a layer inside has added (Allow) stays.
        for (name, value) in response.headers() {
            rendered
                .headers_mut()
                .entry(name)
                .or_insert_with(|| value.clone());
        }
        rendered
            .headers_mut()
            .remove(axum::http::header::CONTENT_LENGTH);
        response = rendered;
    } else if let Some(value) = given.and_then(|text| HeaderValue::from_str(&text).ok()) {
        response.headers_mut().insert(TRACEPARENT, value);
    }
    count(route.as_ref(), &response);
    response
}

fn count(route: Option<&MatchedPath>, response: &Response) {
    let route = route.map_or("unmatched", MatchedPath::as_str).to_owned();
    let status = response.status().as_u16().to_string();
    metrics::counter!("http_requests_total", "route" => route, "status" => status).increment(1);
}

fn generate() -> String {
    let trace: u128 = rand::random_range(1..=u128::MAX);
    let span: u64 = rand::random_range(1..=u64::MAX);
    format!("00-{trace:032x}-{span:016x}-00")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sound_traceparent_is_carried() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(TRACEPARENT, HeaderValue::from_str(text).unwrap());
            traceparent(&headers).map(str::to_owned)
        };
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(read(good).as_deref(), Some(good));
        for bad in [
            "",
            "00",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
        let made = generate();
        assert_eq!(read(&made).as_deref(), Some(made.as_str()));
    }
}
