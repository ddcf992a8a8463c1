//! Single-threaded speed of redaction: `pii_bench [MB]` measures generated English text, the same with numbers in
//! every line, and with personal data in every line.

#[path = "shared/english.rs"]
mod english;

use fathom_prose::pii::{Pii, PiiOptions};
use std::time::Instant;

/// Numbers as found in reports and logs.
const FIGURES: [&str; 6] = [
    "In 2019 it rose by 3.5 % to 1,234,567 in 12 of 48 cases, from 1998 to 2004.",
    "12 34 56 78 90 11 22 33 44 55 66 77",
    "2024-05-06 12:30:45.678 INFO 0x1f2e 4096 bytes in 17 ms, id 98765432",
    "Table 3: Alpha 12, Beta 14, Gamma 15; see page 208 and Section 4.2.1 of Version 10.4.",
    "ISBN 978-3-16-148410-0, 300 x 200 mm, 12.99 or 3 for 30",
    "let a = [1, 2, 3, 4, 5, 6, 7, 8]; x += 5551234567;",
];
const PERSONAL: [&str; 6] = [
    "Write to jane.roe@example.com or ring (212) 555-0142 before 10 am.",
    "Send it to 742 Evergreen Terrace, Springfield, IL 62704 by Friday.",
    "Card 4111 1111 1111 1111 12/26, account DE89 3704 0044 0532 0130 00.",
    "Login from 192.0.2.17 and 2001:db8::8a2e:370:7334, user James Smith.",
    "Tel 020 7946 0958, fax +49 30 12345678, SSN 123-45-6789",
    "10 Downing Street, London SW1A 2AA, since 1735; Dr. Jane Doe said so.",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let megabytes: usize = std::env::args().nth(1).map_or(Ok(16), |a| a.parse())?;
    let plain = english::English::new(1).documents(megabytes << 20);
    let pii = Pii::new(&PiiOptions::default())?;
    for (name, lines) in [("plain", None), ("figures", Some(&FIGURES)), ("personal", Some(&PERSONAL))] {
        let mut next = 0;
        let with = |text: &String| match lines {
            None => text.clone(),
            Some(lines) => {
                let more = |line: &str| {
                    next += 1;
                    format!("{line}\n{}\n", lines[next % lines.len()])
                };
                text.lines().map(more).collect()
            }
        };
        let documents: Vec<String> = plain.iter().map(with).collect();
        measure(name, &documents, &pii);
    }
    Ok(())
}

fn measure(name: &str, documents: &[String], pii: &Pii) {
    let bytes: usize = documents.iter().map(String::len).sum();
    let (mut best, mut found) = (f64::INFINITY, 0);
    for _ in 0..5 {
        let start = Instant::now();
        found = documents.iter().map(|text| pii.apply(text).1).sum::<usize>();
        best = best.min(start.elapsed().as_secs_f64());
    }
    let row = serde_json::json!({
        "bench": "curate", "stage": format!("pii_{name}"), "mb_per_s": bytes as f64 / 1e6 / best,
        "threads": 1, "documents": documents.len(), "found": found,
    });
    println!("{row}");
}
