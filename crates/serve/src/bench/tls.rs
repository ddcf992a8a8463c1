//! TLS to a server, whose certificate has to lead to an authority that this machine trusts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::error::Error;

/// Files in which systems keep the certificates of authorities: Debian, Fedora, Alpine, SUSE.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

/// The file of authorities that `SSL_CERT_FILE` names, or that of the system.
fn bundle() -> Option<PathBuf> {
    let named = std::env::var_os("SSL_CERT_FILE").filter(|it| !it.is_empty()).map(PathBuf::from);
    named.or_else(|| BUNDLES.iter().map(PathBuf::from).find(|path| path.is_file()))
}

/// Opens TLS over a connection to `address`, a host with its port. `authorities` is a file of certificates in PEM; by
/// default the system's.
///
/// # Errors
/// No authorities; a certificate of none of them, or of another name.
pub(super) async fn connect(
    stream: TcpStream,
    address: &str,
    authorities: Option<&Path>,
) -> Result<TlsStream<TcpStream>, Error> {
    let Some(file) = authorities.map(Path::to_path_buf).or_else(bundle) else {
        let why = "this system has no file of trusted authorities; name one in SSL_CERT_FILE";
        return Err(Error::Refused(why.into()));
    };
    let refuse = |why: &dyn std::fmt::Display| Error::Refused(format!("{}: {why}", file.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(&file).map_err(|error| refuse(&error))? {
        // A bundle may have certificates that are too old to be read.
        _ = certificate.map(|certificate| roots.add(certificate));
    }
    if roots.is_empty() {
        return Err(refuse(&"has no certificates in PEM"));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| refuse(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    let unreachable = |why: &dyn std::fmt::Display| Error::Refused(format!("cannot reach {address}: {why}"));
    let name = ServerName::try_from(host.to_string()).map_err(|error| unreachable(&error))?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|error| unreachable(&error))
}
