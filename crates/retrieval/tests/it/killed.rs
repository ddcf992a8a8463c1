//! Stores whose writer is killed, and stores over TLS: parts of these tests run in processes of their own.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use fathom_retrieval::Mode;

use crate::bed::Bed;
use crate::servers::{postgres, postgres_over_tls, qdrant};
use crate::stores::{LETTERS, documents, hits, write};

/// Environment of [`child`]: the folder of the documents' parent, and the address of the store.
const FOLDER: &str = "FATHOM_TEST_FOLDER";
const ADDRESS: &str = "FATHOM_TEST_ADDRESS";

/// Writes an index in a process of its own, and says how it ended.
#[test]
fn child() {
    let (Ok(folder), Ok(address)) = (std::env::var(FOLDER), std::env::var(ADDRESS)) else { return };
    let folder = Path::new(&folder);
    let written =
        crate::stores::write_in(&folder.join("docs"), &folder.join("stored"), Some(&address), &LETTERS);
    println!("ended: {:?}", written.map(|report| report.stored).map_err(|error| error.to_string()));
}

fn spawn(bed: &Bed, address: &str, authorities: Option<&Path>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["killed::child", "--exact", "--nocapture"]);
    command.env(FOLDER, bed.folder.path()).env(ADDRESS, address).stdout(Stdio::piped());
    authorities.into_iter().for_each(|file| _ = command.env("SSL_CERT_FILE", file));
    command.spawn().unwrap()
}

fn ended(child: Child) -> String {
    let Output { stdout, .. } = child.wait_with_output().unwrap();
    let text = String::from_utf8(stdout).unwrap();
    text.lines().find_map(|line| line.split_once("ended: ").map(|it| it.1.to_string())).unwrap_or_default()
}

/// Changes some of the documents.
fn change(bed: &Bed, round: u32) {
    for at in 0..12 {
        let name = format!("c/f{}.txt", (round * 5 + at) % 30);
        bed.put(&name, format!("file of round {round} says {}", at * 17).as_bytes());
    }
}

fn survives_kills(address: &str) {
    let bed = documents();
    let [folder, stored] = ["folder", "stored"].map(|name| bed.folder.path().join(name));
    write(&bed, &stored, Some(address), &LETTERS).unwrap();
    change(&bed, 0);
    let began = Instant::now();
    assert!(ended(spawn(&bed, address, None)).starts_with("Ok"));
    let took = began.elapsed();
    let kills = std::env::var("FATHOM_TEST_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(3);
    for kill in 1..=kills {
        change(&bed, kill);
        let mut child = spawn(&bed, address, None);
        std::thread::sleep(took.mul_f64(f64::from(kill) / f64::from(kills + 1)).min(Duration::from_secs(5)));
        // The process may have ended.
        _ = child.kill();
        child.wait().unwrap();
        // Every passage of the manifest that is there is found, whichever it is.
        assert_eq!(hits(&stored, "the red thing 31", Mode::Dense, &[]).unwrap().len(), 7, "kill {kill}");
        write(&bed, &stored, None, &LETTERS).unwrap();
        // The folder that a new index would be, and a store that needs nothing.
        assert_eq!(write(&bed, &stored, None, &LETTERS).unwrap().stored, 0, "kill {kill}");
        _ = fs::remove_dir_all(&folder);
        write(&bed, &folder, None, &LETTERS).unwrap();
        for text in ["the red thing 31", &format!("file of round {kill} says 34")] {
            let [own, there] = [&folder, &stored].map(|out| hits(out, text, Mode::Dense, &[]).unwrap());
            // Hits of equal scores may come in another order.
            let scores = |hits: &[fathom_retrieval::Hit]| hits.iter().map(|it| it.score).collect::<Vec<_>>();
            let pairs = scores(&own).into_iter().zip(scores(&there));
            assert!(own.len() == 7 && there.len() == 7, "kill {kill}");
            pairs.for_each(|(own, there)| assert!((own - there).abs() < 1e-6, "kill {kill}: {own} {there}"));
        }
    }
}

#[test]
fn pgvector_survives_the_kill_of_its_writer() {
    let Some(server) = postgres() else { return };
    survives_kills(&format!("{}?table=killed", server.address));
    let mut client = ::postgres::Client::connect(&server.address, ::postgres::NoTls).unwrap();
    let count =
        |sql: &str, client: &mut ::postgres::Client| client.query_one(sql, &[]).unwrap().get::<_, i64>(0);
    let points = count("SELECT count(*) FROM killed", &mut client);
    // Nothing of earlier rounds is left: 300 rows, two sections, 30 files.
    assert_eq!(points, 332);
}

#[test]
fn qdrant_survives_the_kill_of_its_writer() {
    let Some(server) = qdrant() else { return };
    survives_kills(&format!("{}/killed", server.address));
}

#[test]
fn postgresql_is_reached_over_tls_if_an_authority_vouches_for_it() {
    let Some((server, authorities)) = postgres_over_tls() else { return };
    let bed = documents();
    let address = format!("{}?sslmode=require", server.address);
    // With the server's authority it answers, and a PostgreSQL without pgvector says so.
    let said = ended(spawn(&bed, &address, Some(&authorities.join("ca.pem"))));
    assert!(said.starts_with("Ok") || said.contains("lacks pgvector"), "{said}");
    let said = ended(spawn(&bed, &address, Some(&authorities.join("other.pem"))));
    assert!(said.contains("cannot be reached") && said.contains("certificate"), "{said}");
}
