"""Runs: started from a recipe, watched by iterating, by callbacks, and by their log."""

from __future__ import annotations

import collections
import json
import os
import sys
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fathom import _edge, _fathom, _functions, _recipe, _rows
from fathom._table import Table
from fathom.errors import Error, RewardError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from fathom._functions import Caller
    from fathom._model import Model
    from fathom._recipe import Recipe

# Events that wait for a reader; the oldest steps are dropped, and the log has all.
_MOST = 10_000
# Events of the log that callbacks hear, and their methods.
_LOGGED = {"rollout": "on_rollout", "checkpoint": "on_checkpoint"}


class Happening(SimpleNamespace):
    """An event of a run, an owned copy: its attributes are the fields of the log's line."""

    def to_dict(self) -> dict[str, Any]:
        """The fields."""
        return dict(vars(self))


class Step(Happening):
    """A completed step."""

    step: int
    loss: float
    lr: float
    grad_norm: float
    tokens_per_s: float
    run: Run


class Control:
    """What a callback can do to its run. It acts at the next boundary of steps, where SIGTERM does."""

    __slots__ = ("run",)

    def __init__(self, run: Run) -> None:
        self.run = run

    def stop(self) -> None:
        """Saves a checkpoint and stops; the same call resumes."""
        self.run.stop()

    def save(self) -> None:
        """Saves a checkpoint after the step in progress; the run goes on."""
        self.run.save()


class Callback:
    """Observes a run, on a thread of its own. Override what is of use."""

    def on_stage(self, stage: Happening, control: Control) -> None:
        """A stage begins, or goes on after a resume."""

    def on_step(self, step: Step, control: Control) -> None:
        """A step was completed."""

    def on_rollout(self, rollout: Happening, control: Control) -> None:
        """Answers of a policy and their rewards."""

    def on_measured(self, found: Happening, control: Control) -> None:
        """The model was measured."""

    def on_checkpoint(self, checkpoint: Happening, control: Control) -> None:
        """A checkpoint was published."""

    def on_end(self, run: Run, control: Control) -> None:
        """The run ended: `run.outcome` says how."""


class _Log:
    """New events of a run's log. The core may replace the file by a shorter one: when a run resumes, it drops what
    happened after its checkpoint."""

    def __init__(self, path: str, names: Collection[str]) -> None:
        self.path = path
        self._names = [f'"{name}"'.encode() for name in names]
        self._file, self._at = 0, 0
        # Lines that were passed on, or were there before.
        self._known: set[bytes] = set()
        self.new()

    def new(self) -> list[dict[str, Any]]:
        """The events of these names that were written since the last call."""
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._file or status.st_size < self._at:
                    self._file, self._at = status.st_ino, 0
                file.seek(self._at)
                text = file.read()
        except OSError:
            return []
        end = text.rfind(b"\n") + 1
        self._at += end
        lines = [line for line in text[:end].splitlines() if any(name in line for name in self._names)]
        found = [line for line in lines if line not in self._known]
        self._known.update(found)
        return [json.loads(line) for line in found]


def _events(path: str) -> list[dict[str, Any]]:
    """All events of a log, without a last line that is not whole."""
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError:
        return []
    return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines() if line.strip()]


