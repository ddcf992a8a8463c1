//! Access control: keys, and the host names and pages through which a browser may reach the server.

use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use axum::http::{HeaderMap, header};

use crate::error::Error;

/// The accepted keys, hashed.
#[derive(Clone, Debug, Default)]
pub struct ApiKeys(Vec<blake3::Hash>);

/// Result of checking a request's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asker {
    /// A valid key, identified without revealing it.
    Known(String),
    /// No key is required.
    Anybody,
    /// No key, or a wrong one.
    Denied,
}

impl Asker {
    /// The key's identification; empty if no key is required.
    pub fn key(&self) -> &str {
        match self {
            Asker::Known(key) => key,
            Asker::Anybody | Asker::Denied => "",
        }
    }
}

impl ApiKeys {
    /// No key is required.
    pub fn none() -> ApiKeys {
        ApiKeys::default()
    }

    /// Reads the keys of a file, one per line; lines that begin with `#` are comments.
    ///
    /// # Errors
    /// The file cannot be read, or has no key.
    pub fn read(file: &Path) -> Result<ApiKeys, Error> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| Error::Keys { file: file.into(), why: error.to_string() })?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let keys: Vec<blake3::Hash> = lines.map(|line| blake3::hash(line.as_bytes())).collect();
        if keys.is_empty() {
            return Err(Error::Keys { file: file.into(), why: "it has no key, one a line".into() });
        }
        Ok(ApiKeys(keys))
    }

    /// True if a key is required.
    pub fn asked(&self) -> bool {
        !self.0.is_empty()
    }

    /// Checks a request's key. Hashes are compared in constant time, each with all keys.
    pub fn asker(&self, headers: &HeaderMap) -> Asker {
        if !self.asked() {
            return Asker::Anybody;
        }
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let bearer = text(header::AUTHORIZATION.as_str()).and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        });
        let Some(key) = bearer.or_else(|| text("x-api-key")) else { return Asker::Denied };
        let hash = blake3::hash(key.as_bytes());
        // `blake3::Hash` compares in constant time.
        let found = self.0.iter().fold(false, |found, key| found | (*key == hash));
        if found { Asker::Known(hash.to_hex()[..16].to_string()) } else { Asker::Denied }
    }
}

/// The accepted host names of the server, against pages that resolve their name to this machine (DNS rebinding).
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Additional names (`serve.hosts`).
    pub hosts: Vec<String>,
    /// Origins of allowed pages (`serve.origins`).
    pub origins: Vec<String>,
    /// True if the server can be reached from other machines: any address is accepted as its name.
    pub open: bool,
    /// True if keys are required, which a foreign page does not have: any name is accepted.
    pub keyed: bool,
}

impl Names {
    /// Checks that a request is allowed; returns the origin if an allowed page of another origin sent it.
    ///
    /// # Errors
    /// A message with the name or page that is not allowed.
    pub fn check<'h>(
        &self,
        headers: &'h HeaderMap,
        authority: Option<&'h str>,
    ) -> Result<Option<&'h str>, String> {
        let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).or(authority);
        let Some(host) = host else { return Err("the request names no host".into()) };
        if !self.keyed && !self.knows(name_of(host)) {
            return Err(format!(
                "this server is not called {}; name it (serve.hosts), or ask for keys (--api-key-file)",
                name_of(host)
            ));
        }
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(None) };
        let origin = origin.to_str().unwrap_or("null");
        if self.origins.iter().any(|allowed| allowed.trim_end_matches('/') == origin) {
            return Ok(Some(origin));
        }
        let own = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if own.is_some_and(|own| own.eq_ignore_ascii_case(host)) {
            return Ok(None);
        }
        Err(format!("pages of {origin} may not ask this server; name them (serve.origins)"))
    }

    fn knows(&self, name: &str) -> bool {
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return self.open || address.is_loopback() || address == IpAddr::V6(Ipv6Addr::LOCALHOST);
        }
        name.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|host| host.eq_ignore_ascii_case(name))
    }
}

/// A host without its port. Anything other than a port after the name is kept, so that it does not match.
fn name_of(host: &str) -> &str {
    let (name, rest) = match host.find(']') {
        Some(end) if host.starts_with('[') => host.split_at(end + 1),
        _ => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
    if rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port) { name } else { host }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn keys_are_distinguished() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        assert!(ApiKeys::read(&file).is_err());
        std::fs::write(&file, "# none\n\n").unwrap();
        assert!(ApiKeys::read(&file).unwrap_err().to_string().contains("has no key"));
        std::fs::write(&file, "# ours\nsecret\nother \n").unwrap();
        let keys = ApiKeys::read(&file).unwrap();
        let of = |pairs: &[(&'static str, &'static str)]| keys.asker(&headers(pairs));
        assert_eq!(of(&[]), Asker::Denied);
        assert_eq!(of(&[("authorization", "Bearer secre")]), Asker::Denied);
        assert_eq!(of(&[("authorization", "Basic secret")]), Asker::Denied);
        let Asker::Known(name) = of(&[("authorization", "bearer secret")]) else { panic!() };
        assert!(!name.contains("secret"));
        assert_ne!(of(&[("x-api-key", "other")]), Asker::Known(name));
        assert_eq!(ApiKeys::none().asker(&headers(&[])), Asker::Anybody);
    }

    #[test]
    fn a_foreign_name_or_page_is_refused() {
        let names = Names {
            hosts: vec!["box.lan".into()],
            origins: vec!["https://chat.lan".into()],
            ..Names::default()
        };
        fn ok(names: &Names, pairs: &[(&'static str, &'static str)]) -> bool {
            names.check(&headers(pairs), None).is_ok()
        }
        for host in ["localhost:8000", "127.0.0.1:8000", "[::1]:8000", "box.lan", "LOCALHOST"] {
            assert!(ok(&names, &[("host", host)]), "{host}");
        }
        for host in [
            "evil.example:8000",
            "10.0.0.1:8000",
            "localhost.evil.example",
            "",
            "[::1].evil.example",
            "[::1].evil.example:8000",
            "[::1",
            "[127.0.0.1]evil",
            "localhost:80.evil.example",
            "localhost:80:evil.example",
            "]]::1[[",
        ] {
            assert!(!ok(&names, &[("host", host)]), "{host}");
        }
        assert!(!ok(&names, &[]));
        assert!(ok(&names, &[("host", "localhost:80"), ("origin", "http://localhost:80")]));
        assert!(ok(&names, &[("host", "localhost:80"), ("origin", "https://chat.lan")]));
        for origin in ["http://localhost:81", "null", "https://evil.example", "http://chat.lan"] {
            assert!(!ok(&names, &[("host", "localhost:80"), ("origin", origin)]), "{origin}");
        }
        let open = Names { open: true, ..Names::default() };
        assert!(ok(&open, &[("host", "10.0.0.1:8000")]) && !ok(&open, &[("host", "evil.example")]));
        let keyed = Names { keyed: true, ..Names::default() };
        assert!(ok(&keyed, &[("host", "models.svc")]));
    }
}
