"""BLUEFOG_TIMELINE: what a rank does and when, in the form that Chrome's and Perfetto's viewers open."""

from __future__ import annotations

import json
import threading
import time
from typing import Any


class Timeline:
    """One rank's file. Every event is in it when the call returns; after `close` it is valid JSON.

    Threads: any. Owns: the file.
    """

    def __init__(self, path: str) -> None:
        """Args:
        path: of the file, which is made anew.
        """
        self._file = open(path, "w")  # noqa: SIM115 (closed by close)
        self._file.write("[")
        self._lock = threading.Lock()
        self._is_first = True
        self._tensors: dict[str, int] = {}
        self._threads: dict[int, int] = {}
        self._open: dict[tuple[str, int], list[str]] = {}  # activities by tensor and thread

    def start(self, tensor_name: str, activity_name: str) -> None:
        """Begins an activity of this thread's on a tensor.

        Args:
          tensor_name: of the row that it is shown in.
          activity_name: of the activity.
        """
        with self._lock:
            self._open.setdefault((tensor_name, self._thread()), []).append(activity_name)
            self._write(tensor_name, {"ph": "B", "name": activity_name, "ts": now_us()})

    def end(self, tensor_name: str) -> bool:
        """Ends what this thread began last on a tensor; False: there is nothing.

        Args:
          tensor_name: as `start` was given it.
        """
        with self._lock:
            activities = self._open.get((tensor_name, self._thread()))
            if not activities:
                return False
            self._write(tensor_name, {"ph": "E", "name": activities.pop(), "ts": now_us()})
            return True

    def span(self, tensor_name: str, activity_name: str, begin_us: float) -> None:
        """An activity that ends now.

        Args:
          tensor_name: of the row that it is shown in.
          activity_name: of the activity.
          begin_us: when it began, as `now_us` says.
        """
        with self._lock:
            event = {"ph": "X", "name": activity_name, "ts": begin_us, "dur": now_us() - begin_us}
            self._write(tensor_name, event)

    def close(self) -> None:
        """Ends the file. Idempotent; later events are dropped."""
        with self._lock:
            if not self._file.closed:
                self._file.write("\n]\n")
                self._file.close()

    def _thread(self) -> int:
        return self._threads.setdefault(threading.get_ident(), len(self._threads) + 1)

    def _write(self, tensor_name: str, event: dict[str, Any]) -> None:
        if self._file.closed:
            return
        number = self._tensors.get(tensor_name)
        if number is None:
            number = self._tensors[tensor_name] = len(self._tensors) + 1
            self._line({"ph": "M", "name": "process_name", "pid": number, "args": {"name": tensor_name}})
        self._line({**event, "pid": number, "tid": self._thread()})
        self._file.flush()

    def _line(self, event: dict[str, Any]) -> None:
        self._file.write(("\n" if self._is_first else ",\n") + json.dumps(event))
        self._is_first = False


def now_us() -> float:
    """The time that events have."""
    return time.time_ns() / 1000
