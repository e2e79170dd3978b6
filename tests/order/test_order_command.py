"""`otel-modtrack order`: the list, what is compared with what, and what is refused."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn

from otel_modtrack import ModTracker, Policy, region
from otel_modtrack.cli import main
from otel_modtrack.order import Call, Order
from otel_modtrack.order.show.arguments import Options
from otel_modtrack.order.show.command import order_files
from otel_modtrack.order.show.from_spans import read_part
from otel_modtrack.view.model import Event, build_trees
from otel_modtrack.view.reader import from_sdk
from tests.order.files import (
    Shown,
    StepSpans,
    changed,
    folded,
    order,
    refusal,
    write,
    write_run,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_modtrack.view.model import Span

PLAIN = ["N", "N.a", "N.moe", "N.moe.0", "N.head"]
OTHER = ["N", "N.a", "N.moe", "N.moe.1", "N.head"]


@pytest.fixture
def run(tmp_path: Path) -> str:
    """A file of steps 0 to 2 without ranks, each with a forward and a backward."""
    steps = [
        StepSpans(number).nest(*PLAIN).nest("N", "N.head", phase="backward") for number in range(3)
    ]
    return write(tmp_path / "run.jsonl", *steps)


@pytest.fixture
def ranks(tmp_path: Path) -> Callable[..., list[str]]:
    """Makes the files of ranks, of each rank's steps."""

    def make(*steps: list[list[str]]) -> list[str]:
        return [
            write_run(tmp_path / f"r{rank}.jsonl", of_rank, (rank, len(steps)))
            for rank, of_rank in enumerate(steps)
        ]

    return make


def part_of(spans: list[Span]) -> Any:
    """What is read from the spans of a step."""
    return read_part(build_trees(spans))


# -- from spans to orders --------------------------------------------------------------------------


def test_calls_are_in_the_order_of_their_index() -> None:
    """Whatever the clocks say; named regions and other spans between them do not count."""
    step = StepSpans(7)
    head = step.call("N.head", index=2)
    root = step.call("N", index=0)
    named = step.add(
        "forward loss",
        root,
        **{
            "modtrack.phase": "forward",
            "modtrack.module.fqn": "loss",
            "modtrack.module.type": "region",
        },
    )
    step.call("N.a", step.add("mine", named), index=1)
    step.call("N.head", step.add("backward"), "backward")
    step.call("N.a", head, "recompute")
    found = part_of(step.spans)
    assert found.order.forward == [Call("N"), Call("N.a", 0), Call("N.head")]
    assert found.order.backward == [Call("N.head")]
    assert found.order.recompute == [Call("N.a")]  # it is in a forward, and in no recomputation
    assert (found.order.step, found.order.rank, found.by_time) == (7, None, False)


def test_folded_calls_are_unknown_and_where_they_were() -> None:
    """In the call that stands for them, or after it in one around; also the last of all."""
    step = StepSpans()
    root = step.call("N")
    one = step.call("N.a", root)
    step.tell(folded(2), one)
    two = step.call("N.b", root, index=5)
    step.tell(folded(1), two)
    step.tell(folded(2), root)  # one between N.a and N.b, one at the end
    step.tell(folded(3, **{"modtrack.module.type": "region"}), root)
    step.tell(folded(4, "backward"), None)
    found = part_of(step.spans)
    assert found.order.forward == [
        Call("N"),
        Call("N.a", 0),
        Call("", 1),
        Call("", 1),
        Call("", 0),
        Call("N.b", 0),
        Call("", 5),
        Call("", 0),
    ]
    assert found.order.backward == [Call("")] * 4


def test_folded_calls_of_many_kinds_may_be_anywhere() -> None:
    """What is not known to be there differs from nothing, so there are rather too many."""
    found = part_of(StepSpans().nest("N").tell(folded(2, None)).spans)
    assert found.order.forward == [Call("N"), Call(""), Call("")]
    assert found.order.backward == [Call("")] * 2


def test_each_outermost_call_without_a_step_counts_by_itself() -> None:
    """A request that calls a model several times; what goes on with a count is put to it."""
    spans = StepSpans(None)
    request = spans.add("request", "")
    for _ in range(3):
        root = spans.call("N", request, index=0)
        spans.call("N.a", root)
    spans.call("N.late", request)
    found = part_of(spans.spans).order
    fqns = ["N", "N.a", "N", "N.a", "N", "N.a", "N.late"]
    assert found.module_forward_fqns == fqns
    assert [call.parent for call in found.forward] == [None, 0, None, 2, None, 4, None]


def test_an_evaluation_in_a_step_is_none_of_its_calls() -> None:
    """It has an order of its own, and is one if it is what was chosen."""
    step = StepSpans().nest("N", "N.a")
    step.call("N", step.add("evaluation"), index=0)
    assert part_of(step.spans).order.module_forward_fqns == ["N", "N.a"]
    alone = StepSpans(None)
    alone.call("N", alone.add("evaluation", ""))
    assert part_of(alone.spans).order.module_forward_fqns == ["N"]