class Run:
    """A run of a recipe, here or, opened by its folder, of any process."""

    __slots__ = (
        "__weakref__",
        "_callers",
        "_callbacks",
        "_done",
        "_ended",
        "_events",
        "_failed",
        "_inner",
        "_result",
        "_stage",
        "_thread",
        "_waiting",
        "folder",
    )

    def __init__(self, folder: str) -> None:
        self.folder = folder
        """Its folder, with the log, checkpoints, the model and the report."""
        self._inner: Any = None
        self._result: dict[str, Any] | None = None
        self._failed: BaseException | None = None
        self._callers: list[Caller] = []
        self._callbacks: list[Callback] = []
        self._events: collections.deque[Step] = collections.deque(maxlen=_MOST)
        self._waiting = threading.Condition()
        self._ended = False
        self._done = threading.Lock()
        self._stage: dict[str, Any] = {}
        self._thread: threading.Thread | None = None

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Run:
        """A run by its folder."""
        run = cls(os.fspath(folder))
        if not os.path.exists(run._log):
            raise Error(f"{run.folder}: no run (it has no metrics.jsonl)")
        run._ended = True
        return run

    @property
    def _log(self) -> str:
        return os.path.join(self.folder, "metrics.jsonl")

    # Watching.

    def _begin(self, channel: Any) -> None:
        log, control = _Log(self._log, _LOGGED), Control(self)
        shown = Progress()

        def work() -> None:
            try:
                while (events := channel.next(0.25)) is not None:
                    for text in events:
                        self._heard(*_edge.event(json.loads(text)), control, shown)
                    self._logged(log.new(), control)
                self._logged(log.new(), control)
            finally:
                shown.end()
                with self._waiting:
                    self._ended = True
                    self._waiting.notify_all()

        self._thread = threading.Thread(target=work, name="fathom run", daemon=True)
        self._thread.start()

    def _tell(self, name: str, of: Any, control: Control) -> None:
        for callback in self._callbacks:
            try:
                getattr(callback, name)(of, control)
            except BaseException as error:
                self._failed = self._failed or error
                self.stop()

    def _heard(self, kind: str, of: Any, control: Control, shown: Progress) -> None:
        if kind == "step":
            step = Step(**of["step"], of_stage=of["of_stage"], stage_steps=of["stage_steps"])
            step.run = self
            with self._waiting:
                self._events.append(step)
                self._waiting.notify_all()
            self._tell("on_step", step, control)
            shown.step(step, of["later_s"])
        elif kind == "stage":
            self._stage = of["stage"]
            self._tell("on_stage", Happening(**of["stage"]), control)
        elif kind == "measured":
            found = dict(of)
            figures = found.pop("figures") or {}
            bits = figures.get("bits") or {}
            position = figures.get("position") or {}
            found.update(figures=figures, bits_per_byte=bits.get("bits_per_byte"), loss=_mean_loss(bits, position))
            self._tell("on_measured", Happening(**found), control)
        elif kind == "warning":
            import warnings

            warnings.warn(str(of), stacklevel=2)
        elif kind in ("line", "doing", "note"):
            shown.line(str(of), kind)

    def _logged(self, events: Iterable[dict[str, Any]], control: Control) -> None:
        for event in events:
            name = _LOGGED.get(event.get("event", ""))
            if name is not None and self._callbacks:
                event.pop("event")
                self._tell(name, Happening(**event), control)

    def __iter__(self) -> Iterator[Step]:
        """Steps as they are made, up to the end of the run."""
        while True:
            with self._waiting:
                while not self._events and not self._ended:
                    self._waiting.wait(0.1)
                if not self._events:
                    break
                step = self._events.popleft()
            yield step
        if self._inner is not None:
            self.wait()

    # The end.

    @property
    def is_running(self) -> bool:
        """Whether it goes on."""
        if not self._over():
            self._settle(0.0)
        return not self._over()

    def stop(self) -> None:
        """Saves a checkpoint and stops at the next boundary of steps; the same call resumes."""
        if self._inner is not None:
            self._inner.stop()

    def save(self) -> None:
        """Saves a checkpoint after the step in progress, beside those that the recipe asks for; the run goes on. `on_checkpoint`
        is called when it is published."""
        if self._inner is not None:
            self._inner.save()

    def wait(self, timeout: float | None = None) -> Run:
        """Waits for the end of the run; returns it. The first Ctrl-C saves and stops, the second returns at once."""
        end = None if timeout is None else time.monotonic() + timeout
        asked = False
        while True:
            try:
                while not self._over():
                    self._settle(0.05)
                    if end is not None and time.monotonic() > end:
                        raise TimeoutError(f"the run in {self.folder} goes on")
                break
            except KeyboardInterrupt:
                if asked:
                    raise
                asked = True
                self.stop()
                sys.stderr.write("\nsaving and stopping; Ctrl-C again leaves the run to finish its save\n")
        if self._failed is not None:
            raise self._failed
        if asked:
            raise KeyboardInterrupt(f"the run in {self.folder} is saved; the same call resumes it")
        return self

    def _over(self) -> bool:
        return self._inner is None or self._result is not None

    def _settle(self, seconds: float) -> None:
        """Takes the result of the run, if it has come."""
        try:
            found = self._inner.wait(seconds)
        except Exception as error:
            self._close()
            cause = next((of.error for of in self._callers if of.error is not None), None)
            if cause is not None:
                failed: BaseException = RewardError(str(error))
                failed.__cause__ = cause
                self._failed = self._failed or failed
            else:
                self._failed = self._failed or error
            self._result = {"outcome": "failed"}
            self._end_callbacks()
            return
        if found is not None:
            self._close()
            self._result = json.loads(found)
            self._end_callbacks()

    def _end_callbacks(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._tell("on_end", self, Control(self))

    def _close(self) -> None:
        for caller in self._callers:
            caller.close()

    def _end(self) -> None:
        """Saves and stops with the interpreter."""
        self.stop()
        while not self._over():
            self._settle(0.1)

    # Results.

    @property
    def outcome(self) -> str:
        """`finished`, `interrupted`, `failed` or `running`; of a run opened by its folder, by its log."""
        if not self._over():
            self._settle(0.0)
        if self._failed is not None:
            return "failed"
        if self._result is not None:
            found: str = self._result["outcome"]
            return found
        if self._inner is not None:
            return "running"
        return "finished" if any(event.get("event") == "done" for event in self.events) else "interrupted"

    @property
    def events(self) -> list[dict[str, Any]]:
        """All lines of its log."""
        return _events(self._log)

    @property
    def metrics(self) -> Table:
        """The figures of each step, a row a step."""
        return Table.of_rows([_without(event) for event in self.events if event.get("event") == "step"])

    @property
    def rollouts(self) -> Table:
        """The answers that the log has, a row an answer."""
        rows = [
            {"step": event["step"], **answer}
            for event in self.events
            if event.get("event") == "rollout"
            for answer in event["answers"]
        ]
        return Table.of_rows(rows)

    @property
    def report(self) -> str:
        """The path of its report, written from the log so far if it has none."""
        page = os.path.join(self.folder, "report.html")
        if not os.path.exists(page):
            _fathom.report(self.folder, page)
        return page

    @property
    def recipe(self) -> Recipe:
        """Its recipe."""
        from fathom._keys import TrainRecipe

        return TrainRecipe.from_file(os.path.join(self.folder, "recipe.toml"))

    @property
    def model(self) -> Model:
        """What it trained, opened: a model, or its base with the adapter."""
        from fathom._model import Model

        return Model.from_pretrained(self.folder)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"a run cannot be pickled; pass its folder, {self.folder!r}, and open it there (Run.open)")

    def __repr__(self) -> str:
        return f"<fathom.Run in {self.folder}, {self.outcome}>"

    def _repr_html_(self) -> str:
        from fathom._notebook import run_html

        return run_html(self)


