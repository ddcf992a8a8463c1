//! Live display of a run: a bar and a line on a terminal, plain lines otherwise.

use std::io::IsTerminal;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fathom_app::figures::Figures;
use fathom_app::{Event, Events};
use fathom_base::human;
use fathom_base::metrics::events;
use fathom_report::objective::step_line;
use fathom_train::StageSettings;
use indicatif::{ProgressBar, ProgressStyle};

use crate::listen::Plain;
use crate::{choices, console};

/// Displays a run.
pub struct Run {
    live: Mutex<Live>,
    plain: Plain,
}

impl Run {
    /// Starts the display.
    pub fn new() -> Run {
        Run { live: Mutex::new(Live::new()), plain: Plain::default() }
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Events for Run {
    fn on(&self, event: Event) {
        match event {
            Event::Line(text) => self.live().say(&text),
            Event::Warning(text) => self.live().say(&format!("warning: {text}")),
            Event::Doing(text) => self.live().note(&text),
            Event::Progress { text, done, all } => self.live().progress(&text, [done, all]),
            Event::Stage { stage, settings } => self.live().begin(&stage, &settings),
            Event::Step { step, of_stage, stage_steps, later_s } => {
                self.live().step(&step, of_stage, stage_steps, later_s)
            }
            Event::Measured { when, figures, context_tokens } => {
                let figures = in_a_line(&figures, context_tokens);
                self.live().say(&format!("{}: {figures}", when.replace('_', " ")));
            }
            Event::Lesson(lesson) => self.live().say(&painted(&lesson, "the first lesson")),
            Event::Trained => self.live().finish(),
            event => self.plain.on(event),
        }
    }
}

/// A lesson with its trained text in colour. Control characters are replaced.
pub fn painted(lesson: &events::Lesson, which: &str) -> String {
    let plain = |text: &str| -> String {
        let shown =
            |c: char| if c.is_control() && c != '\n' && c != '\t' { char::REPLACEMENT_CHARACTER } else { c };
        text.chars().map(shown).collect()
    };
    let piece = |piece: &events::Piece| {
        let style = if piece.learned { console::LEARNED } else { console::CONTEXT };
        // Some terminals end a style at the end of a line.
        let lines: Vec<String> =
            plain(&piece.text).split('\n').map(|line| console::noted(style, line)).collect();
        lines.join("\n")
    };
    let text: String = lesson.pieces.iter().map(piece).collect();
    let cut =
        if lesson.cut == 0 { String::new() } else { format!(", {} cut off", human::grouped(lesson.cut)) };
    let (learned, all) = (human::grouped(lesson.supervised), human::grouped(lesson.tokens));
    format!("{which}, {learned} of {all} tokens learned (in green){cut}:\n{text}")
}

/// The live line.
struct Live {
    bar: Option<ProgressBar>,
    started: Instant,
    last: Option<Instant>,
    stage: String,
}

/// Least time between plain lines.
const QUIET: Duration = Duration::from_secs(5);

impl Live {
    /// Starts a live line on standard error.
    fn new() -> Live {
        let bar = (std::io::stderr().is_terminal() && !console::is_quiet()).then(|| {
            let style = ProgressStyle::with_template("{bar:24} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(1).with_style(style)
        });
        Live { bar, started: Instant::now(), last: None, stage: String::new() }
    }

    /// Prints a permanent line; with `--quiet` only warnings. The terminal may be gone while the run continues, or
    /// saves and stops.
    fn say(&self, text: &str) {
        if console::is_quiet() && !text.starts_with("warning:") {
            return;
        }
        let text = console::marked(text);
        match &self.bar {
            Some(bar) => bar.suspend(|| console::line(&text)),
            None => console::line(&format!(
                "[{:>6}] {text}",
                human::seconds(self.started.elapsed().as_secs_f64())
            )),
        }
    }

    /// Shows a line that the next one replaces; without a terminal, dropped unless the last one was long ago.
    /// Permanent with `--verbose`.
    fn note(&mut self, text: &str) {
        if console::is_verbose() {
            self.say(text);
        } else if let Some(bar) = &self.bar {
            bar.set_message(text.to_string());
            bar.tick();
        } else if self.last.is_none_or(|last| last.elapsed() > QUIET) {
            self.last = Some(Instant::now());
            self.say(text);
        }
    }

    /// Like [`Live::note`], with progress.
    fn progress(&mut self, text: &str, [done, all]: [u64; 2]) {
        if let Some(bar) = &self.bar {
            bar.set_length(all.max(1));
            bar.set_position(done.min(all));
        }
        self.note(text);
    }

    /// Announces a stage.
    fn begin(&mut self, stage: &events::Stage, settled: &StageSettings) {
        self.say(&format!(
            "stage {}: {} tokens, {}; planned peak {}",
            stage.name,
            human::grouped(stage.seq_len_tokens),
            stage.rope,
            human::bytes(settled.plan.usage.peak_live)
        ));
        if let Some(solution) = &settled.solution {
            self.say(&format!("places of activations by the plan:\n{}", choices::table(solution)));
        }
        self.stage = stage.name.clone();
        self.last = None;
        if let Some(bar) = &self.bar {
            bar.set_length(stage.steps.max(1));
            bar.set_position(0);
        }
    }

    /// Shows a finished step; `later_s` is the expected time of everything after its stage's steps.
    fn step(&mut self, step: &events::Step, stage_step: u64, stage_steps: Option<u64>, later_s: f64) {
        let left = |steps: u64| steps.saturating_sub(stage_step) as f64 * step.step_s + later_s;
        let eta = match stage_steps.map(left) {
            None => "  eta ...".to_string(),
            Some(left_s) if left_s > 0.0 => format!("  eta {}", human::seconds(left_s)),
            // Nothing is left after the last step.
            Some(_) => String::new(),
        };
        let of = stage_steps.map_or(String::new(), |steps| format!("/{steps}"));
        let text = format!(
            "{} {stage_step}{of}  {}  {} tokens/s  {:.3} TFLOP/s  {}{eta}",
            self.stage,
            step_line(step),
            human::grouped(step.tokens_per_s as u64),
            step.model_tflops,
            human::bytes(step.pool_peak_bytes),
        );
        if let (Some(bar), Some(steps)) = (&self.bar, stage_steps) {
            bar.set_length(steps);
            bar.set_position(stage_step);
        }
        if self.bar.is_none() && stage_step <= 3 {
            self.last = None;
        }
        self.note(&text);
    }

    /// Removes the bar.
    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn in_a_line(figures: &Figures, short: usize) -> String {
    let mut parts = Vec::new();
    // Metrics of lessons; bits per byte of their text would compare with nothing.
    let of_text = figures.answers.is_none();
    if let Some(bits) = figures.bits.as_ref().filter(|_| of_text) {
        parts.push(format!(
            "{:.3} bits per byte in windows of {} tokens (gzip {:.3})",
            bits.bits_per_byte,
            human::grouped(bits.context_tokens as u64),
            bits.gzip_bits_per_byte
        ));
    }
    if let Some(position) = figures.position.as_ref().filter(|_| of_text) {
        let ends = position.buckets.iter().filter(|bucket| bucket.tokens > 0);
        let all: Vec<String> = ends.map(|bucket| format!("{:.2}", bucket.loss)).collect();
        parts.push(format!("loss by position {}", all.join(" ")));
    }
    if let Some(answers) = &figures.answers {
        parts.push(format!(
            "held-out lessons: loss {:.3}, {} of tokens, {:.3} bits per byte",
            answers.loss,
            human::percent(answers.token_accuracy),
            answers.bits_per_byte
        ));
    }
    if let Some(worth) = &figures.context {
        let [full, cut] = [worth.full_tokens, worth.cut_tokens].map(|tokens| human::grouped(tokens as u64));
        parts.push(format!(
            "{:+.3} ± {:.3} nats gained by {full} tokens of context in the place of {cut}",
            worth.cut_loss - worth.full_loss,
            worth.standard_error
        ));
    }
    if let Some(scores) = &figures.ruler {
        let means =
            scores.means().map(|(tokens, mean)| format!("{mean:.1} at {}", human::grouped(tokens as u64)));
        parts.push(format!("RULER {}", means.collect::<Vec<_>>().join(", ")));
    }
    let needles = figures.needles.iter();
    for (longest, within) in
        needles.filter_map(|needles| Some((needles.lengths.last()?, needles.accuracy(short))))
    {
        let at = format!(
            "needle {} at {} tokens",
            human::percent(longest.accuracy()),
            human::grouped(longest.tokens as u64)
        );
        let within = within.filter(|_| longest.tokens > short);
        let within = within
            .map(|share| format!(", {} within {}", human::percent(share), human::grouped(short as u64)));
        parts.push(at + &within.unwrap_or_default());
    }
    if parts.is_empty() {
        return "no held-out document to measure on; give more text, or raise data.held_out_share".into();
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use indicatif::ProgressDrawTarget;

    use super::*;

    #[test]
    fn the_bar_shows_work_before_the_first_step() {
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::hidden());
        let mut live = Live { bar: Some(bar.clone()), ..Live::new() };
        for (done, all, expected) in
            [(0, 80, (0, 80)), (60, 80, (60, 80)), (90, 80, (80, 80)), (0, 0, (0, 1))]
        {
            live.progress("reading text", [done, all]);
            assert_eq!((bar.position(), bar.length().unwrap()), expected);
        }
    }

    #[test]
    fn the_time_left_is_that_of_the_run() {
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::hidden());
        let mut live = Live { bar: Some(bar.clone()), ..Live::new() };
        let step = events::Step { step_s: 2.0, ..events::Step::default() };
        live.step(&step, 10, Some(40), 240.0);
        assert!(bar.message().ends_with(&format!("eta {}", human::seconds(300.0))), "{}", bar.message());
        live.step(&step, 40, Some(40), 0.0);
        assert!(!bar.message().contains("eta"), "{}", bar.message());
        live.step(&step, 10, None, 240.0);
        assert!(bar.message().ends_with("eta ..."), "{}", bar.message());
    }
}
