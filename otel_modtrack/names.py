"""The fully qualified name of a module, its template, and the wrappers that do not show in it.

A fqn begins with the class of the root it was found under, as in torch's ModTracker:
``GPT.layers.17.mlp``. The first name a module gets stays. Two living roots of one class are told
apart by a number, ``Net`` and ``Net#2``, which the template leaves out.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
import weakref
from typing import TYPE_CHECKING

from otel_modtrack.regions import Kind, Subject

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator

    from torch import nn

    from otel_modtrack.regions import Region

__all__ = ["Names", "children", "template", "unwrapped"]

# (module and class that defines a wrapper, name of the child it wraps). Matched along the MRO, by
# name, so that nothing is imported for it and subclasses count.
_WRAPPERS = {
    ("torch.nn.parallel.distributed", "DistributedDataParallel"): "module",
    ("torch.nn.parallel.data_parallel", "DataParallel"): "module",
    (
        "torch.distributed.fsdp.fully_sharded_data_parallel",
        "FullyShardedDataParallel",
    ): "_fsdp_wrapped_module",
    (
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
        "ActivationWrapper",
    ): "_checkpoint_wrapped_module",
    ("torch._dynamo.eval_frame", "OptimizedModule"): "_orig_mod",
    ("torch.optim.swa_utils", "AveragedModel"): "module",
    ("deepspeed.runtime.engine", "DeepSpeedEngine"): "module",
}

# Classes that torch mixes into the user's class, renaming it: FSDPNet(FSDPModule, Net).
_MIXINS = {"FSDPModule", "ReplicateModule"}

# How many searches of a whole tree may fail for one root before only direct children are looked
# at: a program that makes modules on the fly must not pay for the size of its model each time.
_MISSES_ALLOWED = 16

# Where the frames are that run a compiled graph; and how many module calls up they are looked for:
# the graph's own, and the one around it.
_COMPILERS = ("torch/_functorch/", "torch/_dynamo/", "torch/_inductor/")
_CALLS_SEEN = 2
# What is put around each part of a graph that is split for DDP's buckets.
_COMPILERS_OWN = "torch._dynamo.backends."

_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)")
_ORDINAL = re.compile(r"#\d+$")


def template(fqn: str) -> str:
    """The low-cardinality form of a fqn, as an HTTP route is of a path.

    Example:
        >>> template("GPT#2.layers.17.mlp")
        'GPT.layers.*.mlp'
    """
    root, dot, rest = fqn.partition(".")
    return _ORDINAL.sub("", root) + _INDEX.sub("*", dot + rest)


def _class_facts(cls: type) -> tuple[str, str, str, bool]:
    """Class name shown, wrapper's class name or "", wrapped child's name or "", plain."""
    name, wrapper, child = cls.__name__, "", ""
    for base in cls.__mro__:
        key = (base.__module__, base.__qualname__)
        if key in _WRAPPERS:
            wrapper, child = name, _WRAPPERS[key]
            break
    if not wrapper and len(cls.__bases__) > 1 and _is_mixin(cls.__bases__[0]):
        return cls.__bases__[1].__name__, cls.__bases__[0].__name__, "", False
    plain = cls.__module__.startswith("torch.nn.")
    return name, wrapper, child, plain


def _is_mixin(base: type) -> bool:
    return base.__name__ in _MIXINS or (
        base.__name__ == "DDP" and base.__module__ == "torch.distributed._composable.replicate"
    )


def children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Name and module of what is directly below a module."""
    # The instance's dict, not the attribute: a class may have its own __getattr__.
    children = module.__dict__.get("_modules") or {}
    for name, child in list(children.items()):
        if child is not None:
            yield name, child


def unwrapped(module: nn.Module) -> nn.Module:
    """What is in a module's wrappers: DistributedDataParallel and the like; else itself."""
    child = _class_facts(type(module))[2]
    while child and (inner := (module.__dict__.get("_modules") or {}).get(child)) is not None:
        module = inner
        child = _class_facts(type(module))[2]
    return module


def _scripted(module: nn.Module) -> str:
    """The class that a TorchScript module was made from, or ""."""
    if not type(module).__module__.startswith("torch.jit."):
        return ""
    return str(getattr(module, "original_name", ""))


def _is_compilers(module: nn.Module) -> bool:
    """Whether this is a graph that dynamo or AOTAutograd made, and runs in a compiled callable.

    Dynamo leaves a note in the graph's ``meta`` (torch/_dynamo/output_graph.py). AOTAutograd leaves
    none, but its own frames are between the graph's call and the call around it.
    """
    home = type(module).__module__
    if home.startswith(_COMPILERS_OWN):
        return True
    if home != "torch.fx.graph_module":
        return False
    meta = module.__dict__.get("meta")
    if isinstance(meta, dict) and any(str(key).startswith("dynamo_") for key in meta):
        return True
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001
    calls = 0
    while frame is not None and calls < _CALLS_SEEN:
        name = frame.f_code.co_filename.replace(os.sep, "/")
        if any(part in name for part in _COMPILERS):
            return True
        calls += frame.f_code.co_name == "_wrapped_call_impl"
        frame = frame.f_back
    return False


def _wraps_compilers(module: nn.Module) -> bool:
    """Whether what a compiler's wrapper holds is its own: a graph split for DDP, or of a backward.

    The latter is what compiled autograd makes.
    """
    return type(module).__name__.startswith("CompiledAutograd") or any(
        type(child).__module__.startswith(_COMPILERS_OWN) for _, child in children(module)
    )