def test_what_was_compiled_is_not_looked_into() -> None:
    """If it has no calls of its own."""
    compiled = {"modtrack.compiled": True}
    step = StepSpans()
    root = step.call("N", **compiled)
    step.call("N.a", root, **compiled)
    assert part_of(step.spans).order.forward == [Call("N"), Call("N.a", 0, leaf=True)]


@pytest.mark.parametrize("bad", [-1, 10**18, "3", 0])
def test_malformed_indices_are_as_none(bad: object) -> None:
    """Below zero, too many, no number, twice: then the clocks tell."""
    step = StepSpans()
    root = step.call("N")
    step.call("N.a", root)
    told = {**step.spans[-1].attributes, "modtrack.order.index": bad}
    step.spans[-1] = replace(step.spans[-1], attributes=told)
    found = part_of(step.spans)
    assert found.order.forward == [Call("N"), Call("N.a", 0)]
    assert found.by_time


def test_absurd_counts_of_folded_calls_take_no_memory() -> None:
    """A malformed file is read by its clocks."""
    found = part_of(StepSpans().nest("N").tell(folded(10**15)).spans)
    assert found.order.forward == [Call("N")]


class Net(nn.Module):
    """A stack of two layers, called twice in a step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(2)])
        self.head = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        with region("loss"):
            return self.head(x).sum()


@pytest.mark.parametrize("policy", [None, Policy(budget=8), Policy(budget=3)])
def test_spans_of_a_real_step_give_the_recorded_order(policy: Policy | None) -> None:
    """The same calls in the same calls; of those that a policy folded, as many unknown ones."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    model = Net()
    with ModTracker(model, tracer_provider=provider, policy=policy) as tracker:
        with tracker.step(4), tracker.record_order():
            (model(torch.ones(1, 2, requires_grad=True)) + model(torch.ones(1, 2))).backward()
        recorded = tracker.execution_order
    provider.shutdown()
    part = part_of(from_sdk(exporter.get_finished_spans()))
    assert part.order.step == 4
    assert not part.by_time
    for phase in ("forward", "recompute", "backward"):
        expected, found = getattr(recorded, phase), getattr(part.order, phase)
        assert expected
        assert len(found) == len(expected)
        for wanted, call in zip(expected, found, strict=True):
            assert call in (wanted, Call("", call.parent))
        known = sum(bool(call.fqn) for call in found)
        assert known == len(found) if policy is None else known < len(found)
    assert part.order.diff(recorded) is None


# -- the list --------------------------------------------------------------------------------------


def test_the_last_step_is_listed(run: str, capsys: Shown) -> None:
    """Numbered and indented, phase by phase, forward first."""
    assert order(capsys, run).splitlines() == [
        "Step 2 of trainer: 5 forward calls, 2 backward",
        "",
        "forward",
        "  0  N",
        "  1    N.a",
        "  2    N.moe",
        "  3      N.moe.0",
        "  4    N.head",
        "",
        "backward",
        "  0  N",
        "  1    N.head",
    ]


def test_step_trace_phase_and_depth_are_chosen(run: str, capsys: Shown) -> None:
    """As in `view`."""
    assert order(capsys, run, "--step", "1").startswith("Step 1 of trainer: ")
    assert order(capsys, run, "--trace", "xt0").startswith("Step 0 of trainer: ")
    assert order(capsys, run, "--phase", "backward").splitlines() == [
        "Step 2 of trainer: 2 backward calls",
        "",
        "backward",
        "  0  N",
        "  1    N.head",
    ]
    found = order(capsys, run, "--depth", "2", "--phase", "forward")
    assert "\n  2    N.moe (+1 below)\n  4    N.head\n" in found
    assert "N.moe.0" not in found


def test_modules_are_chosen_and_keep_their_numbers(run: str, capsys: Shown) -> None:
    """With what they are in, and what is in them."""
    assert order(capsys, run, "--module", "moe").splitlines() == [
        "Step 2 of trainer: 5 forward calls, 2 backward",
        "2 calls fit --module moe, and what they are in is shown",
        "",
        "forward",
        "  0  N",
        "  2    N.moe",
        "  3      N.moe.0",
    ]
    assert refusal(capsys, run, "--module", "mop") == (
        "no module fits mop: the modules there are N, N.a, N.moe, N.moe.*, N.head"
    )


def test_ranks_are_listed_one_after_the_other(
    ranks: Callable[..., list[str]], capsys: Shown
) -> None:
    """The last step that all of them have."""
    found = order(capsys, *ranks([PLAIN, PLAIN, PLAIN], [PLAIN, OTHER]))
    heads = [line for line in found.splitlines() if line.startswith("Step")]
    assert heads == [
        "Step 1 of trainer, rank 0 of 2: 5 forward calls",
        "Step 1 of trainer, rank 1 of 2: 5 forward calls",
    ]


