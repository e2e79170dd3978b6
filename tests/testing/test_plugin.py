"""The pytest plugin, in test files of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from otel_modtrack.core import CORE

if TYPE_CHECKING:
    from pathlib import Path

# Other plugins that take seconds to import, in each run anew.
WITHOUT = ("-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:cacheprovider")

MODEL = """
import pytest, torch
from torch import nn

class MyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(2, 2)

    def forward(self, x):
        return self.encoder(x)

model, x = MyModel(), torch.ones(1, 2)
"""

PASSING = '''
def test_my_model(modtrack):
    with modtrack.track(model):
        model(x).sum().backward()
    modtrack.tree.assert_equals("""
        forward MyModel
          forward MyModel.encoder
        backward MyModel
          backward MyModel.encoder
    """)
    assert modtrack.collectives.total == 0
'''

FAILING = '''
def test_my_model(modtrack):
    with modtrack.track(model):
        model(x)
    modtrack.tree.assert_equals("""
        forward MyModel
          forward MyModel.decoder
    """)
'''

GOLDEN = """
def test_my_model(modtrack):
    with modtrack.track(model):
        model(x)
    modtrack.tree.assert_golden("my_model")
"""


def run(pytester: pytest.Pytester, text: str, *options: str) -> pytest.RunResult:
    """A test file's run in this process, where torch is imported already."""
    pytester.makepyfile(MODEL + text)
    return pytester.runpytest_inprocess(*WITHOUT, *options)


def test_passing(pytester: pytest.Pytester) -> None:
    """The fixture is there without any import."""
    run(pytester, PASSING).assert_outcomes(passed=1)


@pytest.mark.parametrize("option", ["-v", "-q", "--tb=short"])
def test_failing(pytester: pytest.Pytester, option: str) -> None:
    """What differs is shown in context, below the user's line and without lines of ours."""
    result = run(pytester, FAILING, option)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E *AssertionError: the tree is not the expected one: 1 line missing (-), 1 line too*",
            "E *  forward MyModel",
            "E *-   forward MyModel.decoder",
            "E *+   forward MyModel.encoder",
        ],
        consecutive=True,
    )
    result.stdout.fnmatch_lines("*modtrack.tree.assert_equals(*")
    result.stdout.no_fnmatch_line("*raise *")
    result.stdout.no_fnmatch_line("*testing/tree.py*")


def test_an_assert_of_the_users(pytester: pytest.Pytester) -> None:
    """pytest's introspection names what was found."""
    result = run(
        pytester,
        """
def test_my_model(modtrack):
    with modtrack.track(model):
        model(x)
    assert len(modtrack.select("MyModel*")) == 3
""",
    )
    result.stdout.fnmatch_lines(
        ["E *assert 2 == 3", "E*where 2 = len(<2 spans: forward MyModel, *encoder>)"]
    )


def test_before_anything_ran(pytester: pytest.Pytester) -> None:
    """One sentence, and no lines of ours."""
    result = run(pytester, "def test_it(modtrack):\n    assert modtrack.collectives.total == 0\n")
    result.stdout.fnmatch_lines(
        "E       otel_modtrack.usage.UsageError: modtrack.collectives: nothing was tracked yet;"
        " run the model inside `with modtrack.track(model):` first"
    )
    result.stdout.no_fnmatch_line("*capturing.py*")


def test_no_state_between_tests(pytester: pytest.Pytester) -> None:
    """Neither of one that fails while it tracks, nor of one that never leaves its tracker."""
    run(
        pytester,
        """
def test_raises(modtrack):
    modtrack.fix_clock_and_ids()
    with modtrack.track(model) as tracker, tracker.step(0):
        model(x)
        raise KeyError

def test_never_leaves(modtrack):
    modtrack.track(model).__enter__()
    model(x)
    modtrack.tree.assert_equals("forward MyModel\\n  forward MyModel.encoder")
    assert modtrack.spans[0].context.span_id > 1000

def test_after_them(modtrack):
    model(x)
    with modtrack.track(model):
        pass
    modtrack.tree.assert_equals("")
""",
    ).assert_outcomes(passed=2, failed=1)
    assert not CORE.on


def test_golden(pytester: pytest.Pytester) -> None:
    """Missing, written, compared, changed."""
    path = pytester.path / "golden" / "my_model.txt"
    result = run(pytester, GOLDEN)
    result.stdout.fnmatch_lines(
        f"E*AssertionError: there is no golden file {path} yet: pytest --modtrack-update, or *"
    )
    result = run(pytester, GOLDEN, "--modtrack-update")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(f"modtrack: wrote {path}")
    assert path.read_text() == "forward MyModel\n  forward MyModel.encoder\n"
    result = run(pytester, GOLDEN)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*wrote*")
    path.write_text("forward MyModel\n")
    run(pytester, GOLDEN).stdout.fnmatch_lines(
        ["E*AssertionError: the tree is not that of *: 1 line too many (+)", "E*+*MyModel.encoder"]
    )


