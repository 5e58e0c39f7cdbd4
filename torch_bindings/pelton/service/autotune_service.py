"""Bagua's tuning service: a Flask application that ranks ask for hyperparameters, and the client that asks.

Nothing in Pelton starts it. It has no authentication, so that `serve` listens on loopback unless it is told otherwise.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pelton._extras import optional_module
from pelton.bagua_define import BaguaCoreTelemetrySpan, BaguaHyperparameter, TensorDeclaration, checked_tensors
from pelton.errors import DeadlineExceeded, InvalidArgument, PeerLost
from pelton.service._tuning import ModelTuning, Record

__all__ = ["AutotuneClient", "AutotuneService", "serve"]

RETRIES = 3
RETRY_INTERVAL_S = 1.0
_CONNECT_TIMEOUT_S = 10.0
_NO_ORDER: Mapping[str, int] = {}
_NO_PROXIES: Mapping[str, str | None] = {"http": None, "https": None}
_UNKNOWN_MODEL = 405  # Source: Bagua 0.9
_LOG = logging.getLogger("pelton")
_Json = dict[str, Any]


class _UnknownModelError(Exception):
    """A question about a model that nobody has registered tensors of."""


class AutotuneService:
    """Proposes hyperparameters for the models of one job, from the speeds that its ranks report.

    It changes what is in force only between two iterations at which all ranks ask, so that all of them get the same.

    Threads: any. Owns: what it knows of the models.
    """

    # The order of tensors takes in no more of those that no model has registered once it has so many.
    MAX_TRACE_INFO = 1000

    def __init__(
        self,
        world_size: int,
        autotune_level: int = 0,
        max_samples: int = 60,
        sampling_confidence_time_s: float = 5,
        warmup_time_s: float = 30,
        is_output_autotune_log: bool = False,
        default_bucket_size: int = 10 * 1024**2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        world_size: the number of ranks that will ask.
        autotune_level: 0: everyone gets the default; 1 or more: it is tuned.
        max_samples: after how many proposals the best one wins.
        sampling_confidence_time_s: how long a proposal stays in force at least. Units: seconds.
        warmup_time_s: how long after a registration nothing is sampled. Units: seconds.
        is_output_autotune_log: write each sample to a csv file in the folder for temporary files.
        default_bucket_size: what models begin with. Units: bytes.
        clock: the time. Units: seconds.

        Raises:
          ImportError: flask, or at level 1 scikit-optimize, is not installed; the text says how to.
          InvalidArgument: `world_size` or `default_bucket_size` is not positive.
        """
        if world_size < 1 or default_bucket_size < 1:
            text = f"world_size={world_size}, default_bucket_size={default_bucket_size}: both must be positive"
            raise InvalidArgument(text)
        self._flask = optional_module("flask", "an AutotuneService", "service")
        if autotune_level >= 1:
            optional_module("skopt", "an AutotuneService that tunes", "service")
        self.world_size = world_size
        self.autotune_level = autotune_level
        self.max_samples = max_samples
        self.sampling_confidence_time_s = sampling_confidence_time_s
        self.warmup_time_s = warmup_time_s
        self.is_output_autotune_log = is_output_autotune_log
        self.default_bucket_size = default_bucket_size
        self._clock = clock
        self._lock = threading.Lock()  # of the two dicts
        self._models: dict[str, ModelTuning] = {}
        self._order: dict[str, int] = {}

    def setup_app(self, app: Any) -> Any:
        """Adds the service's calls to a Flask application; returns the application."""
        calls = {
            "register_tensors": self._register_tensors,
            "report_metrics": self._report_metrics,
            "ask_hyperparameters": self._ask_hyperparameters,
            "report_tensor_execution_order": self._report_tensor_execution_order,
        }
        for name, call in calls.items():
            app.add_url_rule(f"/api/v1/{name}", f"autotune_{name}", self._view(call), methods=["POST"])
        app.add_url_rule("/api/v1/health_check", "autotune_health_check", _health, methods=["GET"])
        return app

    def autotune(
        self,
        hp_manager: ModelTuning,
        rank: int,
        train_iter: int,
        tensor_partial_order: Mapping[str, int] = _NO_ORDER,
    ) -> None:
        """Puts new hyperparameters into force if it is time to. The caller holds `hp_manager.lock`.

        Args:
          hp_manager: the model's tuning.
          rank: who asks.
          train_iter: at which iteration.
          tensor_partial_order: the place of tensors by name in the new buckets.
        """
        now = self._clock()
        if hp_manager.is_completed:
            return
        if hp_manager.warmup_pass_count == 0 or now - hp_manager.registered_at < self.warmup_time_s:
            hp_manager.warmup_pass_count += 1
            hp_manager.granted_at = now
            return
        other = hp_manager.differing()
        if other is not None:
            _LOG.warning(
                "tuning: nothing changes at iteration %d, because rank %d reported other hyperparameters than the rank "
                "that was first at iteration %d; every rank has to use those that it got",
                *(train_iter, other.rank, other.train_iter),
            )
        elif hp_manager.has_sample() and now - hp_manager.granted_at >= self.sampling_confidence_time_s:
            hp_manager.sample(train_iter, tensor_partial_order, now)
            _LOG.info(
                "tuning: sample %d, asked for by rank %d at iteration %d: bucket_size=%d, is_hierarchical_reduce=%s",
                *(hp_manager.sampling_count, rank, train_iter, hp_manager.hyperparameters.bucket_size),
                hp_manager.hyperparameters.is_hierarchical_reduce,
            )

    def _view(self, call: Callable[[_Json], _Json]) -> Callable[[], tuple[str, int, dict[str, str]]]:
        """A call as Flask has it: 400 with the reason where the request is wrong."""

        def view() -> tuple[str, int, dict[str, str]]:
            body = self._flask.request.get_json(force=True, silent=True)
            try:
                if not isinstance(body, dict):
                    raise InvalidArgument("the request's body must be a JSON object")
                return _answer(call(body))
            except _UnknownModelError as error:
                return str(error), _UNKNOWN_MODEL, {"Content-Type": "text/plain"}
            except InvalidArgument as error:
                return str(error), 400, {"Content-Type": "text/plain"}

        return view

    def _register_tensors(self, body: _Json) -> _Json:
        name = _field(body, "model_name", str)
        tensors = checked_tensors(_field(body, "tensor_list", list), "tensor_list")
        is_bucketed = _field(body, "whether_to_bucket", bool)
        with self._lock:
            if name not in self._models:
                self._models[name] = ModelTuning(self.world_size, self.max_samples, self.is_output_autotune_log)
                if self._models[name].log_path is not None:
                    _LOG.info("tuning: the samples of model '%s' go to %s", name, self._models[name].log_path)
            model = self._models[name]
        with model.lock:
            model.register(tensors, self.default_bucket_size, is_bucketed, self._clock())
            return {"recommended_hyperparameters": model.hyperparameters.dict()}

    def _report_metrics(self, body: _Json) -> _Json:
        model = self._model(body, "report_metrics")
        record = Record(
            train_iter=_field(body, "train_iter", int),
            rank=self._rank(body),
            hyperparameters=BaguaHyperparameter().update(_field(body, "hyperparameters", dict)),
            speed=_number(body, "speed"),
        )
        with model.lock:
            model.report(record)
        return {}

    def _ask_hyperparameters(self, body: _Json) -> _Json:
        model = self._model(body, "ask_hyperparameters")
        rank, train_iter = self._rank(body), _field(body, "train_iter", int)
        with self._lock:
            order = dict(self._order)
        with model.lock:
            if self.autotune_level >= 1 and model.may_ask(train_iter):
                self.autotune(model, rank, train_iter, order)
            model.asked(rank, train_iter)
            return {
                "recommended_hyperparameters": model.hyperparameters.dict(),
                "is_autotune_completed": model.is_completed,
            }

    def _report_tensor_execution_order(self, body: _Json) -> _Json:
        spans = [_span(span, i) for i, span in enumerate(_field(body, "spans", list))]
        spans = sorted((span for span in spans if span.action == "tensor_ready"), key=lambda span: span.start_time)
        with self._lock:
            for name in (span.tensor_name for span in spans):
                is_registered = any(name in model.names for model in self._models.values())
                if is_registered or len(self._order) < self.MAX_TRACE_INFO:
                    self._order.setdefault(name, len(self._order))
        return {}

    def _model(self, body: _Json, call: str) -> ModelTuning:
        name = _field(body, "model_name", str)
        with self._lock:
            if name not in self._models:
                text = f"{call}: nobody has registered tensors of model '{name}'; call register_tensors first"
                raise _UnknownModelError(text)
            return self._models[name]

    def _rank(self, body: _Json) -> int:
        rank: int = _field(body, "rank", int)
        if not 0 <= rank < self.world_size:
            raise InvalidArgument(f"rank={rank}: must be at least 0 and below the world size, {self.world_size}")
        return rank


class AutotuneClient:
    """Asks an `AutotuneService`. The calls return what `requests` does: `status_code`, `text`, `json()`.

    A call that reaches nobody is tried three times more, a second apart.

    Threads: one at a time. Owns: its connection.
    """

    def __init__(
        self,
        service_addr: str,
        service_port: int,
        proxies: Mapping[str, str | None] = _NO_PROXIES,
        timeout_s: float = 60.0,
    ) -> None:
        """Args:
        service_addr: the service's host.
        service_port: its port.
        proxies: as `requests` takes them; none by default. Those of the environment are not used.
        timeout_s: how long an answer may take. Units: seconds.

        Raises:
          ImportError: requests is not installed; the text says how to.
        """
        self._requests = optional_module("requests", "an AutotuneClient", "service")
        self.autotune_service_addr = f"{service_addr}:{service_port}"
        self.proxies = dict(proxies)
        self._timeout_s = timeout_s
        self._session = self._requests.Session()
        # `proxies` has no say in the variable all_proxy.
        self._session.trust_env = False

    def register_tensors(
        self, model_name: str, tensor_list: Sequence[TensorDeclaration], whether_to_bucket: bool = True
    ) -> Any:
        """Says which tensors a model has.

        Returns:
          A response whose `json()` is {"recommended_hyperparameters"}.

        Raises:
          PeerLost: the service is not reached; so of all calls.
          DeadlineExceeded: it does not answer in time; so of all calls.
        """
        body = {"model_name": model_name, "tensor_list": list(tensor_list), "whether_to_bucket": whether_to_bucket}
        return self._post("register_tensors", body)

    def report_metrics(
        self,
        model_name: str,
        rank: int,
        train_iter: int,
        hyperparameters: BaguaHyperparameter | Mapping[str, Any],
        speed: float,
    ) -> Any:
        """Says how fast a rank was with the hyperparameters that it uses; higher is better.

        Raises:
          InvalidArgument: the speed is not finite.
        """
        if not math.isfinite(speed):
            raise InvalidArgument(f"speed={speed!r} of rank {rank} at iteration {train_iter}: must be finite")
        if isinstance(hyperparameters, BaguaHyperparameter):
            hyperparameters = hyperparameters.dict()
        body = {
            "model_name": model_name,
            "rank": rank,
            "train_iter": train_iter,
            "hyperparameters": dict(hyperparameters),
            "speed": speed,
        }
        return self._post("report_metrics", body)

    def ask_hyperparameters(self, model_name: str, rank: int, train_iter: int) -> Any:
        """Asks what a rank is to use from an iteration on; all ranks ask at the same ones.

        Returns:
          A response whose `json()` is {"recommended_hyperparameters", "is_autotune_completed"}.
        """
        body = {"model_name": model_name, "rank": rank, "train_iter": train_iter}
        return self._post("ask_hyperparameters", body)

    def report_tensor_execution_order(self, spans: Sequence[BaguaCoreTelemetrySpan | Mapping[str, Any]]) -> Any:
        """Says when tensors became ready, which gives their order in buckets that are made from then on."""
        bodies = [span.dict() if isinstance(span, BaguaCoreTelemetrySpan) else dict(span) for span in spans]
        return self._post("report_tensor_execution_order", {"spans": bodies})

    def health_check(self) -> bool:
        """Whether the service answers. It is tried once, without an exception."""
        try:
            return bool(self._send("health_check", None).status_code == 200)
        except self._requests.exceptions.RequestException:
            return False

    def _post(self, call: str, body: _Json) -> Any:
        where = f"{call}: the tuning service at {self.autotune_service_addr}"
        for attempt in range(1 + RETRIES):
            if attempt > 0:
                time.sleep(RETRY_INTERVAL_S)
            try:
                return self._send(call, body)
            except self._requests.exceptions.Timeout as error:
                raise DeadlineExceeded(f"{where} did not answer in time ({error}); is it overloaded?") from error
            except self._requests.exceptions.ConnectionError as error:
                lost = error
        text = f"{where} was not reached in {1 + RETRIES} attempts ({lost}); is it running, and is this its port?"
        raise PeerLost(text) from lost

    def _send(self, call: str, body: _Json | None) -> Any:
        method = "GET" if body is None else "POST"
        url = f"http://{self.autotune_service_addr}/api/v1/{call}"
        timeout = (min(_CONNECT_TIMEOUT_S, self._timeout_s), self._timeout_s)
        return self._session.request(method, url, json=body, proxies=self.proxies, timeout=timeout)


