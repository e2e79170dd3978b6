"""Records an order from what really runs, on one thread, between two moments."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch import nn

from otel_modtrack.core import CORE
from otel_modtrack.engine import ACCUMULATE
from otel_modtrack.names import unwrapped
from otel_modtrack.order.execution import Builder, ExecutionOrder
from otel_modtrack.order.recorded import calls_of
from otel_modtrack.order.using import Sight, is_leaf, is_whole, module_of
from otel_modtrack.regions import Phase, clock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_modtrack.core import ThreadState
    from otel_modtrack.names import Names
    from otel_modtrack.regions import Region, Unit

__all__ = ["Recorder"]

_HOOKS = "_post_accumulate_grad_hooks"  # of a tensor; private

# How many parameters that no module has are looked for: a program may make some in each call.
_MISSES_ALLOWED = 16


class Recorder:
    """What one thread does between `open` and `close`, and the engine's threads for it.

    Args:
        names: of the modules.
        state: of the thread.
    """

    def __init__(self, names: Names, state: ThreadState) -> None:
        self.state = state
        self.begun_ns = 0
        self._names = names
        self._sight = Sight(self._used)
        self._regions: list[Region] = []
        self._taken: set[int] = set()
        self._modules: dict[Region, object] = {}  # also those that live no longer than their call
        self._uses: list[tuple[int, Region, list[nn.Parameter]]] = []
        self._gradients: list[tuple[weakref.ref[nn.Parameter], str]] = []
        self._hooked: dict[int, tuple[Any, bool]] = {}  # parameters; whether they had no hooks
        self._got = self._got_gradient  # one object, to be found among a parameter's hooks
        self._parameters = _ParameterNames(names)

    def open(self) -> None:
        """Begin."""
        self.begun_ns = clock()
        self._sight.open()
        self._sight.look(self.state.running)

    def close(self) -> None:
        """End: nothing is left on parameters, modes or threads. Again: does nothing."""
        self._sight.close()
        while self._hooked:
            key, (parameter, had_none) = next(iter(self._hooked.items()))
            hooks = getattr(parameter, _HOOKS, None) or {}
            for one in [one for one, hook in hooks.items() if hook is self._got]:
                del hooks[one]
            if had_none and not hooks:
                setattr(parameter, _HOOKS, None)
            del self._hooked[key]
        if self.state.unit is not None:
            self.take(self.state.unit)

    # -- while it runs ---------------------------------------------------------------------------

    def look(self) -> None:
        """A call has begun or ended on the thread."""
        region = self.state.running
        if region is not None and region not in self._modules:
            self._modules[region] = region.subject.ref()
        self._sight.look(region)

    def take(self, unit: Unit) -> None:
        """A unit of the thread is over, or recording is."""
        for region in unit.regions:
            if region.start_ns >= self.begun_ns and id(region) not in self._taken:
                self._taken.add(id(region))  # it lives as long as the list below
                self._regions.append(region)

    def plan(self, nodes: Iterable[Any]) -> None:
        """A backward is about to run these nodes: find out when parameters get gradients."""
        for node in nodes:
            if node._sequence_nr() < ACCUMULATE:  # noqa: SLF001
                continue
            parameter = getattr(node, "variable", None)
            if (
                isinstance(parameter, nn.Parameter)
                and parameter.requires_grad  # it may have been frozen since
                and id(parameter) not in self._hooked
            ):
                tensor: Any = parameter  # whose hooks are private
                had_none = getattr(tensor, _HOOKS, None) is None
                self._hooked[id(parameter)] = (parameter, had_none)  # first: see `close`
                tensor.register_post_accumulate_grad_hook(self._got)

    def _got_gradient(self, parameter: nn.Parameter) -> None:
        try:
            self._gradients.append((weakref.ref(parameter), self._parameters.fqn(parameter)))
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
            CORE.fault("recording an order", error)

    def _used(self, parameters: list[nn.Parameter]) -> None:
        region = module_of(self.state.running)
        if region is not None:
            for parameter in parameters:  # while it is where its module has it
                self._parameters.fqn(parameter)
            self._uses.append((clock(), region, parameters))

    # -- when it is over -------------------------------------------------------------------------

    def result(self, name: str) -> ExecutionOrder:
        """What was recorded.

        Args:
            name: of the order.
        """
        regions = sorted(self._regions, key=lambda region: region.start_ns)  # stable
        builder = Builder(name, self._parameters.fqn)
        order = builder.order
        self._tell_forward(builder, regions)
        order.step = regions[-1].unit.step if regions else None
        order.recompute = calls_of(regions, Phase.RECOMPUTE)[1]
        backward, order.backward = calls_of(regions, Phase.BACKWARD)
        order.module_backward_order = [self._module(region.forward) for region in backward]
        order.gradients = [fqn for _, fqn in self._gradients]
        order.param_backward_order = [ref() for ref, _ in self._gradients]
        return order

    def forget(self) -> None:
        """Let go of everything: what refers to itself would wait for a collection."""
        self._regions, self._uses, self._gradients, self._modules = [], [], [], {}
        del self._sight, self._got

    def _tell_forward(self, builder: Builder, regions: list[Region]) -> None:
        forward, calls = calls_of(regions, Phase.FORWARD)
        positions = {region: at for at, region in enumerate(forward)}
        called = {call.parent for call in calls}
        uses = iter([*self._uses, None])
        use = next(uses)
        for at, (region, call) in enumerate(zip(forward, calls, strict=True)):
            while use is not None and use[0] < region.start_ns:
                self._tell_use(builder, positions, use)
                use = next(uses)
            module = self._module(region)
            leaf = is_whole(region.subject) and at not in called
            builder.call(module, call.fqn, call.parent, leaf=leaf)
            if module is not None and is_leaf(region.subject):
                builder.use(at, _own(module, called=at in called, whole=leaf))
        while use is not None:
            self._tell_use(builder, positions, use)
            use = next(uses)

    def _module(self, call: Region | None) -> nn.Module | None:
        """The module of a forward call, or of a backward's forward."""
        module = None
        if call is not None:
            module = self._modules.get(call)
            if module is None:
                module = call.subject.ref()
        return unwrapped(module) if isinstance(module, nn.Module) else None

    def _tell_use(
        self,
        builder: Builder,
        positions: dict[Region, int],
        use: tuple[int, Region, list[nn.Parameter]],
    ) -> None:
        _, region, parameters = use
        at = positions.get(region)
        if at is not None:
            builder.use(at, [(self._parameters.path(one), one) for one in parameters])


