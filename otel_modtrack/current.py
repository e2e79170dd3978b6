"""Makes the span of the running region the current span, for whoever asks.

Nobody asks most of the time, so nothing is made until someone does: a `RegionContext` stands in the
context variable and gets the region's span when it is read. Modules of torch.nn run no user code
in forward and get none. In backward, the context is that of the user's until it is read; then the
running autograd node tells the region.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import context as context_api, trace
from opentelemetry.context.context import Context

from otel_modtrack.core import CORE, THREADS
from otel_modtrack.engine import current_graph_task_id
from otel_modtrack.regions import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_modtrack.backward import Run
    from otel_modtrack.regions import Region

__all__ = ["ContextReader", "RegionContext", "context_variable"]

(_SPAN_KEY,) = trace.set_span_in_context(trace.INVALID_SPAN, Context())


class RegionContext(Context):
    """The context inside a region: the user's, with the region's span as the current one.

    The span is made when the context is read for it. Carried elsewhere or to later, it names
    the same span. A dict as `opentelemetry.context.Context` is; read-only as that is.
    """

    __slots__ = ("_make", "_region", "modtrack_base")

    def __init__(self, region: Region, base: Context, make: Callable[[Region], trace.Span]) -> None:
        # No super().__init__(): it would fill a dict from its arguments, and there are none.
        self._region: Region | None = region
        # The user's own: never one of ours, however deep the modules are nested.
        ours = type(base) is RegionContext
        self.modtrack_base: Context = base.modtrack_base if ours else base  # type: ignore[attr-defined]
        self._make = make

    def _read(self) -> None:
        region, self._region = self._region, None
        if region is not None:
            try:
                dict.update(self, self.modtrack_base)
                dict.__setitem__(self, _SPAN_KEY, self._make(region))
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
                CORE.fault("the current span", error)

    def get(self, key: str, default: Any = None) -> Any:
        """Values other than the span are the user's own and need no span made."""
        if key != _SPAN_KEY and self._region is not None:
            return self.modtrack_base.get(key, default)
        self._read()
        return dict.get(self, key, default)

    def __getitem__(self, key: str) -> Any:
        self._read()
        return dict.__getitem__(self, key)

    def __contains__(self, key: object) -> bool:
        self._read()
        return dict.__contains__(self, key)

    def __iter__(self) -> Iterator[str]:
        self._read()
        return dict.__iter__(self)

    def __len__(self) -> int:
        self._read()
        return dict.__len__(self)

    def __eq__(self, other: object) -> bool:
        self._read()
        return dict.__eq__(self, other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        self._read()
        return dict.__repr__(self)

    def keys(self) -> Any:
        """As of a dict."""
        self._read()
        return dict.keys(self)

    def values(self) -> Any:
        """As of a dict."""
        self._read()
        return dict.values(self)

    def items(self) -> Any:
        """As of a dict."""
        self._read()
        return dict.items(self)

    def copy(self) -> dict[str, object]:
        """A plain dict, as of a `Context`."""
        self._read()
        return dict(dict.items(self))

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    def __reduce__(self) -> Any:
        return (Context, (self.copy(),))


class _Stand:
    """`ContextVar`'s three methods over another runtime context (``OTEL_PYTHON_CONTEXT``)."""

    def get(self) -> Context:
        return context_api.get_current()

    def set(self, context: Context) -> object:
        return context_api.attach(context)

    def reset(self, token: Any) -> None:
        context_api.detach(token)


def context_variable() -> Any:
    """The variable that carries the current context, or a stand-in with the same methods.

    Source: opentelemetry/context/contextvars_context.py. The variable itself is read in 15 ns;
    through the API it takes 100.
    """
    runtime = getattr(context_api, "_RUNTIME_CONTEXT", None)
    variable = getattr(runtime, "_current_context", None)
    if hasattr(variable, "get") and hasattr(variable, "set") and hasattr(variable, "reset"):
        return variable
    return _Stand()


class ContextReader:
    """While installed, ``opentelemetry.context.get_current()`` knows where a backward is.

    Contexts set from inside the engine's hooks would come too late for a hook of the user's that
    runs first on the same node, so it is the reading that is looked after: within an engine run,
    if the user has attached nothing of their own, the region is looked up at that moment and
    what is returned is fixed from then on.

    Where the runtime context has no place for it, the current span in a backward is the one that
    was current when the backward began.
    """

    def __init__(self, make: Callable[[Region], trace.Span]) -> None:
        self._make = make
        self._runtime: Any = getattr(context_api, "_RUNTIME_CONTEXT", None)
        self._original: Callable[[], Context] = context_api.get_current

    def install(self) -> None:
        """Begin to look."""
        if self._runtime is None:
            return
        self._original = self._runtime.get_current
        self._runtime.get_current = self._read

    def remove(self) -> None:
        """The runtime context is as it was."""
        if self._runtime is not None and self._runtime.__dict__.get("get_current") == self._read:
            del self._runtime.get_current

    def _read(self) -> Context:
        current = self._original()
        if not CORE.runs:
            return current
        try:
            run = CORE.runs.get(current_graph_task_id())
            if run is not None and run.unit is not None and _is_users(run, current):
                region = run.locate()
                if region is not None:
                    return RegionContext(region, run.context or current, self._make)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
            CORE.fault("the current span", error)
        return current


def _is_users(run: Run, current: Context) -> bool:
    """Whether `current` is what the user had before the engine run, with nothing put on top."""
    state = THREADS.state
    running = state.running
    if running is not None and running.subject.kind is not Kind.ENGINE:
        return False  # a recomputation, which has a context of its own
    if state is run.state:
        return current is run.context
    return not current  # a thread of the engine's: nothing unless a hook attaches something
