"""What torch's ModTracker promises, asked of ours, and of torch's where that passes as well."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.distributed._tools.mod_tracker import ModTracker as TorchModTracker
from torch.utils.checkpoint import checkpoint

from otel_modtrack import ModTracker

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.trace import TracerProvider

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])

both = pytest.mark.parametrize("tracker_class", [ModTracker, TorchModTracker])
ours = pytest.mark.parametrize("tracker_class", [ModTracker])


class Leaf(nn.Module):
    """Writes down what the tracker says in its forward, and in a tensor hook in its backward."""

    def __init__(self, name: str, seen: list[Any], tracker: Any) -> None:
        super().__init__()
        self.name, self.seen, self.tracker = name, seen, tracker

    def forward(self, x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        inside = x["value"]
        inside.relu_()
        self.note()
        inside.register_hook(lambda _: self.note())
        return {"value": inside.clone()}

    def note(self) -> None:
        self.seen.append((self.name, set(self.tracker.parents), self.tracker.is_bw))


class Hierarchy(nn.Module):
    """Leaves in a ModuleDict and a ModuleList, fed with dicts."""

    def __init__(self, seen: list[Any], tracker: Any) -> None:
        super().__init__()
        self.a = nn.ModuleDict({"first": Leaf("a.first", seen, tracker)})
        self.b = nn.ModuleDict({"nest": nn.ModuleList([Leaf("b.nest.0", seen, tracker)])})
        self.c = nn.ModuleList([Leaf("c.0", seen, tracker)])

    def forward(self, x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        x = self.a["first"](x)
        x = self.b["nest"][0](x)
        return self.c[0](x)


@both
def test_hierarchy(tracker_class: Callable[[], Any]) -> None:
    """Parents are the root and the leaf, in forward and, in reverse order, in backward."""
    tracker = tracker_class()
    seen: list[Any] = []
    model = Hierarchy(seen, tracker)
    leaves = ["a.first", "b.nest.0", "c.0"]
    for _ in range(2):
        seen.clear()
        with tracker:
            leaf = torch.randn(3, requires_grad=True)
            model({"value": leaf.clone()})["value"].sum().backward()
        want = [(name, {"Global", "Hierarchy", f"Hierarchy.{name}"}, False) for name in leaves]
        want += [
            (name, {"Global", "Hierarchy", f"Hierarchy.{name}"}, True) for name in reversed(leaves)
        ]
        assert seen == want


@both
def test_backward_detection(tracker_class: Callable[[], Any]) -> None:
    """After the backward, nothing runs any more."""
    model = nn.Linear(2, 2)
    with tracker_class() as tracker:
        model(torch.rand(2, 2)).sum().backward()
        assert not tracker.is_bw
        assert tracker.parents == {"Global"}


class Foo(nn.Module):
    """Hands its input on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu()


class Bar(nn.Module):
    """Shares its input with its child."""

    def __init__(self) -> None:
        super().__init__()
        self.foo = Foo()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.foo(x).sin()


class HookLog:
    """User hooks that write down their kind, the module's fqn, and what the tracker says."""

    def __init__(self, tracker: Any) -> None:
        self.tracker = tracker
        self.events: list[tuple[str, Any]] = []

    def hook(self, kind: str, *, backward: bool) -> Callable[..., None]:
        def note(module: nn.Module | None, *_: Any) -> None:
            fqn = self.tracker.get_known_fqn(module) if module is not None else None
            if fqn is not None:
                assert fqn in self.tracker.parents
            assert self.tracker.is_bw == backward
            self.events.append((kind, fqn))

        return note

    def register(self) -> None:
        self.tracker.register_user_hooks(
            self.hook("pre_fw", backward=False),
            self.hook("post_fw", backward=False),
            self.hook("pre_bw", backward=True),
            self.hook("post_bw", backward=True),
        )


BAR_EVENTS = [
    ("pre_fw", "Bar"),
    ("pre_fw", "Bar.foo"),
    ("post_fw", "Bar.foo"),
    ("post_fw", "Bar"),
    ("pre_bw", "Bar"),
    ("pre_bw", "Bar.foo"),
    ("post_bw", "Bar"),
    ("post_bw", "Bar.foo"),
]


@both
def test_user_hooks(tracker_class: Callable[[], Any]) -> None:
    """Hooks fire in order, with the fqn among the parents; a second `with` works; clearing too."""
    tracker = tracker_class()
    log = HookLog(tracker)
    log.register()
    model = Bar()
    for _ in range(2):
        log.events.clear()
        with tracker:
            model(torch.ones(5, requires_grad=True)).sum().backward()
        assert log.events == BAR_EVENTS
    with pytest.raises(AssertionError):
        tracker.register_user_hooks(pre_fw_hook=lambda *_: None)
    tracker.clear_user_hooks()
    log.events.clear()
    with tracker:
        model(torch.ones(5, requires_grad=True)).sum().backward()
    assert log.events == []
    tracker.register_user_hooks(pre_fw_hook=lambda *_: None)


@ours
def test_user_hooks_registered_inside(tracker_class: Callable[[], Any]) -> None:
    """Hooks registered while the tracker is on fire from then on, and stop when cleared."""
    model = Bar()
    with tracker_class() as tracker:
        model(torch.ones(5, requires_grad=True)).sum().backward()
        log = HookLog(tracker)
        log.register()
        model(torch.ones(5, requires_grad=True)).sum().backward()
        assert log.events == BAR_EVENTS
        tracker.clear_user_hooks()
        model(torch.ones(5, requires_grad=True)).sum().backward()
        assert log.events == BAR_EVENTS