ONE_NAME = """
@pytest.mark.parametrize("calls", [1, 2])
def test_my_model(modtrack, calls):
    with modtrack.track(model):
        for _ in range(calls):
            model(x)
    modtrack.tree.assert_golden("my_model")
"""


def test_two_tests_that_write_one_golden_file(pytester: pytest.Pytester) -> None:
    """That they cannot both pass from then on is told; one alone is fine."""
    path = pytester.path / "golden" / "my_model.txt"
    told = "modtrack: tests that differ wrote it, and all but one will fail: give each a name of *"
    result = run(pytester, ONE_NAME, "--modtrack-update")
    result.stdout.fnmatch_lines([f"modtrack: wrote {path}", told], consecutive=True)
    result = run(pytester, ONE_NAME, "--modtrack-update", "-k", "2")
    result.stdout.no_fnmatch_line("modtrack: *")
    path.unlink()
    result = run(pytester, ONE_NAME, "--modtrack-update", "-k", "2")
    result.stdout.fnmatch_lines(f"modtrack: wrote {path}")
    result.stdout.no_fnmatch_line("modtrack: tests that differ*")


def test_an_unknown_option(pytester: pytest.Pytester) -> None:
    """pytest refuses it, and lists ours."""
    result = run(pytester, PASSING, "--modtrack-updates")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("*unrecognized arguments: --modtrack-updates")
    run(pytester, PASSING, "--help").stdout.fnmatch_lines(
        ["otel_modtrack:", "  --modtrack-update *write the golden files *"]
    )


def test_own_provider(pytester: pytest.Pytester) -> None:
    """A fixture of the user's gives the provider."""
    run(
        pytester,
        """
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

provider = TracerProvider(resource=Resource({"service.name": "mine"}), shutdown_on_exit=False)

@pytest.fixture
def modtrack_provider():
    return provider

def test_my_model(modtrack):
    with modtrack.track(model), provider.get_tracer("mine").start_as_current_span("request"):
        model(x)
    modtrack.tree.assert_equals("request\\n  forward MyModel", depth=2)
    assert modtrack.spans[1].resource.attributes["service.name"] == "mine"
""",
    ).assert_outcomes(passed=1)


def test_xdist(pytester: pytest.Pytester) -> None:
    """On workers: what fails is shown, and what was written is told."""
    pytester.makepyfile(
        test_one=MODEL + FAILING,
        test_two=MODEL + GOLDEN,
    )
    result = pytester.runpytest_subprocess(
        *WITHOUT, "-n", "2", "--dist", "loadfile", "--modtrack-update"
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["E       +   forward MyModel.encoder"])
    result.stdout.fnmatch_lines(f"modtrack: wrote {pytester.path / 'golden' / 'my_model.txt'}")


def run_python(program: str) -> str:
    """What a program prints in an interpreter of its own."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_plugin_is_cheap() -> None:
    """pytest imports it in every run; it brings neither torch nor OpenTelemetry."""
    program = (
        "import sys, otel_modtrack.testing.plugin\n"
        "print([name for name in ('torch', 'opentelemetry') if name in sys.modules])"
    )
    assert run_python(program) == "[]\n"


def test_without_pytest(tmp_path: Path) -> None:
    """The helpers import without it."""
    program = (
        "import sys; sys.modules['pytest'] = None\n"
        "import torch\n"
        "from otel_modtrack.testing import capture\n"
        "with capture() as modtrack:\n"
        "    with modtrack.track(): torch.nn.Linear(2, 2)(torch.ones(1, 2))\n"
        "    print(modtrack.tree)"
    )
    assert run_python(program) == "forward Linear\n"


def test_without_the_sdk() -> None:
    """One sentence says what is to be installed; anything else that is missing is told as it is."""
    program = (
        "import sys; sys.modules['{}'] = None\n"
        "import otel_modtrack.testing\n"
        "try: otel_modtrack.testing.capture\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    assert run_python(program.format("opentelemetry.sdk")) == (
        "UsageError otel_modtrack.testing wants opentelemetry-sdk, which is not installed; install"
        " it with pip install 'otel_modtrack[otlp]'\n"
    )
    assert run_python(program.format("torch")).startswith("ModuleNotFoundError No module")


def test_the_fixture_without_the_sdk(pytester: pytest.Pytester) -> None:
    """The same sentence, and no lines of ours."""
    pytester.makepyfile("def test_it(modtrack): pass")
    program = (
        "import sys; sys.modules['opentelemetry.sdk'] = None\n"
        f"import pytest; sys.exit(pytest.main({[*WITHOUT, '-q']!r}))"
    )
    result = pytester.run(sys.executable, "-c", program)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines("E *UsageError: otel_modtrack.testing wants opentelemetry-sdk, *")
    result.stdout.no_fnmatch_line("*_PLACES*")