def test_ranks_below_a_launcher_are_told_apart(tmp_path: Path, capsys: Shown) -> None:
    """They are in its trace."""
    launcher = StepSpans(None)
    launcher.trace = "shared"
    top = launcher.add("launch", "")
    workers = []
    for rank in (0, 1):
        worker = StepSpans(None, (rank, 2))
        worker.trace = "shared"
        worker.spans += launcher.spans  # so that ids differ
        root = worker.call(f"N{rank}", top)
        worker.call(f"N{rank}.a", root)
        worker.spans = [
            replace(
                span,
                span_id=f"{rank}{span.span_id}",
                parent_id=top if span.parent_id == top else f"{rank}{span.parent_id}",
            )
            for span in worker.spans[1:]
        ]
        workers.append(worker)
    path = write(tmp_path / "all.jsonl", launcher, *workers)
    for arguments in ((path,), (path, "--trace", "shared")):
        found = order(capsys, *arguments)
        assert "rank 0 of 2: 2 forward calls\n\nforward\n  0  N0\n  1    N0.a\n" in found
        assert "rank 1 of 2: 2 forward calls\n\nforward\n  0  N1\n  1    N1.a\n" in found


def test_what_the_step_says_of_its_order_is_told(tmp_path: Path, capsys: Shown) -> None:
    """In a sentence each; and the position that changed is marked."""
    step = StepSpans().nest(*OTHER).tell(changed("forward", 3, "N.moe.1", "N.moe.0"))
    step.tell(
        Event("modtrack.order_diverged", attributes={"modtrack.order.report": "rank 0: a\nrank 1"})
    )
    found = order(capsys, write(tmp_path / "a.jsonl", step))
    assert found.startswith(
        "Step 0 of trainer: 5 forward calls, order changed at forward 3\n"
        "Its forward call 3 is N.moe.1; in the step recorded before, it was N.moe.0\n"
        "Rank 0: a\nrank 1\n\n"
    )
    assert "\n  2    N.moe\n> 3      N.moe.1\n  4" in found
    longer = StepSpans().nest("N").tell(changed("forward", 0, "N", None))
    assert "Its forward call 0 is N; in the step recorded before, it was none\n" in order(
        capsys, write(tmp_path / "b.jsonl", longer)
    )
    shorter = StepSpans().nest("N").tell(changed("forward", 1, None, "N.a"))
    assert "call 1 is none any more; in the step recorded before, it was N.a\n" in order(
        capsys, write(tmp_path / "c.jsonl", shorter)
    )


def test_calls_that_repeat_are_listed_once(tmp_path: Path, capsys: Shown) -> None:
    """If they are alike in all that is in them, and nothing is between them."""
    step = StepSpans()
    for fqns in [["N", "N.a"]] * 300 + [["N", "N.b"]] + [["M"]] * 2 + [["N", "N.a"]]:
        step.nest(*fqns)
    path = write(tmp_path / "decode.jsonl", step)
    assert order(capsys, path).splitlines()[2:] == [
        "forward",
        "    0  N x 300",
        "    1    N.a",
        "  600  N",
        "  601    N.b",
        "  602  M x 2",
        "  604  N",
        "  605    N.a",
    ]
    assert "    0  N (+1 below) x 300\n" in order(capsys, path, "--depth", "1")
    assert order(capsys, path, "--module", "N").splitlines()[-2:] == ["  604  N", "  605    N.a"]


def test_folded_calls_are_listed_as_such(tmp_path: Path, capsys: Shown) -> None:
    """Those that stand together in one line."""
    step = StepSpans()
    root = step.call("N")
    step.call("N.z", root, index=4)
    step.tell(folded(4), root)
    assert order(capsys, write(tmp_path / "a.jsonl", step)).splitlines() == [
        "Step 0 of trainer: 6 forward calls, 4 of them folded",
        "",
        "forward",
        "  0  N",
        "  1    ... 3 calls folded",
        "  4    N.z",
        "  5    ... 1 call folded",
    ]
    nothing = StepSpans().tell(folded(2))
    assert "2 forward calls, all of them folded" in order(
        capsys, write(tmp_path / "b.jsonl", nothing)
    )


def test_deep_models_are_listed_without_recursion(tmp_path: Path, capsys: Shown) -> None:
    """Below 41 levels the lines have the number of theirs."""
    step = StepSpans()
    above = None
    for level in range(1, 1101):
        above = step.call(f"N{level}", above)
    lines = order(capsys, write(tmp_path / "a.jsonl", step)).splitlines()
    assert lines[3 + 40] == f"    40  {'  ' * 40}N41"
    assert lines[-1] == f"  1099  {'  ' * 40}(level 1,100) N1100"


def test_files_without_indices_are_read_by_their_clocks(tmp_path: Path, capsys: Shown) -> None:
    """And it is said once."""
    old = [StepSpans(number, (0, 1), indexed=False).nest(*PLAIN) for number in range(2)]
    path = write(tmp_path / "old.jsonl", *old)
    says = f"the module calls in {path} have no modtrack.order.index, as in older files: they are"
    assert "\n  3      N.moe.0\n" in order(capsys, path, says=says)
    new = write_run(tmp_path / "new.jsonl", [PLAIN, OTHER], (0, 1))
    order(capsys, path, "--diff", new, code=1, says=says)