@both
def test_user_hooks_get_values(tracker_class: Callable[[], Any]) -> None:
    """Hooks are given inputs, outputs and gradients, in the shape that torch gives them."""
    got: dict[str, Any] = {}
    tracker = tracker_class()
    tracker.register_user_hooks(
        lambda _, inputs: got.update(pre_fw=inputs),
        lambda _, inputs, outs: got.update(post_fw=(inputs, outs)),
        lambda _, grads: got.update(pre_bw=grads),
        lambda _, grads: got.update(post_bw=grads),
    )
    x = torch.ones(2, requires_grad=True)
    with tracker:
        out = Foo()(x)
        (out * 3).sum().backward()
    assert got["pre_fw"][0] is x
    assert got["post_fw"][0][0] is x
    assert got["post_fw"][1] is out
    assert torch.equal(got["pre_bw"][0], torch.full((2,), 3.0))
    assert torch.equal(got["post_bw"][0][0], torch.full((2,), 3.0))


@both
def test_module_deleted_before_backward(tracker_class: Callable[[], Any]) -> None:
    """Hooks of a module that is gone still fire, with None for it."""
    tracker = tracker_class()
    log = HookLog(tracker)
    with tracker:
        log.register()
        model: nn.Module | None = Bar()
        out = model(torch.ones(5, requires_grad=True))
        del model
        gc.collect()
        log.events.clear()
        out.sum().backward()
    assert log.events == [("pre_bw", None), ("pre_bw", None), ("post_bw", None), ("post_bw", None)]


class Checkpointed(nn.Module):
    """Two layers, the second checkpointed."""

    def __init__(self) -> None:
        super().__init__()
        self.l0 = nn.Linear(3, 3)
        self.l1 = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.l1, self.l0(x).relu(), use_reentrant=False).relu()


@pytest.mark.parametrize(
    "tracker_class",
    [
        ModTracker,
        pytest.param(
            TorchModTracker,
            marks=pytest.mark.skipif(
                TORCH < (2, 14), reason="older torch never fires the last two hooks"
            ),
        ),
    ],
)
def test_activation_checkpointing(tracker_class: Callable[[], Any]) -> None:
    """Recomputation calls the forward hooks inside the layer's backward."""
    tracker = tracker_class()
    events: list[tuple[str, str | None, bool]] = []

    def hook(kind: str) -> Callable[..., None]:
        return lambda module, *_: events.append(
            (kind, tracker.get_known_fqn(module), tracker.is_bw)
        )

    tracker.register_user_hooks(hook("pre_fw"), hook("post_fw"), hook("pre_bw"), hook("post_bw"))
    model = Checkpointed()
    with tracker:
        model(torch.randn(2, 3)).sum().backward()
    assert events == [
        ("pre_fw", "Checkpointed", False),
        ("pre_fw", "Checkpointed.l0", False),
        ("post_fw", "Checkpointed.l0", False),
        ("pre_fw", "Checkpointed.l1", False),
        ("post_fw", "Checkpointed.l1", False),
        ("post_fw", "Checkpointed", False),
        ("pre_bw", "Checkpointed", True),
        ("pre_bw", "Checkpointed.l1", True),
        ("pre_fw", "Checkpointed.l1", True),
        ("post_fw", "Checkpointed.l1", True),
        ("post_bw", "Checkpointed.l1", True),
        ("pre_bw", "Checkpointed.l0", True),
        ("post_bw", "Checkpointed.l0", True),
        ("post_bw", "Checkpointed", True),
    ]


class Recursive(nn.Module):
    """Calls itself."""

    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
        if depth:
            if self.checkpointed:
                return checkpoint(self, x, depth - 1, use_reentrant=False)
            return self(x, depth - 1)
        return self.inner(x)


@ours
@pytest.mark.parametrize("checkpointed", [False, True])
def test_module_that_calls_itself(tracker_class: Callable[[], Any], checkpointed: bool) -> None:
    """A confused hierarchy neither raises nor leaves anything running."""
    with tracker_class() as tracker:
        out = Recursive(checkpointed=checkpointed)(torch.randn(2, 3, requires_grad=True))
        out.sum().backward()
        assert tracker.parents == {"Global"}


@both
def test_known_fqn(tracker_class: Callable[[], Any]) -> None:
    """A module is unknown until its root is called, and then begins with the root's class."""
    model = Bar()
    with tracker_class() as tracker:
        assert tracker.get_known_fqn(model) is None
        model(torch.ones(1))
        assert tracker.get_known_fqn(model.foo) == "Bar.foo"
        assert tracker.get_known_fqn(nn.Linear(1, 1)) is None


@ours
def test_parents_is_a_set_of_its_own(tracker_class: Callable[[], Any]) -> None:
    """Changing what `parents` gave changes nothing."""
    with tracker_class() as tracker:
        tracker.parents.add("x")
        assert tracker.parents == {"Global"}
    assert tracker.parents == {"Global"}


def test_parents_with_a_provider(provider: TracerProvider) -> None:
    """The inherited interface says the same while spans are made."""
    tracker = ModTracker(tracer_provider=provider)
    seen: list[Any] = []
    model = Hierarchy(seen, tracker)
    with tracker:
        leaf = torch.randn(3, requires_grad=True)
        model({"value": leaf.clone()})["value"].sum().backward()
    assert [name for name, _, _ in seen] == [
        "a.first",
        "b.nest.0",
        "c.0",
        "c.0",
        "b.nest.0",
        "a.first",
    ]
    for name, parents, _ in seen:
        assert parents == {"Global", "Hierarchy", f"Hierarchy.{name}"}