def _without(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name != "event"}


def _mean_loss(bits: dict[str, Any], position: dict[str, Any]) -> float | None:
    for of in (bits, position):
        for name in ("loss", "mean_loss", "nats_per_token"):
            if isinstance(of.get(name), (int, float)):
                return float(of[name])
    return None


class Progress:
    """The progress of a run: a line on a terminal, or one display of a notebook, at most four times a second."""

    def __init__(self) -> None:
        from fathom._notebook import display_of

        self._display = display_of()
        self._last = 0.0
        self._is_tty = self._display is None and sys.stderr is not None and sys.stderr.isatty()
        self._losses: list[tuple[int, float]] = []
        self._text = ""

    def step(self, step: Step, later_s: float) -> None:
        """Shows a step."""
        if step.loss is not None:
            self._losses.append((step.step, step.loss))
        now = time.monotonic()
        of = f" of {step.stage_steps}" if step.stage_steps else ""
        loss = "no number" if step.loss is None else f"{step.loss:.4f}"
        self._text = f"step {step.of_stage}{of}, loss {loss}, {step.tokens_per_s:,.0f} tokens/s"
        if now - self._last >= 0.25:
            self._last = now
            self._show()

    def line(self, text: str, kind: str) -> None:
        """Shows a line."""
        if self._is_tty and kind == "line":
            sys.stderr.write(f"\r\x1b[K{text}\n")

    def _show(self) -> None:
        if self._display is not None:
            from fathom._notebook import progress_html

            self._display(progress_html(self._text, self._losses))
        elif self._is_tty:
            sys.stderr.write(f"\r\x1b[K{self._text}")
            sys.stderr.flush()

    def end(self) -> None:
        """Shows the last step."""
        if self._text:
            self._show()
            if self._is_tty:
                sys.stderr.write("\n")


