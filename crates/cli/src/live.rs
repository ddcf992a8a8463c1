//! What a run shows while it runs: a bar and a line on a terminal, plain lines otherwise.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use fathom_base::human;
use fathom_base::metrics::events;
use indicatif::{ProgressBar, ProgressStyle};

use crate::console;

/// The live line.
pub struct Live {
    bar: Option<ProgressBar>,
    begun: Instant,
    last: Option<Instant>,
    stage: String,
}

/// Time between plain lines.
const QUIET: Duration = Duration::from_secs(5);

impl Live {
    /// A live line on standard error.
    pub fn new() -> Live {
        let bar = (std::io::stderr().is_terminal() && !console::is_quiet()).then(|| {
            let style = ProgressStyle::with_template("{bar:24} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(1).with_style(style)
        });
        Live { bar, begun: Instant::now(), last: None, stage: String::new() }
    }

    /// A line that stays; with `--quiet` only a warning is one. The terminal may be gone, and the run goes on, or saves and stops.
    pub fn say(&self, text: &str) {
        if console::is_quiet() && !text.starts_with("warning:") {
            return;
        }
        let text = console::marked(text);
        match &self.bar {
            Some(bar) => bar.suspend(|| console::line(&text)),
            None => {
                console::line(&format!("[{:>6}] {text}", human::seconds(self.begun.elapsed().as_secs_f64())))
            }
        }
    }

    /// A line that the next one replaces, on a terminal; dropped otherwise unless the last was long ago. With `--verbose` it stays.
    pub fn note(&mut self, text: &str) {
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

    /// As [`Live::note`], of work of which a part is done.
    pub fn progress(&mut self, text: &str, [done, all]: [u64; 2]) {
        if let Some(bar) = &self.bar {
            bar.set_length(all.max(1));
            bar.set_position(done.min(all));
        }
        self.note(text);
    }

    /// A stage begins.
    pub fn stage(&mut self, stage: &events::Stage) {
        self.stage = stage.name.clone();
        self.last = None;
        if let Some(bar) = &self.bar {
            bar.set_length(stage.steps.max(1));
            bar.set_position(0);
        }
    }

    /// A step ended; `later_s` is the expected time of everything after the steps of its stage.
    pub fn step(&mut self, step: &events::Step, stage_step: u64, stage_steps: Option<u64>, later_s: f64) {
        let left = |steps: u64| steps.saturating_sub(stage_step) as f64 * step.step_s + later_s;
        let eta = stage_steps.map_or("...".to_string(), |steps| human::seconds(left(steps)));
        let of = stage_steps.map_or(String::new(), |steps| format!("/{steps}"));
        let text = format!(
            "{} {stage_step}{of}  loss {:.3}  {} tokens/s  {:.3} TFLOP/s  {}  eta {eta}",
            self.stage,
            step.loss,
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

    /// The bar goes.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
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
        live.step(&step, 10, None, 240.0);
        assert!(bar.message().ends_with("eta ..."), "{}", bar.message());
    }
}
