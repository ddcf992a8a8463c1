//! The view, drawn on a terminal in memory.

use std::fs;

use fathom_report::runs::glance;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;

use super::*;

const LOG: &str = r#"{"event":"run","name":"a run","recipe":[]}
{"event":"model","family":"llama","params":1234567}
{"event":"stage","name":"warm","index":0,"seq_len_tokens":2048,"steps":40}
{"event":"memory_timeline","stage":"warm","categories":["params","activations"],"live_bytes":[[1048576,1048576,1048576],[0,3145728,1048576]]}
{"event":"ranks","step":20,"busy_s":[1.0,2.0],"relative":[1.0,0.5]}
{"event":"recovery","step":3,"why":"x"}
"#;

fn picture(width: u16, height: u16, log: &str, view: View) -> (String, Buffer) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("metrics.jsonl"), log).unwrap();
    let mut run = glance(folder.path()).unwrap();
    while run.follow(1 << 20).unwrap() {}
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, "my-run", &run, view)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let lines = buffer.content.chunks(usize::from(width));
    let text: Vec<String> = lines.map(|line| line.iter().map(|cell| cell.symbol()).collect()).collect();
    (text.join("\n"), buffer)
}

fn steps() -> String {
    let step = |at: u64| {
        format!(
            "{{\"event\":\"step\",\"step\":{at},\"tokens_total\":{},\"loss\":{},\"tokens_per_s\":1500.0,\"step_s\":2.0,\"time_s\":{},\"pool_peak_bytes\":4194304}}\n",
            at * 4096,
            5.0 + 2.0 / at as f64,
            at * 2
        )
    };
    (1..=20).map(step).collect()
}

#[test]
fn a_run_is_drawn_with_its_loss_rate_memory_and_ranks() {
    let (text, buffer) = picture(120, 36, &(LOG.to_string() + &steps()), View::default());
    for part in [
        "my-run",
        "running",
        "warm · 2k",
        "1.23 M parameters",
        "loss 5.1000",
        "step 20 of 40, 40.0 s",
        "40.0 s left",
    ] {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }
    for part in ["tokens per second 1500", "peak 4.00 MiB", "activations", "rank 1", "1 recovery", "q quits"]
    {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }
    let coloured = |colour: Color| {
        buffer.content.iter().filter(|cell| cell.fg == colour && cell.symbol() == "█").count()
    };
    assert!(coloured(Color::LightBlue) > coloured(Color::Blue) / 4, "activations are in the map");
}

#[test]
fn narrow_terminals_tiny_ones_and_empty_logs_are_drawn_too() {
    let whole = LOG.to_string() + &steps();
    let (text, _) = picture(60, 24, &whole, View { along: Along::Tokens, late: true });
    assert!(text.contains("loss") && text.contains("memory along a step"), "{text}");
    for (width, height) in [(1, 1), (10, 3), (300, 5), (20, 80)] {
        picture(width, height, &whole, View { along: Along::Time, late: false });
    }
    let (text, _) = picture(100, 30, "", View::default());
    assert!(text.contains("the log has no step yet") && text.contains("not measured yet"), "{text}");
}

#[test]
fn curves_run_along_steps_tokens_and_time_in_turns() {
    let mut view = View::default();
    let seen: Vec<Along> = (0..4)
        .map(|_| {
            let along = view.along;
            view.turn();
            along
        })
        .collect();
    assert_eq!(seen, [Along::Step, Along::Tokens, Along::Time, Along::Step]);
}