def test_compressed_and_unfinished_files_are_read(run: str, tmp_path: Path, capsys: Shown) -> None:
    """As by `view`; what is skipped is said on stderr."""
    packed = tmp_path / "run.jsonl.gz"
    with open(run, "rb") as file:  # noqa: PTH123
        packed.write_bytes(gzip.compress(file.read()))
    assert order(capsys, str(packed)) == order(capsys, run)
    with open(run, "a") as file:  # noqa: PTH123
        file.write('{"resourceSpans"')
    says = f"skipped what could not be read in {run}, line 25: incomplete"
    assert order(capsys, run, says=says).startswith("Step 2")


def test_a_file_gives_the_terminal_no_commands(tmp_path: Path, capsys: Shown) -> None:
    """Names are what the file says, and it may say anything."""
    bad = "N.\033[31m"
    step = StepSpans().nest("N", bad).tell(changed("forward", 1, bad, bad))
    step.tell(Event("modtrack.order_diverged", attributes={"modtrack.order.report": bad}))
    path = write(tmp_path / "a.jsonl", step)
    other = write(tmp_path / "b.jsonl", StepSpans().nest("N", f"{bad}x"))
    saved = tmp_path / "o.json"
    Order(bad, forward=[Call(bad)], parameters=[bad]).save(saved)
    for arguments, code in (([path, str(saved)], 0), ([path, "--diff", other], 1)):
        assert "\033" not in order(capsys, *arguments, code=code)


def test_an_order_that_was_saved_is_listed(run: str, tmp_path: Path, capsys: Shown) -> None:
    """With its parameters, and beside trace files."""
    path = tmp_path / "sym.json"
    Order("symbolic", forward=[Call("N"), Call("N.a", 0)], parameters=["N.w", "N.a.w"]).save(path)
    assert order(capsys, str(path)).splitlines() == [
        f"Order symbolic of {path}: 2 forward calls, 2 parameters",
        "",
        "forward",
        "  0  N",
        "  1    N.a",
        "",
        "parameters",
        "  0  N.w",
        "  1  N.a.w",
    ]
    both = order(capsys, run, str(path), "--module", "a")
    assert f"Order symbolic of {path}: 2 forward calls, 2 parameters\n1 call fits" in both
    assert "\nparameters\n" not in both.partition("1 call fits")[2]


def test_a_list_as_a_document(
    run: str, ranks: Callable[..., list[str]], tmp_path: Path, capsys: Shown
) -> None:
    """Each order of it is one that can be read again."""
    files = ranks([PLAIN], [OTHER])
    found = json.loads(order(capsys, *files, "--json"))
    assert {key: found[key] for key in ("order", "version", "files", "skipped")} == {
        "order": "list",
        "version": 1,
        "files": files,
        "skipped": [],
    }
    one, two = found["orders"]
    assert (one["name"], one["step"], one["rank"], one["world_size"]) == ("rank 0", 0, 0, 2)
    assert (two["name"], two["file"], two["changed"], two["diverged"]) == (
        "rank 1",
        files[1],
        None,
        None,
    )
    again = tmp_path / "again.json"
    again.write_text(json.dumps(two, indent=2))
    assert (
        order(capsys, str(again), "--phase", "forward").splitlines()[2:]
        == order(capsys, files[1], "--phase", "forward").splitlines()[2:]
    )
    assert json.loads(order(capsys, run, "--json"))["orders"][0]["name"] == "step 2"
    assert json.loads(order(capsys, str(again), "--json"))["orders"][0]["name"] == "rank 1"
    step = StepSpans().nest(*OTHER).tell(changed("forward", 3, "N.moe.1", None))
    path = write(tmp_path / "c.jsonl", step)
    assert json.loads(order(capsys, path, "--json"))["orders"][0]["changed"] == {
        "sequence": "forward",
        "position": 3,
        "fqn": "N.moe.1",
        "previous_fqn": None,
    }


# -- ranks -----------------------------------------------------------------------------------------


def test_ranks_that_agree(ranks: Callable[..., list[str]], capsys: Shown) -> None:
    """In every step, or in the chosen one; the sentence says in what."""
    files = ranks([PLAIN, OTHER, PLAIN[:3]], [PLAIN, OTHER, PLAIN[:3]])
    assert order(capsys, *files, "--diff") == (
        "ranks 0 and 1 agree in steps 0 to 2: 3 to 5 forward calls\n"
    )
    assert order(capsys, *files, "--diff", "--step", "1") == (
        "ranks 0 and 1 agree in step 1: 5 forward calls\n"
    )


