"""What `configure` builds: the SDK's providers, with our delivery behind them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace
from opentelemetry.metrics import _internal as metrics_internal
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider, sampling
from opentelemetry.sdk.trace.export import ConsoleSpanExporter

from otel_modtrack import leaving
from otel_modtrack.configuring import EXIT_TIMEOUT_S
from otel_modtrack.invocation import as_argument, command_line
from otel_modtrack.otlp import variables
from otel_modtrack.otlp.delivery import Delivery, Limits
from otel_modtrack.otlp.metrics import TEMPORALITIES, Reader, watch
from otel_modtrack.otlp.processor import Processor
from otel_modtrack.otlp.senders import ExporterSender, FileSender, MetricSender, SpanSender
from otel_modtrack.otlp.settings import read_endpoint
from otel_modtrack.resources import make_resource, renew
from otel_modtrack.usage import ConfigurationError
from otel_modtrack.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from otel_modtrack.configuring import Telemetry
    from otel_modtrack.otlp.delivery import Sender

__all__ = ["Processor", "build", "exit_timeout_s", "read_limits"]

FILE = "OTEL_PYTHON_MODTRACK_FILE"
_RANK_FILE = "modtrack-spans.rank{}.jsonl"
_TRACES, _METRICS = "OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER"
_SAMPLER, _RATIO = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
# The SDK's defaults lose spans of one step of a large model: 2,048 wait, and 512 go at once.
_WAITING, _BATCH, _DELAY_MS = 65_536, 2_048, 5_000
_OTLP = {"otlp": None, "otlp_proto_http": "http/protobuf", "otlp_proto_grpc": "grpc"}


def build(telemetry: Telemetry, service_name: str | None) -> None:
    """Fill in `telemetry`, and make its providers global.

    Everything is read before anything is built: a wrong variable leaves nothing behind.

    Raises:
        ConfigurationError: if a variable cannot be used.
    """
    exit_s = exit_timeout_s()
    limits = read_limits(0.0)
    sampler = _sampler()
    resource = make_resource(service_name)
    interval_s = variables.number(60_000, "OTEL_METRIC_EXPORT_INTERVAL", at_least=1) / 1e3
    temporality = variables.choice(
        tuple(TEMPORALITIES), "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
    )
    metric_sender = _metric_sender()
    try:
        provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
    except ValueError as error:  # its limits; the SDK names the variable
        raise ConfigurationError(f"{error}; correct or unset it") from None
    senders = _span_senders()  # last: it makes a file

    def in_a_worker() -> None:
        leaving.at_worker_exit(telemetry._leave)  # noqa: SLF001 - its other half

    for sender, timeout_s in senders:
        delivery = Delivery(
            sender,
            limits._replace(timeout_s=timeout_s),
            on_start=in_a_worker,
        )
        provider.add_span_processor(Processor(delivery, exit_s))
        telemetry._deliveries.append(delivery)  # noqa: SLF001
        if isinstance(sender, FileSender):
            how = f"to see the spans: {_view_command(sender.shown)}"
            telemetry._mention = delivery.counts, how  # noqa: SLF001
        delivery.start()
    if senders:
        telemetry.spans = telemetry._deliveries[0].counts  # noqa: SLF001
    telemetry.tracer_provider = provider
    telemetry._exit_timeout_s = exit_s  # noqa: SLF001
    trace.set_tracer_provider(provider)
    if metric_sender is not None and _no_meter_provider():
        _build_metrics(telemetry, metric_sender, resource, interval_s, temporality or "cumulative")
    elif not _no_meter_provider():  # the program's own is told what became of the spans, too
        watch(telemetry.spans, telemetry.meter_provider, "spans", __version__)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: _after_fork(telemetry))
    leaving.at_exit(telemetry._leave)  # noqa: SLF001
    leaving.at_sigterm(telemetry._send, telemetry._leave)  # noqa: SLF001


def _after_fork(telemetry: Telemetry) -> None:
    """What a forked child exports is its own, whether it calls `configure` or not."""
    ours = telemetry._reader is not None  # noqa: SLF001 - its other half
    renew(telemetry.tracer_provider, *([telemetry.meter_provider] if ours else []))


def _build_metrics(
    telemetry: Telemetry,
    sender: MetricSender,
    resource: Resource,
    interval_s: float,
    temporality: str,
) -> None:
    endpoint = sender.endpoint
    delivery = Delivery(sender, Limits(16, 1, interval_s, endpoint.timeout_s), what="metrics")
    reader = Reader(endpoint, delivery, interval_s, temporality)
    provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    delivery.start()
    reader.start()
    telemetry.meter_provider = provider
    telemetry._reader = reader  # noqa: SLF001
    metrics.set_meter_provider(provider)
    watch(telemetry.spans, provider, "spans", __version__)


def _no_meter_provider() -> bool:
    """Whether the program has set none; the API has no other way to tell."""
    return isinstance(
        metrics.get_meter_provider(), getattr(metrics_internal, "_ProxyMeterProvider", ())
    )


def exit_timeout_s() -> float:
    """How long the exit may wait for spans to be delivered."""
    return variables.number(EXIT_TIMEOUT_S, "OTEL_PYTHON_MODTRACK_EXIT_TIMEOUT")


def read_limits(timeout_s: float, *, waiting: int = 0) -> Limits:
    """As the OTEL_BSP_* variables say. A request's timeout is its exporter's.

    Args:
        timeout_s: of a request.
        waiting: that have to find room if the environment does not say how many may.

    Raises:
        ConfigurationError: if a variable cannot be used.
    """
    waiting = variables.whole(max(waiting, _WAITING), "OTEL_BSP_MAX_QUEUE_SIZE")
    batch = variables.whole(min(_BATCH, waiting), "OTEL_BSP_MAX_EXPORT_BATCH_SIZE")
    if batch > waiting:
        raise ConfigurationError(
            f"OTEL_BSP_MAX_EXPORT_BATCH_SIZE={batch} is more than OTEL_BSP_MAX_QUEUE_SIZE"
            f" ({waiting}); lower it"
        )
    variables.whole(1, "OTEL_BSP_EXPORT_TIMEOUT")
    delay_s = variables.whole(_DELAY_MS, "OTEL_BSP_SCHEDULE_DELAY") / 1e3
    return Limits(waiting, batch, delay_s, timeout_s)


def _sampler() -> sampling.Sampler:
    """Source: OpenTelemetry specification, *General SDK configuration*."""
    name, _ = variables.text(_SAMPLER)
    plain = {
        "": sampling.DEFAULT_ON,
        "always_on": sampling.ALWAYS_ON,
        "always_off": sampling.ALWAYS_OFF,
        "parentbased_always_on": sampling.DEFAULT_ON,
        "parentbased_always_off": sampling.DEFAULT_OFF,
    }
    if name in plain:
        return plain[name]
    by_ratio = {
        "traceidratio": sampling.TraceIdRatioBased,
        "parentbased_traceidratio": sampling.ParentBasedTraceIdRatio,
    }
    if name in by_ratio:
        ratio = variables.number(1.0, _RATIO)
        if ratio > 1:
            raise ConfigurationError(f"{_RATIO}={ratio:g} is no ratio; set it between 0 and 1")
        return by_ratio[name](ratio)
    loaded = _load("opentelemetry_traces_sampler", name)
    if loaded is None:
        raise ConfigurationError(
            f"{_SAMPLER}={variables.shown(name)} is unknown; set it to"
            f" {', '.join([*filter(None, plain), *by_ratio])}, or to one that a package provides"
        )
    return loaded(os.environ.get(_RATIO))  # type: ignore[no-any-return]


def _span_senders() -> list[tuple[Sender, float]]:
    """What sends spans, with the timeout of one request in seconds."""
    found: list[tuple[Sender, float]] = []
    for name in _names(_TRACES):
        if name in _OTLP:
            endpoint = read_endpoint("traces", _OTLP[name])
            found.append((SpanSender(endpoint), endpoint.timeout_s))
        elif name == "otlp_json_file":
            found.append((_file_sender(), 0.0))
        elif name == "console":
            found.append((ExporterSender(ConsoleSpanExporter(), "the terminal"), 0.0))
        elif name != "none":
            exporter = _load("opentelemetry_traces_exporter", name)
            if exporter is None:
                raise ConfigurationError(
                    f"{_TRACES}={variables.shown(name)} is unknown; set it to otlp,"
                    " otlp_json_file, console or none, or install the package that provides it"
                )
            found.append((ExporterSender(exporter(), name), 0.0))
    return found


def _file_sender() -> FileSender:
    path, name = variables.text(FILE)
    if not path:
        rank = os.environ.get("RANK", "")
        path = _RANK_FILE.format(rank) if rank.isdecimal() else "modtrack-spans.jsonl"
    try:
        return FileSender(path)
    except ImportError:
        raise ConfigurationError(
            f"{_TRACES}=otlp_json_file needs a package that is not installed; install it with"
            " pip install 'otel_modtrack[demo]'"
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"{name}: cannot write {Path(path)} ({error.strerror}); name a file that can be written"
        ) from None


def _view_command(path: str) -> str:
    """What shows a file, or, where each rank has its own, the files of all."""
    if path == _RANK_FILE.format(os.environ.get("RANK", "")):
        return f"{command_line('view')} {_RANK_FILE.format('*')}"
    return command_line("view", as_argument(path))


def _metric_sender() -> MetricSender | None:
    names = _names(_METRICS)
    unknown = [name for name in names if name not in (*_OTLP, "none")]
    if unknown:
        raise ConfigurationError(
            f"{_METRICS}={variables.shown(unknown[0])} is not supported; set it to otlp or none"
        )
    for name in names:
        if name in _OTLP:
            return MetricSender(read_endpoint("metrics", _OTLP[name]))
    return None


def _names(variable: str) -> list[str]:
    """A list of exporters; ``otlp`` where none is set."""
    value, _ = variables.text(variable)
    return [name.strip() for name in (value or "otlp").split(",") if name.strip()]


def _load(group: str, name: str) -> Any:
    """What a package provides under this name, or None."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and seldom needed

    for found in entry_points(group=group, name=name):
        return found.load()
    return None
