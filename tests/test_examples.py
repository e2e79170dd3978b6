"""The examples run, and show what they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *flags: str) -> str:
    """What an example prints; it must not warn, but for what the flags of Python's let pass."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "error", *flags, str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def run_on_two(name: str) -> tuple[list[list[str]], list[str]]:
    """What an example shows under torchrun: both ranks' trees, and the table.

    A line of a tree is what follows the percentage, two spaces a level; of the table, its cells.
    """
    done = subprocess.run(  # noqa: S603
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node=2", str(EXAMPLES / name)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    text = done.stdout[done.stdout.index("Step ") :]  # older gloo says who is connected
    shown, _, table = text.partition("All steps of rank 0:\n\n")
    trees = []
    for rank, part in enumerate(shown.split("Step 2, ")[1:]):
        headline, _, _, *lines = part.rstrip().splitlines()
        assert headline.startswith(f"rank {rank} of 2: ")
        trees.append([re.sub("[│├└]..|   ", "  ", line.split("%  ", 1)[1]) for line in lines])
    return trees, [" ".join(line.split()) for line in table.splitlines() if line]


def test_train() -> None:
    """The training example shows three steps, each with its whole tree."""
    names = [line.split("ms  ", 1)[1] for line in run("train.py").splitlines()]
    assert (
        names
        == [
            "train_step",
            "  forward Sequential",
            *["    forward Sequential.*"] * 3,
            "  forward loss",
            "  backward",
            "    backward loss",
            "    backward Sequential",
            *["      backward Sequential.*"] * 3,
            "  optimizer_step AdamW",
        ]
        * 3
    )


def test_execution_order() -> None:
    """What a tracer cannot follow, where it and the run part, and what DDP expects otherwise."""
    text = run("execution_order.py")
    assert re.search(r"(?m)^Skips \(Skips\) cannot be traced at \S+execution_order.py:\d+ ", text)
    documented = (EXAMPLES.parent / "docs" / "execution-order.md").read_text()
    reports = re.findall(r"(?m)^(?:the forward differs|gradients arrive).*\n\n(?:.+\n)+", text)
    assert len(reports) == 2
    for report in reports:
        assert report in documented


# Lightning warns of its own use of torch, and of few workers.
LIGHTNINGS = ("-W", "ignore:`isinstance(treespec, LeafSpec)`:FutureWarning", "-W", "ignore:The '")


@pytest.mark.parametrize(
    ("name", "package", "flags"),
    [
        ("transformers_trainer.py", "transformers", ()),
        ("lightning_trainer.py", "lightning", LIGHTNINGS),
        ("accelerate_loop.py", "accelerate", ()),
    ],
)
def test_frameworks(name: str, package: str, flags: tuple[str, ...]) -> None:
    """Four steps in two epochs, each epoch followed by an evaluation."""
    pytest.importorskip(package)
    shown = [
        (line.split()[0], *re.findall(r"'modtrack\.(?:step\.number|epoch)': (\d+)", line))
        for line in run(name, *flags).splitlines()
        if line.startswith(("train_step", "evaluation"))
    ]
    assert shown == [
        ("train_step", "0", "0"),
        ("train_step", "1", "0"),
        ("evaluation",),
        ("train_step", "2", "1"),
        ("train_step", "3", "1"),
        ("evaluation",),
    ]


def test_ddp() -> None:
    """The gradients' buckets are reduced on the module that fills them; the buffers by the whole.

    Of the 83,201 parameters, 66,049 are in the first bucket that is full.
    """
    trees, table = run_on_two("ddp.py")
    wanted = [
        "train_step 2",
        "  forward Sequential  broadcast x2 2.0 KiB",
        *(f"    forward Sequential.{number}" for number in range(4)),
        "  backward",
        "    backward Sequential",
        "      backward Sequential.3",
        "      backward Sequential.2  all_reduce 258.0 KiB",
        "      backward Sequential.1",
        "      backward Sequential.0  all_reduce 67.0 KiB",
        "  optimizer_step AdamW",
    ]
    assert trees == [wanted, wanted]
    # The first step reduces all in one bucket; before the second, the ranks agree on new ones.
    assert table == [
        "Collectives on rank 0 of 2: 13, 981.1 KiB",
        "module phase operation count bytes",
        "Global forward broadcast 8 6.1 KiB",
        "backward all_reduce 5 975.0 KiB",
        "Sequential forward broadcast 8 6.1 KiB",
        "backward all_reduce 5 975.0 KiB",
        "Sequential.0 backward all_reduce 3 459.0 KiB",
        "Sequential.2 backward all_reduce 2 516.0 KiB",
    ]


def test_fsdp() -> None:
    """Each block gathers its own 33,088 parameters; the gradients of the last two come at the end.

    The head's 65 are padded to 130. A block is gathered for its backward while the one after it
    still runs.
    """
    trees, table = run_on_two("fsdp.py")
    block = "129.2 KiB"
    wanted = [
        "train_step 2",
        "  forward Sequential  all_gather 520 B",
        f"    forward Sequential.0  all_gather {block}",
        *(f"      forward Sequential.0.{number}" for number in range(3)),
        f"    forward Sequential.1  all_gather {block}",
        *(f"      forward Sequential.1.{number}" for number in range(3)),
        "    forward Sequential.2",
        "  backward  reduce_scatter x2 129.8 KiB",
        "    backward Sequential",
        f"      backward Sequential.2  all_gather {block}",
        f"      backward Sequential.1  reduce_scatter {block}",
        f"        backward Sequential.1.2  all_gather {block}",
        "        backward Sequential.1.1",
        "        backward Sequential.1.0",
        "      backward Sequential.0",
        *(f"        backward Sequential.0.{number}" for number in (2, 1, 0)),
        "  optimizer_step AdamW",
    ]
    assert trees == [wanted, wanted]
    assert table[:5] == [
        "Collectives on rank 0 of 2: 24, 2.3 MiB",
        "module phase operation count bytes",
        "Global forward all_gather 9 777.0 KiB",
        "backward all_gather 6 775.5 KiB",
        "backward reduce_scatter 9 777.0 KiB",
    ]


def test_test_model() -> None:
    """The tests of the example pass, in a pytest of their own."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(EXAMPLES / "test_model.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_each_example_is_short(path: Path) -> None:
    """One idea, under 60 lines."""
    assert len(path.read_text().splitlines()) < 60