def test_the_first_step_that_differs(ranks: Callable[..., list[str]], capsys: Shown) -> None:
    """With those that went the same way together."""
    files = ranks([PLAIN, PLAIN, PLAIN], [PLAIN, OTHER, PLAIN], [PLAIN, PLAIN, OTHER])
    assert order(capsys, *files, "--diff", code=1).splitlines() == [
        "ranks 0 to 2 agree in step 0 and differ in step 1:",
        "",
        (
            "the forward differs at position 3, in N.moe, after N.moe: "
            "rank 0, rank 2: N.moe.0; rank 1: N.moe.1"
        ),
        "",
        "     rank 0, rank 2  rank 1",
        "  0  N               =",
        "  1  N.a             =",
        "  2  N.moe           =",
        "> 3  N.moe.0         N.moe.1",
        "  4  N.head          N.head",
    ]
    chosen = order(capsys, *files, "--diff", "--step", "2", code=1)
    assert chosen.startswith("ranks 0 to 2 differ in step 2:\n")
    assert "rank 0, rank 1: N.moe.0; rank 2: N.moe.1" in chosen
    assert order(capsys, *files, "--diff", "--phase", "backward", code=2, says="no module") == ""


def test_a_rank_that_ends_before_others(ranks: Callable[..., list[str]], capsys: Shown) -> None:
    """It may hang: that is a difference, also where all steps agree."""
    files = ranks([PLAIN] * 4, [PLAIN] * 2, [PLAIN] * 4)
    ends = (
        "rank 1 ends after step 1, where others go on to step 3: "
        "it may hang, have ended, or not have written more yet\n"
    )
    assert order(capsys, *files, "--diff", code=1) == (
        f"ranks 0 to 2 agree in steps 0 to 3: 5 forward calls\n\n{ends}"
    )
    assert order(capsys, *files[:2], "--diff", "--step", "3", code=1) == ends
    more = ranks([PLAIN] * 4, [PLAIN] * 2, [PLAIN] * 2)
    assert order(capsys, *more, "--diff", "--step", "2", code=1).startswith(
        "ranks 1 and 2 end after step 1, where others go on to step 2: they may hang, "
    )
    assert order(capsys, *more, "--diff", "--step", "1") == (
        "ranks 0 to 2 agree in step 1: 5 forward calls\n"
    )


def test_a_rank_without_any_step(tmp_path: Path, capsys: Shown) -> None:
    """It was killed in its first, or has evaluated only."""
    files = [
        write(tmp_path / f"r{rank}.jsonl", StepSpans(number, (rank, 3)).nest(*PLAIN))
        for rank, number in enumerate([0, None, 0])
    ]
    assert order(capsys, *files, "--diff", code=1) == (
        "ranks 0 to 2 agree in step 0: 5 forward calls\n\nrank 1 has no step at all\n"
    )


def test_steps_that_a_rank_lacks_in_between(tmp_path: Path, capsys: Shown) -> None:
    """They were not recorded: that is told, and is no difference."""
    files = [
        write(
            tmp_path / f"r{rank}.jsonl",
            *(StepSpans(number, (rank, 2)).nest(*PLAIN) for number in numbers),
        )
        for rank, numbers in enumerate([range(6), (2, 5)])
    ]
    assert order(capsys, *files, "--diff") == (
        "ranks 0 and 1 agree in steps 2 and 5: 5 forward calls\n\n"
        "rank 1 lacks steps 0, 1, 3 and 4, which others have\n"
    )
    assert refusal(capsys, *files, "--diff", "--step", "3").startswith("no two ranks of ")
    lone = write(tmp_path / "r1.jsonl", StepSpans(9, (1, 2)).nest(*PLAIN))
    assert refusal(capsys, files[0], lone, "--diff") == (
        f"no two ranks of {files[0]}, {lone} have a step in common; give files of one run"
    )


def test_traces_of_ranks_without_steps_are_compared_one_by_one(
    tmp_path: Path, capsys: Shown
) -> None:
    """The first of each with the first of the others, and so on."""
    files = []
    for rank in (0, 1):
        traces = []
        for number, fqns in enumerate([PLAIN, OTHER if rank else PLAIN]):
            spans = StepSpans(None, (rank, 2))
            spans.trace = f"{rank}u{number}"
            spans.nest(*fqns)
            spans.spans = [
                replace(
                    span,
                    start_ns=span.start_ns + number * 10**12,
                    end_ns=span.end_ns + number * 10**12,
                )
                for span in spans.spans
            ]
            traces.append(spans)
        files.append(write(tmp_path / f"r{rank}.jsonl", *traces))
    found = order(capsys, *files, "--diff", code=1)
    assert found.startswith("ranks 0 and 1 agree in trace 0 and differ in trace 1:\n")


def test_folded_calls_are_not_compared(tmp_path: Path, capsys: Shown) -> None:
    """And it is said how many there are."""
    files = []
    for rank in (0, 1):
        step = StepSpans(0, (rank, 2))
        root = step.call("N")
        if rank:
            step.call("N.a", root)
        else:
            step.tell(folded(1), root)
        files.append(write(tmp_path / f"r{rank}.jsonl", step))
    assert order(capsys, *files, "--diff") == (
        "ranks 0 and 1 agree in step 0: 2 forward calls; 1 folded call is not compared\n"
    )


