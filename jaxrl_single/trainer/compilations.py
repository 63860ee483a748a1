"""Counts XLA compilations of this process; growth after warm-up means that shapes are not fixed."""

from __future__ import annotations

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"  # also sent when the cache on disk answers


class CompilationCounter:
    """Counts from its creation on. One per process: jax keeps the listener for good.

    Attributes:
      count: programs compiled, or loaded from the persistent cache.
      seconds: spent in that.
    """

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, duration: float, **_labels: str | int) -> None:
        if event == _EVENT:
            self.count += 1
            self.seconds += duration