def train(
    recipe: Recipe | str | os.PathLike[str],
    *,
    rows: Any = None,
    rewards: Any = None,
    environment: Any = None,
    callbacks: Iterable[Callback | type[Callback]] = (),
    wait: bool = True,
    allow_processes: bool = False,
) -> Run:
    """Trains a recipe; the same call goes on with a run that was stopped.

    `rows` are a path, a list of dicts, an iterator, or a table of any library; they are written once below the run's
    folder. `rewards` are functions (`@fathom.reward`) or a file; `environment` replies to answers. `callbacks` observe
    the run. Without `wait` the run goes on by itself, and iterating over it yields its steps."""
    _edge.record()
    of = _recipe.of(recipe).copy()
    folder = str(of._values("run.out"))
    begun = os.path.exists(os.path.join(folder, "recipe.toml"))
    if rows is not None:
        of._set("data.paths", _rows.paths(rows, folder))
    run = Run(folder)
    run._callbacks = [of() if isinstance(of, type) else of for of in callbacks]
    for callback in run._callbacks:
        if not isinstance(callback, Callback):
            raise Error(f"a callback is a class or an object of fathom.Callback, not {callback!r:.80}")
    named: list[tuple[str, Any]] = []
    replies = None
    if isinstance(rewards, (str, os.PathLike)):
        of._set("rl.reward", os.fspath(rewards))
    elif rewards is not None:
        found = _functions.rewards_of(rewards)
        of._set("rl.reward", _functions.write_rewards(found, folder, begun))
        for reward in found:
            caller = _functions.call_reward(reward, _tokenizer_of(of))
            run._callers.append(caller)
            named.append((reward.name, caller.calls))
    if environment is not None:
        if not callable(environment):
            raise Error(f"an environment is a function of answers (@fathom.environment), not {environment!r:.80}")
        player = environment if isinstance(environment, _functions.Environment) else _functions.Environment(environment, None, "", True)
        of._set("environment.function", f"{player.name}@{player.version}" if player.version else player.name)
        caller = _functions.call_environment(player)
        run._callers.append(caller)
        replies = caller.calls
    channel = _fathom.Channel()
    try:
        run._inner = _fathom.Run.start(
            (of._base, of._settings),
            {
                "command": _command(),
                "rewards": named,
                "environment": replies,
                "allow_processes": allow_processes,
            },
            channel,
        )
    except BaseException:
        run._close()
        raise
    _edge.keep(run)
    run._begin(channel)
    return run.wait() if wait else run


def _tokenizer_of(recipe: Recipe) -> Callable[[], Any]:
    """Opens the tokenizer of a recipe's model when it is first asked for."""
    found: list[Any] = []

    def tokenizer() -> Any:
        if not found:
            from fathom._tokenizer import Tokenizer

            found.append(Tokenizer.from_pretrained(recipe._values("data.tokenizer") or recipe._values("model.from")))
        return found[0]

    return tokenizer


def _command() -> str:
    script = sys.argv[0] if sys.argv and sys.argv[0] else "-"
    # The order of its sets may decide what a function says.
    seed = os.environ.get("PYTHONHASHSEED")
    return f"{f'PYTHONHASHSEED={seed} ' if seed else ''}python {os.path.basename(script)}"