def test_orders_of_ranks_that_were_saved(tmp_path: Path, capsys: Shown) -> None:
    """As `ModTracker.record_order` makes them on each rank."""
    files = []
    for rank, fqn in enumerate(["N", "N", "M"]):
        path = tmp_path / f"o{rank}.json"
        Order(f"rank {rank}", forward=[Call(fqn)], rank=rank).save(path)
        files.append(str(path))
    assert order(capsys, *files[:2], "--diff") == "rank 0 and rank 1 agree: 1 forward call\n"
    found = order(capsys, *files, "--diff", code=1)
    assert found.startswith(
        "rank 0, rank 1 and rank 2 differ:\n\nthe forward differs at position 0"
    )


def test_ranks_as_a_document(ranks: Callable[..., list[str]], capsys: Shown) -> None:
    """What is said, for scripts."""
    files = ranks([PLAIN, PLAIN, PLAIN], [PLAIN, OTHER])
    found = json.loads(order(capsys, *files, "--diff", "--json", code=1))
    (difference,) = found.pop("differences")
    assert found == {
        "order": "ranks",
        "version": 1,
        "files": files,
        "skipped": [],
        "agree": False,
        "unit": "step",
        "ranks": [0, 1],
        "equal": [0],
        "differs_in": 1,
        "missing": [{"rank": 1, "last": 1, "ends": True, "lacks": [2]}],
    }
    assert (difference["step"], difference["rank"], difference["position"]) == (1, None, 3)
    assert difference["sentence"].startswith("the forward differs at position 3")
    assert [side["names"] for side in difference["sides"]] == [["rank 0"], ["rank 1"]]


# -- files and steps -------------------------------------------------------------------------------


def test_two_files(tmp_path: Path, capsys: Shown) -> None:
    """The last step of each; names have the step where that differs, too."""
    before = write_run(tmp_path / "before.jsonl", [PLAIN, PLAIN], None)
    after = write_run(tmp_path / "after.jsonl", [PLAIN, OTHER, PLAIN], None)
    assert order(capsys, before, "--diff", after) == (
        "before.jsonl step 1 and after.jsonl step 2 agree: 5 forward calls\n"
    )
    assert order(capsys, before, "--step", "0", "--diff", after) == (
        "before.jsonl and after.jsonl agree in step 0: 5 forward calls\n"
    )
    found = order(capsys, before, "--step", "1", "--diff", after, code=1)
    assert found.startswith("before.jsonl and after.jsonl differ in step 1:\n\nthe forward differs")
    document = json.loads(order(capsys, before, "--diff", after, "--json"))
    assert (document["order"], document["other_files"]) == ("files", [after])
    assert (document["agree"], document["differences"], document["ranks"]) == (True, [], [])


def test_files_of_one_name_are_called_by_their_folders(tmp_path: Path, capsys: Shown) -> None:
    """A name tells them apart."""
    names = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        names.append(write_run(tmp_path / folder / "run.jsonl", [PLAIN], None))
    assert order(capsys, names[0], "--diff", names[1]).startswith(f"{names[0]} and {names[1]} ")


def test_ranks_of_two_runs_are_compared_one_by_one(
    ranks: Callable[..., list[str]], tmp_path: Path, capsys: Shown
) -> None:
    """Those that came out alike are told together; what only one run has is said."""
    files = ranks([PLAIN], [PLAIN], [PLAIN], [PLAIN])
    later = [
        write_run(tmp_path / f"later{rank}.jsonl", [fqns], (rank, 3))
        for rank, fqns in enumerate([PLAIN, OTHER, OTHER])
    ]
    found = order(capsys, *files, "--diff", *later, code=1)
    assert found.startswith(
        "rank 0: r0.jsonl and later0.jsonl agree in step 0: 5 forward calls\n\n"
        "ranks 1 and 2: r1.jsonl and later1.jsonl differ in step 0:\n\n"
    )
    assert found.count("the forward differs") == 1
    assert found.endswith(f"\n\nrank 3 is in {', '.join(files[:3])} and 1 more alone\n")
    assert order(capsys, *files, "--rank", "0", "--diff", *later).startswith("r0.jsonl and later0")
    document = json.loads(order(capsys, *files, "--diff", *later, "--json", code=1))
    assert document["ranks"] == [0, 1, 2]
    assert [one["rank"] for one in document["differences"]] == [1, 2]
    assert order(capsys, files[0], "--diff", later[2], code=1).startswith(
        "r0.jsonl and later2.jsonl differ in step 0:"
    )
    assert refusal(capsys, *files[:2], "--diff", later[2]) == (
        f"{files[0]}, {files[1]} and {later[2]} have no rank in common; "
        "choose files of the same ranks"
    )


