"""The ``otel-modtrack`` command.

Each subcommand is a function that adds its options and names what runs it. What runs it imports
what it needs by itself, so that ``--help`` and ``view`` never wait for torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from otel_modtrack.numerals import whole_number
from otel_modtrack.usage import UsageError
from otel_modtrack.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    Subcommands = argparse._SubParsersAction["Parser"]  # noqa: SLF001 - its only name


__all__ = ["main"]

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # as a shell reports SIGINT
EXIT_PIPE_CLOSED = 141  # as a shell reports SIGPIPE


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the synopsis before it."""

    def error(self, message: str) -> NoReturn:
        """Leave with exit code 2 and one sentence on stderr."""
        self.exit(EXIT_USAGE, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Args:
        arguments: What stands after the command's name; ``sys.argv`` if None.

    Returns:
        The exit code: 0, or 2 for what cannot be used; of ``order``, 1 for what differs.

    Raises:
        SystemExit: As argparse does, after ``--help`` and for unknown options.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal without box-drawing characters shows "?" in their place.
            stream.reconfigure(errors="replace")
    arguments, program = _split(sys.argv[1:] if arguments is None else arguments)
    chosen = _parser().parse_args(arguments)
    chosen.program = program
    try:
        code = chosen.run(chosen)
        sys.stdout.flush()
    except UsageError as error:
        print(f"otel-modtrack {chosen.command}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print(f"otel-modtrack {chosen.command}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader, `head` for one, has enough. Python's own flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    return code if isinstance(code, int) else 0


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is for us, and, of ``run``, what is for the program, which may look the same."""
    if arguments[:1] != ["run"]:
        return list(arguments), []
    from otel_modtrack.running import split

    ours, program = split(arguments[1:])
    return ["run", *ours], program


def _parser() -> Parser:
    parser = Parser(
        prog="otel-modtrack",
        description="See every torch module call as an OpenTelemetry span.",
    )
    parser.add_argument("--version", action="version", version=f"otel-modtrack {__version__}")
    subcommands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in (_add_demo, _add_run, _add_view, _add_order, _add_replay):
        add(subcommands)
    return parser


def _add_demo(subcommands: Subcommands) -> None:
    def run(chosen: argparse.Namespace) -> None:
        from otel_modtrack.demo.command import Options, run_demo

        run_demo(
            Options(
                steps=chosen.steps,
                out=chosen.out,
                checkpointing=chosen.checkpointing,
                seed=chosen.seed,
            ),
            colour=_wants_colour(),
        )

    parser = subcommands.add_parser(
        "demo",
        help="train a small GPT, and show where each step's time went",
        description=(
            "Train a small character-level GPT on English text that ships with Python, write every "
            "span to a file, and print the last step as a tree. With OTEL_EXPORTER_OTLP_ENDPOINT "
            "set, the spans go there as well."
        ),
    )
    parser.add_argument(
        "--steps",
        type=whole_number(at_least=1),
        default=20,
        metavar="N",
        help="training steps (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        default="modtrack-demo.jsonl",
        metavar="FILE",
        help="file of OTLP JSON lines, replaced if it is there (default: %(default)s)",
    )
    parser.add_argument(
        "--checkpointing",
        action="store_true",
        help="recompute each block's activations in the backward",
    )
    parser.add_argument(
        "--seed",
        type=whole_number(at_least=0),
        default=0,
        metavar="S",
        help="seed of the weights and the batches (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def _add_run(subcommands: Subcommands) -> None:
    from otel_modtrack.running import add_arguments, run, variables_of

    parser = subcommands.add_parser(
        "run",
        allow_abbrev=False,
        usage=(
            "%(prog)s [options] SCRIPT [ARGUMENT ...]\n"
            "       %(prog)s [options] -m MODULE [ARGUMENT ...]\n"
            "       %(prog)s [options] COMMAND [ARGUMENT ...]"
        ),
        help="run a program as it is, with spans for its modules",
        description=(
            "Run a Python script, module or command, such as `uvicorn app:app` or `torchrun "
            "train.py`, with a tracker that is on from the import of torch to the end. Where spans "
            "go is what the OTEL_* variables say, unless the program sets a provider itself."
        ),
        epilog=(
            "Every option is a variable as well: --min-duration is "
            "OTEL_PYTHON_MODTRACK_MIN_DURATION. docs/configuration.md tells the rest."
        ),
    )
    add_arguments(parser)
    parser.set_defaults(run=lambda chosen: run(chosen.program, variables_of(chosen)))


def _add_view(subcommands: Subcommands) -> None:
    from otel_modtrack.view.arguments import add_arguments

    def run(chosen: argparse.Namespace) -> None:
        from otel_modtrack.view.arguments import read_options
        from otel_modtrack.view.command import view_files

        view_files(chosen.files, read_options(chosen, colour=_wants_colour()))

    parser = subcommands.add_parser(
        "view",
        usage="%(prog)s FILE [FILE ...] [options]",
        help="show what trace files hold",
        description=(
            "Show what files of OTLP JSON lines hold, also several at once (one of each rank) and "
            "while they are being written: the tree of a step, the modules that took most time, "
            "the collectives, what differs from another run; or write a page for a browser, or a "
            "file for another viewer."
        ),
        epilog="docs/view.md shows each option with its output.",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def _add_order(subcommands: Subcommands) -> None:
    from otel_modtrack.order.show.arguments import add_arguments

    def run(chosen: argparse.Namespace) -> int:
        from otel_modtrack.order.show.arguments import read_options
        from otel_modtrack.order.show.command import order_files

        return order_files(chosen.files, read_options(chosen, colour=_wants_colour()))

    parser = subcommands.add_parser(
        "order",
        usage="%(prog)s FILE [FILE ...] [options]",
        help="tell in which order modules ran, and where orders differ",
        description=(
            "List in which order modules ran in a step, from files of OTLP JSON lines, also "
            "several at once (one of each rank) and while they are being written; or tell where "
            "that first differs between ranks, steps or files, with exit code 1 if it does."
        ),
        epilog="docs/execution-order.md shows each option with its output.",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def _add_replay(subcommands: Subcommands) -> None:
    def run(chosen: argparse.Namespace) -> None:
        from otel_modtrack.replay.command import replay_files

        replay_files(chosen.files, start=chosen.start, wait_s=chosen.wait)

    parser = subcommands.add_parser(
        "replay",
        help="send trace files to an OTLP backend",
        description=(
            "Send the lines of files of OTLP JSON, compressed by gzip or not, to the backend that "
            "the OTEL_EXPORTER_OTLP_* variables name, each once and in order. What could not be "
            "sent is said, and makes the exit code 2."
        ),
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="file of OTLP JSON lines")
    parser.add_argument(
        "--from",
        dest="start",
        type=whole_number(at_least=1),
        default=1,
        metavar="LINE",
        help="the first line of the first file that is sent (default: %(default)s)",
    )
    parser.add_argument(
        "--wait",
        type=whole_number(at_least=0),
        default=60,
        metavar="SECONDS",
        help="how long to wait for a backend that does not answer (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def _wants_colour() -> bool:
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )
