//! Servers of vectors for tests, as processes: PostgreSQL with pgvector, and Qdrant's interface. A test without its server
//! is skipped, and says so.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A process that ends with its owner.
pub struct Server {
    child: Child,
    pub address: String,
    _folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Says what is skipped, past the test harness, which keeps the output of tests that pass.
fn skipped(what: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr().lock(), "SKIPPED: {what}");
}

/// The programs of a PostgreSQL of Debian that has this file.
fn debians(file: &str) -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    versions.map(|it| it.path()).find(|it| it.join(file).exists()).map(|it| it.join("bin"))
}

/// The programs of a PostgreSQL that has pgvector: those that `FATHOM_POSTGRES` names, or of Debian.
fn programs() -> Option<PathBuf> {
    std::env::var_os("FATHOM_POSTGRES").map(PathBuf::from).or_else(|| debians("lib/vector.so"))
}

/// PostgreSQL with pgvector on a port of this machine, run by an ordinary user.
pub fn postgres() -> Option<Server> {
    let Some(programs) = programs() else {
        skipped(
            "no PostgreSQL with pgvector; apt install postgresql-17-pgvector, or name its programs in FATHOM_POSTGRES",
        );
        return None;
    };
    Some(started(&programs, tempfile::tempdir().unwrap(), &[]))
}

/// PostgreSQL of Debian over TLS, with a folder of two authorities, of which `ca.pem` vouches for it.
pub fn postgres_over_tls() -> Option<(Server, PathBuf)> {
    let folder = tempfile::tempdir().unwrap();
    let Some(programs) = debians("bin/postgres").filter(|_| certificates(folder.path())) else {
        skipped("no PostgreSQL of Debian, or no openssl; apt install postgresql openssl");
        return None;
    };
    let path = folder.path().to_path_buf();
    let file = |name: &str| path.join(name).to_str().unwrap().to_string();
    let (certificate, key) = (file("cert.pem"), file("key.pem"));
    let options = ["ssl=on".into(), format!("ssl_cert_file={certificate}"), format!("ssl_key_file={key}")];
    Some((started(&programs, folder, &options), path))
}

/// Writes two authorities, and a certificate of the first for 127.0.0.1.
fn certificates(folder: &Path) -> bool {
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout"];
    let run = |arguments: &[&str]| {
        let done = Command::new("openssl").args(arguments).current_dir(folder).output();
        done.is_ok_and(|done| done.status.success())
    };
    let authority = |name: &str| {
        let (file, out, subject) = (format!("{name}.key"), format!("{name}.pem"), format!("/CN={name}"));
        let rest = [file.as_str(), "-out", &out, "-subj", &subject, "-days", "2"];
        run(&[&["req", "-x509"], &key[..], &rest].concat())
    };
    std::fs::write(folder.join("names"), "subjectAltName=IP:127.0.0.1,DNS:localhost").unwrap();
    authority("ca")
        && authority("other")
        && run(&[&["req"], &key[..], &["key.pem", "-out", "request.pem", "-subj", "/CN=localhost"]].concat())
        && run(&[
            "x509",
            "-req",
            "-in",
            "request.pem",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            "names",
            "-out",
            "cert.pem",
        ])
}

/// Starts PostgreSQL with further settings, as an ordinary user.
fn started(programs: &Path, folder: tempfile::TempDir, settings: &[String]) -> Server {
    let data = folder.path().join("data");
    let is_root =
        std::fs::metadata(folder.path()).map(|it| std::os::unix::fs::MetadataExt::uid(&it) == 0).unwrap();
    let command = |name: &str| {
        let mut command = Command::new(programs.join(name));
        command.current_dir("/").env("LC_ALL", "C");
        if is_root {
            // PostgreSQL refuses to run as root; 65534 is the user without files.
            command.gid(65534).uid(65534);
        }
        command
    };
    if is_root {
        std::os::unix::fs::chown(folder.path(), Some(65534), Some(65534)).unwrap();
        for entry in std::fs::read_dir(folder.path()).unwrap().flatten() {
            std::os::unix::fs::chown(entry.path(), Some(65534), Some(65534)).unwrap();
        }
    }
    let made =
        command("initdb").arg("-D").arg(&data).args(["-U", "fathom", "--auth=trust", "-N"]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = command("postgres");
    server.arg("-D").arg(&data).args([
        "-c",
        "listen_addresses=127.0.0.1",
        "-c",
        "unix_socket_directories=",
        "-c",
        "fsync=off",
    ]);
    settings.iter().for_each(|setting| _ = server.args(["-c", setting]));
    let child =
        server.arg("-p").arg(port.to_string()).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let server =
        Server { child, address: format!("postgres://fathom@127.0.0.1:{port}/postgres"), _folder: folder };
    let end = Instant::now() + Duration::from_secs(30);
    while ::postgres::Client::connect(&server.address, ::postgres::NoTls).is_err() {
        assert!(Instant::now() < end, "PostgreSQL does not start");
        std::thread::sleep(Duration::from_millis(50));
    }
    server
}

/// A Qdrant that `FATHOM_QDRANT` names (`qdrant://HOST:PORT`), or its Python client behind its interface.
pub fn qdrant() -> Option<Server> {
    let folder = tempfile::tempdir().unwrap();
    if let Ok(address) = std::env::var("FATHOM_QDRANT") {
        let child = Command::new("true").spawn().unwrap();
        return Some(Server { child, address, _folder: folder });
    }
    let python = std::env::var("FATHOM_PYTHON_QDRANT").unwrap_or_else(|_| "python3".into());
    let has = Command::new(&python).args(["-c", "import qdrant_client"]).stderr(Stdio::null()).status();
    if !has.is_ok_and(|status| status.success()) {
        skipped(
            "no Qdrant; name one in FATHOM_QDRANT, or a Python with qdrant-client in FATHOM_PYTHON_QDRANT",
        );
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle/qdrant_server.py");
    let mut child =
        Command::new(&python).arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut port).unwrap();
    Some(Server { child, address: format!("qdrant://127.0.0.1:{}", port.trim()), _folder: folder })
}