def test_a_symbolic_order_is_compared_with_every_rank(
    ranks: Callable[..., list[str]], tmp_path: Path, capsys: Shown
) -> None:
    """On either side; what it did not look into is passed over."""
    symbolic = tmp_path / "symbolic.json"
    calls = [Call("N"), Call("N.a", 0), Call("N.moe", 0, leaf=True), Call("N.head", 0)]
    Order("symbolic", forward=calls, parameters=["N.a.w"]).save(symbolic)
    files = ranks([PLAIN], [OTHER])
    agrees = "r0.jsonl, r1.jsonl and symbolic.json agree in step 0: 4 forward calls\n"
    assert order(capsys, *files, "--diff", str(symbolic)) == agrees
    assert order(capsys, str(symbolic), "--step", "0", "--diff", *files) == (
        "symbolic.json, r0.jsonl and r1.jsonl agree in step 0: 4 forward calls\n"
    )
    both = write(
        tmp_path / "both.jsonl",
        *(StepSpans(0, (rank, 2)).nest("N", "N.b") for rank in (0, 1)),
    )
    found = order(capsys, both, "--diff", str(symbolic), code=1)
    assert "both.jsonl rank 0, both.jsonl rank 1: N.b; symbolic.json: N.a" in found
    assert refusal(capsys, both, "--diff", str(symbolic), "--phase", "backward") == (
        "both.jsonl rank 0, both.jsonl rank 1 and symbolic.json have nothing in common that could "
        "be compared; give other orders, or other phases"
    )


def test_a_trace_is_compared_with_an_order(run: str, tmp_path: Path, capsys: Shown) -> None:
    """But not with trace files: there it is not."""
    path = tmp_path / "o.json"
    Order("o", forward=[Call("N")]).save(path)
    found = order(capsys, run, "--trace", "xt1", "--diff", str(path), code=1)
    assert found.startswith("run.jsonl and o.json differ in step 1:")
    assert refusal(capsys, run, "--trace", "xt1", "--diff", run).startswith("--trace does nothing")


def test_two_steps(ranks: Callable[..., list[str]], capsys: Shown) -> None:
    """Of the same files, rank by rank."""
    files = ranks([PLAIN, OTHER, PLAIN], [PLAIN, OTHER, PLAIN])
    found = order(capsys, *files, "--diff-step", "1", code=1)
    assert found.startswith("ranks 0 and 1: step 2 and step 1 differ:\n\nthe forward differs at")
    assert "step 2: N.moe.0; step 1: N.moe.1\n" in found
    assert order(capsys, *files, "--step", "0", "--diff-step", "2", "--rank", "1") == (
        "step 0 and step 2 agree: 5 forward calls\n"
    )
    document = json.loads(order(capsys, *files, "--diff-step", "1", "--json", code=1))
    assert (document["order"], document["ranks"]) == ("steps", [0, 1])
    assert [one["step"] for one in document["differences"]] == [None, None]
    assert refusal(capsys, *files, "--diff-step", "2").startswith("step 2 is compared with itself")
    assert "the steps run from 0 to 2" in refusal(capsys, *files, "--diff-step", "7")


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--step", "9"], "there is no step 9 in {run}: the steps run from 0 to 2"),
        (["--rank", "1"], "there is no rank 1 in {run}: no span tells its rank"),
        (["--phase", "recompute"], "there is no recompute in step 2 in {run}: the phases there"),
        (["--diff"], "--diff without OTHER compares ranks, and {run} has no spans that tell a"),
        (["--diff", "--rank", "1"], "--rank leaves one rank alone, and --diff without OTHER"),
        (["--diff", "--diff-step", "1"], "--diff-step compares two steps, and --diff ranks or"),
        (["--step", "1", "--diff-step", "1"], "--step 1 and --diff-step 1 are the same step"),
        (["--diff", "--trace", "x"], "--trace does nothing with --diff; leave one of them out"),
        (["--diff-step", "1", "--trace", "x"], "--trace does nothing with --diff-step; leave one"),
        (["--diff", "{run}", "--module", "a"], "--module does nothing with --diff; leave one of"),
        (["--json", "--depth", "1"], "--depth does nothing with --json; leave one of them out"),
        (["--diff", "none.jsonl"], "cannot read none.jsonl: No such file or directory; give"),
        (["{saved}", "--diff-step", "1"], "--diff-step compares steps, and {saved} is one order"),
        (["{saved}", "--diff"], "--diff without OTHER compares ranks, and {saved} is one order"),
        (["-", "--diff", "-"], "stdin can be read once only; give - once"),
    ],
)
def test_what_cannot_be_used_is_named(
    arguments: list[str], says: str, run: str, tmp_path: Path, capsys: Shown
) -> None:
    """In one sentence, with exit code 2."""
    saved = tmp_path / "o.json"
    Order("o", forward=[Call("N")]).save(saved)
    names = {"run": run, "saved": str(saved)}
    found = refusal(capsys, run, *(one.format(**names) for one in arguments))
    assert found.startswith(says.format(**names))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "the following arguments are required: FILE"),
        (["--diff", "f"], "the following arguments are required: FILE"),
        (["f", "--phase", "optimizer"], "argument --phase: invalid choice: 'optimizer'"),
        (["f", "--diff-step", "-1"], "argument --diff-step: '-1' is not a whole number of 0 or"),
    ],
)
def test_bad_options_get_one_line(arguments: list[str], says: str, capsys: Shown) -> None:
    """As those of the other commands."""
    with pytest.raises(SystemExit) as caught:
        main(["order", *arguments])
    shown = capsys.readouterr()
    assert (caught.value.code, shown.out, shown.err.count("\n")) == (2, "", 1)
    assert says in shown.err