@contextlib.contextmanager
def serve(service: AutotuneService, port: int = 0, host: str = "127.0.0.1") -> Iterator[int]:
    """Runs a service in a thread of this process for the length of a `with` block.

    Args:
      service: what answers.
      port: where; 0 for a free port.
      host: the address to listen on. Whoever reaches it can change what a job trains with.

    Yields:
      The port.

    Raises:
      InvalidArgument: it cannot listen there.
    """
    flask = optional_module("flask", "serve", "service")
    serving = optional_module("werkzeug.serving", "serve", "service")
    app = service.setup_app(flask.Flask("pelton.service"))
    quiet = type("_QuietHandler", (serving.WSGIRequestHandler,), {"log_request": lambda *_: None})
    with _listening(host, port) as listening:
        server = serving.make_server(host, port, app, True, request_handler=quiet, fd=listening.fileno())
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, name="autotune_service", daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def _listening(host: str, port: int) -> socket.socket:
    """Our own socket: werkzeug ends the process where it cannot listen."""
    try:
        return socket.create_server((host, port))
    except (OSError, OverflowError) as error:
        text = f"host={host!r}, port={port}: cannot listen there ({error}); port 0 takes a free one"
        raise InvalidArgument(text) from error


def _health() -> tuple[str, int, dict[str, str]]:
    return _answer({"status": "ok"})


def _answer(body: _Json) -> tuple[str, int, dict[str, str]]:
    return json.dumps(body), 200, {"Content-Type": "application/json"}


def _field(body: _Json, name: str, kind: type | tuple[type, ...]) -> Any:
    """A field of a request that must be there and of a type; bool is no number here."""
    value = body.get(name)
    if name not in body or not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(each.__name__ for each in kinds)
        raise InvalidArgument(f"field '{name}': must be {wanted}, not {value!r}"[:400])
    return value


def _number(body: _Json, name: str) -> float:
    try:
        return float(_field(body, name, (int, float)))
    except OverflowError:
        raise InvalidArgument(f"field '{name}': is too large for a float") from None


def _span(span: object, index: int) -> BaguaCoreTelemetrySpan:
    if not isinstance(span, dict):
        raise InvalidArgument(f"spans[{index}]: must be a JSON object, not {span!r}"[:400])
    return BaguaCoreTelemetrySpan(
        trace_id=_field(span, "trace_id", int),
        action=_field(span, "action", str),
        tensor_name=_field(span, "tensor_name", str),
        start_time=_field(span, "start_time", int),
        end_time=_field(span, "end_time", int),
    )