def _own(module: nn.Module, *, called: bool, whole: bool) -> list[tuple[str, nn.Parameter]]:
    """What a module uses directly that was not looked at: what it has itself.

    And what its children have, where it does without calling them.

    Args:
        module: of torch.nn, or compiled.
        called: whether it has called any of its children.
        whole: whether its children's calls are not seen.
    """
    below = (
        whole
        or isinstance(module, nn.MultiheadAttention)
        or (isinstance(module, nn.TransformerEncoderLayer) and not called)
    )
    return list(module.named_parameters(recurse=below))


class _ParameterNames:
    """The fqns of parameters: the first that `named_parameters` of the root has, without wrappers.

    Args:
        names: of the modules.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._known: dict[int, tuple[weakref.ref[nn.Parameter], str]] = {}
        self._misses = 0  # how often it was looked through all modules in vain

    def fqn(self, parameter: nn.Parameter) -> str:
        """``GPT.layers.0.weight``; "?" for one that no known module has."""
        found = self._known.get(id(parameter))
        if found is None or found[0]() is not parameter:
            if self._misses < _MISSES_ALLOWED:
                self._learn()
                found = self._known.get(id(parameter))
            if found is None or found[0]() is not parameter:
                self._misses += 1
                found = self._known[id(parameter)] = (weakref.ref(parameter), "?")
        return found[1]

    def path(self, parameter: nn.Parameter) -> str:
        """The same as of the root: ``layers.0.weight``."""
        fqn = self.fqn(parameter)
        return fqn.partition(".")[2] or fqn

    def _learn(self) -> None:
        """Look through the modules that are known; FSDP has others at other times."""
        known = self._names.known
        modules = [(one.fqn, one.ref()) for one in list(known.values())]
        roots = [module for fqn, module in modules if "." not in fqn]
        for root in [*roots, *(module for _, module in modules)]:
            if isinstance(root, nn.Module):
                for module in root.modules():
                    subject = known.get(id(module))
                    if subject is not None:
                        self._learn_of(module, subject.fqn)

    def _learn_of(self, module: nn.Module, fqn: str) -> None:
        held = dict(module._parameters)  # noqa: SLF001
        handle = module.__dict__.get("_handle")  # FSDP1's, which may hide the flat parameter
        if isinstance(flat := getattr(handle, "flat_param", None), nn.Parameter):
            held["_flat_param"] = flat
        for name, parameter in held.items():
            if parameter is not None:
                known = self._known.get(id(parameter))
                if known is None or known[0]() is not parameter or known[1] == "?":
                    self._known[id(parameter)] = (weakref.ref(parameter), f"{fqn}.{name}")
