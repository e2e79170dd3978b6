"""An integration without its framework."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("integration", "packages", "wanted"),
    [
        ("transformers", ("transformers",), "transformers"),
        ("lightning", ("lightning", "pytorch_lightning"), "lightning"),
        ("accelerate", ("accelerate",), "accelerate"),
    ],
)
def test_a_framework_that_is_not_installed(
    integration: str, packages: tuple[str, ...], wanted: str
) -> None:
    """One sentence says which; and the package itself imports none of them."""
    program = (
        "import sys\n"
        "import otel_modtrack, otel_modtrack.tracker, otel_modtrack.integrations\n"
        "frameworks = {'transformers', 'accelerate', 'lightning', 'pytorch_lightning'}\n"
        "assert not frameworks & set(sys.modules)\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name in {packages}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "try:\n"
        f"    import otel_modtrack.integrations.{integration}\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        f"otel_modtrack.integrations.{integration} wants {wanted}, which is not installed;"
        f" install it with pip install {wanted}\n"
    )