class Names:
    """The subjects of all modules seen, by ``id``; an entry goes when its module does.

    Keyed by ``id`` because a module may be unhashable; the weak reference's callback runs before
    the id can be used again. The callback is no Python: a module goes at any moment, and what a
    signal handler raises in a callback's Python is swallowed. Reading ``known`` needs no lock,
    naming takes one.

    Args:
        wanted: tells of a module's fqn, template and classes whether its calls are regions; all
            are if None.
        named: called with each module that is named.
    """

    def __init__(
        self,
        wanted: Callable[[str, str, tuple[str, str]], bool] | None = None,
        named: Callable[[nn.Module], None] | None = None,
    ) -> None:
        self._wanted = wanted
        self._named = named
        self.known: dict[int, Subject] = {}
        self._roots: dict[str, dict[int, weakref.ref[nn.Module]]] = {}
        self._lock = threading.RLock()

    def fqn(self, module: nn.Module) -> str | None:
        """The name of a module, or None if it was never seen."""
        subject = self.known.get(id(module))
        return subject.fqn if subject is not None else None

    def name(self, module: nn.Module, running: Region | None = None) -> Subject:
        """Name a module that is met for the first time, and everything below it.

        Args:
            module: the module that is called.
            running: the region it is called in, whose modules may turn out to own it.
        """
        with self._lock:
            subject = self.known.get(id(module))
            if subject is not None:
                return subject
            for region in running.chain() if running is not None else ():
                owner = region.subject.ref()
                if owner is not None and self._adopt(owner, region.subject, module):
                    return self.known[id(module)]
            return self._name_root(module)

    def _adopt(self, owner: object, subject: Subject, module: nn.Module) -> bool:
        """Look for `module` below `owner`, naming what was added there since; True if found."""
        if subject.misses < _MISSES_ALLOWED:
            self._name_tree(owner, subject)  # type: ignore[arg-type]
        else:
            for name, child in children(owner):  # type: ignore[arg-type]
                if child is module:
                    self._add_child(child, subject, name)
                    self._name_tree(child, self.known[id(child)])
        if id(module) in self.known:
            return True
        subject.misses += 1
        return False

    def _name_root(self, module: nn.Module) -> Subject:
        base, inner = type(module), module
        while True:  # a wrapped root is called what the innermost wrapped module is
            shown, _, child, _ = _class_facts(base)
            shown = _scripted(inner) or shown
            below = (inner.__dict__.get("_modules") or {}).get(child) if child else None
            if below is None:
                break
            inner, base = below, type(below)
        known = self.known.get(id(inner))
        if known is not None and inner is not module:  # wrapped after it was named
            fqn, target = known.fqn, known.target
        else:
            fqn = shown if _is_compilers(module) else self._root_name(shown, module)
            target = None
        subject = self._add(module, fqn, target)
        self._name_tree(module, subject)
        return subject

    def _root_name(self, shown: str, module: nn.Module) -> str:
        """The class name, with the lowest number that no other living root of the class has."""
        roots = self._roots.setdefault(shown, {})
        number = 1
        while (ref := roots.get(number)) is not None and ref() is not None:
            number += 1
        roots[number] = weakref.ref(module)
        return shown if number == 1 else f"{shown}#{number}"

    def _name_tree(self, root: nn.Module, subject: Subject) -> None:
        """Name everything below `root`; iterative, and each module once."""
        stack = [(root, subject)]
        seen = {id(root)}
        while stack:
            module, above = stack.pop()
            below = []
            for name, child in children(module):
                if id(child) in seen:
                    continue
                seen.add(id(child))
                if id(child) not in self.known:
                    self._add_child(child, above, name)
                below.append((child, self.known[id(child)]))
            stack.extend(reversed(below))

    def _add_child(self, child: nn.Module, above: Subject, name: str) -> None:
        owner = above.ref()
        wrapped = above.wrapper and name == _class_facts(type(owner))[2]
        if wrapped:  # DDP's "module": the same name, and one region with its wrapper
            self._add(child, above.fqn, above.target)
        else:
            self._add(child, f"{above.fqn}.{name}", None)

    def _add(self, module: nn.Module, fqn: str, target: object) -> Subject:
        shown, wrapper, child, plain = _class_facts(type(module))
        shown = _scripted(module) or shown
        innermost = module
        inner = (module.__dict__.get("_modules") or {}).get(child) if child else None
        while inner is not None:  # the type shown is that of the innermost wrapped module
            innermost = inner
            shown, _, child, _ = _class_facts(type(inner))
            inner = (inner.__dict__.get("_modules") or {}).get(child) if child else None
        key = id(module)
        subject = Subject(
            Kind.MODULE,
            fqn,
            template(fqn),
            shown,
            wrapper=wrapper,
            target=target,
            plain=plain and "forward" not in module.__dict__,
            compiled=wrapper == "OptimizedModule",
            hidden=_is_compilers(module)
            or _wraps_compilers(innermost)
            or not (self._wanted is None or self._wanted(fqn, template(fqn), (shown, wrapper))),
            ref=weakref.ref(module, functools.partial(self.known.pop, key)),
        )
        if self._named is not None:
            self._named(module)
        self.known[key] = subject
        return subject