def test_help(capsys: Shown) -> None:
    """It tells every option."""
    with pytest.raises(SystemExit):
        main(["order", "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith("usage: otel-modtrack order FILE [FILE ...] [options]")
    for option in (
        "step",
        "trace",
        "rank",
        "phase",
        "module",
        "depth",
        "diff",
        "diff-step",
        "json",
    ):
        assert f"--{option}" in shown


@pytest.mark.parametrize("option", ["--step", "--rank", "--trace"])
def test_an_order_that_was_saved_is_one(option: str, tmp_path: Path, capsys: Shown) -> None:
    """There is nothing to choose, and nothing to compare it with."""
    path = tmp_path / "o.json"
    Order("o", forward=[Call("N")]).save(path)
    assert refusal(capsys, str(path), option, "1") == (
        f"{option} does nothing here, for {path} is one order; leave it out"
    )


def test_files_of_something_else(
    tmp_path: Path, ranks: Callable[..., list[str]], capsys: Shown
) -> None:
    """Torn orders, other JSON, spans that are no module's, one rank alone."""
    torn = tmp_path / "torn.json"
    torn.write_text('{"modtrack_order": 1, "forward": [["N"')
    assert refusal(capsys, str(torn)).startswith(f"{torn} is no order: ")
    other = tmp_path / "other.json"
    other.write_text('{"a": "modtrack_order"}\n')
    assert refusal(capsys, str(other)).startswith(f"{other} is not a file of OTLP JSON lines")
    foreign = StepSpans(None)
    foreign.add("GET /", "")
    path = write(tmp_path / "foreign.jsonl", foreign)
    assert refusal(capsys, path) == (
        f"no span of trace xtnone in {path} is a module's; give a file that a tracker wrote, or "
        "another --step"
    )
    assert refusal(capsys, path, "--diff", path).startswith("no module calls of ")
    (lone,) = ranks([PLAIN])
    assert "has spans of rank 0 alone; give the files of all ranks" in refusal(
        capsys, lone, "--diff"
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk(run: str, capsys: Shown) -> None:
    """Is told in a sentence."""
    with open("/dev/full", "w") as full:  # noqa: PTH123 - as a shell's >
        with redirect_stdout(full):
            assert main(["order", run]) == 2
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # so that it can be closed
    assert "cannot write to stdout: No space left on device" in capsys.readouterr().err


def test_it_needs_neither_torch_nor_opentelemetry(run: str) -> None:
    """Comparing files does not wait for libraries that it does not need."""
    script = (
        "import sys; from otel_modtrack.cli import main; "
        f"main(['order', {run!r}, '--diff', {run!r}]); "
        "sys.exit(str([m for m in ('torch', 'opentelemetry', 'tqdm') if m in sys.modules] or ''))"
    )
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == ""
    assert done.stdout == "run.jsonl and run.jsonl agree in step 2: 5 forward calls, 2 backward\n"


@pytest.mark.parametrize(("other", "code"), [(PLAIN, 0), (OTHER, 1)])
def test_the_exit_code_is_what_a_shell_sees(
    ranks: Callable[..., list[str]], other: list[str], code: int
) -> None:
    """Also where a rank's file comes from a pipe."""
    files = ranks([PLAIN], [other])
    with open(files[1], "rb") as file:  # noqa: PTH123
        done = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "otel_modtrack", "order", files[0], "-", "--diff"],
            stdin=file,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONIOENCODING": "utf-8"},
            check=False,
        )
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith("ranks 0 and 1 ")


def test_colours_are_asked_for(run: str, tmp_path: Path, capsys: Shown) -> None:
    """Phases in theirs, numbers dim, what differs bold."""
    assert order_files([run], Options(colour=True, modules=["a"])) == 0
    found = capsys.readouterr().out
    assert "\033[34mforward\033[0m\n  \033[2m0\033[0m  \033[2mN\033[0m\n" in found
    other = write_run(tmp_path / "b.jsonl", [OTHER] * 3, None)
    assert order_files([run], Options(colour=True, diff=[other])) == 1
    assert "\n\033[1m> 3  N.moe.0    N.moe.1\033[0m\n" in capsys.readouterr().out
    assert "\033" not in order(capsys, run)
