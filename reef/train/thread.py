"""TrainerThread: runs one scenario's trainer when the bus says that something happened.

Knows nothing of batches or runtimes; it wakes, steps, backs off and says what it is doing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from reef.errors import ReefError
from reef.events import Bus
from reef.train.loop import StepResult, Trainer
from reef.train.watch import LOOK_S

log = logging.getLogger("reef.train")

_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 1.0, 60.0
_HOUSEKEEPING_S = 60.0
"""How often a parked report's age is looked at when nothing happens."""


class TrainerThread:
    """``state``: idle, training, paused, held, blocked or failed; ``detail`` says why in a sentence."""

    def __init__(self, trainer: Trainer, bus: Bus, *, paused: bool = False) -> None:
        self._tie(trainer)
        self.paused = paused
        self.state = "paused" if paused else "idle"
        self.detail = ""
        self._bus = bus
        self._wake = threading.Event()
        self._stopping = False
        self._backoff_s = _FIRST_BACKOFF_S
        self._not_before_s = 0.0
        self._thread: threading.Thread | None = None
        self._start = threading.Lock()
        self._turnstile = threading.Lock()

    def _tie(self, trainer: Trainer) -> None:
        self.trainer = trainer
        trainer.on_verdict = self.wake
        trainer.go_on = lambda: self.free and not (self._stopping or self.paused)

    def take(self, trainer: Trainer) -> None:
        """Go on with another trainer of the same scenario; only while the one before is held between two steps."""
        before = self.trainer
        self._tie(trainer)
        before.close()

    def wake(self) -> None:
        """Something happened; the thread is started on the first call."""
        # Until the trainer has looked, the report may be about an answer that is just ending: that one must wake it too.
        self.trainer.wants_inferences = True
        if self._thread is None:
            with self._start:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name=f"train-{self.trainer.scenario}", daemon=True
                    )
                    self._thread.start()
        self._wake.set()

    def retry(self) -> None:
        """A person has done something: as ``wake``, and a step that waits to be tried again is tried now."""
        self._not_before_s = 0.0
        self.wake()

    @contextmanager
    def between_steps(self) -> Iterator[Trainer]:
        """The trainer, held still: the step in hand is waited for, and the next one does not begin before the end of this."""
        with self._turnstile, self.trainer.lock:
            yield self.trainer

    @property
    def free(self) -> bool:
        """False while somebody waits for, or is, between two steps."""
        return not self._turnstile.locked()

    def hurry(self) -> None:
        """Begin to stop: no further step, and one that can be taken up again ends now."""
        self._stopping = True
        self._wake.set()

    def stop(self) -> None:
        """Finish the step in hand, then end."""
        self.hurry()
        if self._thread is not None:
            self._thread.join()
        self.trainer.close()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stopping:
            self._wake.wait(wait_s)
            self._wake.clear()
            if self._stopping:
                return
            try:
                wait_s = self._turn()
            except ReefError as error:
                log.error("training of %s waits: %s", self.trainer.scenario, error.message)
                self._say("failed", f"{error.message} ({error.hint})" if error.hint else error.message)
                wait_s = self._back_off()
            except BaseException as error:  # the edge of the thread: a recipe may call sys.exit(). Tried again later.
                log.exception("training of %s failed", self.trainer.scenario)
                self._say("failed", f"{type(error).__name__}: {error}")
                wait_s = self._back_off()

    def _back_off(self) -> float:
        wait_s = self._backoff_s
        self._backoff_s = min(wait_s * 2, _LONGEST_BACKOFF_S)
        self._not_before_s = time.monotonic() + wait_s
        return wait_s

    def _turn(self) -> float:
        """Steps until there is no full batch; returns how long to wait for the next look."""
        if self.paused:
            self.trainer.catch_up()
            self._say("paused", "")
            return _HOUSEKEEPING_S
        while not self._stopping and not self.paused:
            with self._turnstile:  # locks are not fair: without it a full queue of batches would keep a person waiting
                pass
            result = self.trainer.run_step(self._begin)
            if result is None and (left_s := self._not_before_s - time.monotonic()) > 0:
                return left_s
            if result is None:
                self._backoff_s = _FIRST_BACKOFF_S
                self._say("idle", "")
                watch = self.trainer.watch
                return LOOK_S if watch is not None and watch.missed else _HOUSEKEEPING_S
            self._announce(result)
            if result.retry_after_s:
                self._say("held" if result.outcome == "held" else "blocked", result.reason)
                if result.outcome != "held":  # whatever comes in meanwhile: it is no sign that the trouble is over
                    self._not_before_s = time.monotonic() + result.retry_after_s
                return result.retry_after_s
        return 0.0

    def _begin(self) -> bool:
        if time.monotonic() < self._not_before_s:
            return False
        self._say("training", "")
        return True

    def _announce(self, result: StepResult) -> None:
        if result.outcome != "held":
            release = result.release.release_id if result.release is not None else None
            metrics = dict(result.release.metrics) if result.release is not None else {}
            self._bus.publish(
                "step",
                self.trainer.scenario,
                outcome=result.outcome,
                reason=result.reason,
                release=release,
                metrics=metrics,
            )
            if release is not None or result.outcome in ("skip", "refused"):
                made = f"{result.outcome} {release or ''}".rstrip()
                log.info("%s: a step ended: %s, %s", self.trainer.scenario, made, result.reason)

    def _say(self, state: str, detail: str) -> None:
        if (state, detail) != (self.state, self.detail):
            self.state, self.detail = state, detail
            self._bus.publish("trainer", self.trainer.scenario, state=state, detail=detail)
