"""Give a function other code for a while, and its own back.

The function object stays what it is, so whoever holds it, compares it or guards on it (dynamo,
torch.fx, other libraries that wrapped it) sees no change. Replacing the attribute instead makes
dynamo recompile; hooks make compiled models run eagerly (docs/how-it-works.md has the figures).
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["CodeSwap", "skip_by_dynamo"]


class CodeSwap:
    """Swaps the code of one function for a template's, with constants put in.

    The template mentions what it needs as string constants (``"modtrack:enter"``); they are
    replaced by the objects themselves, so that the new code needs no closure and no name in the
    function's module. It keeps file and name of the original (dynamo skips frames by file), and is
    moved by `shift` lines, so that a call in it stands on the line it has in the original: a
    traceback through it reads as before.

    Raises:
        TypeError: if the target is not a plain function without free variables.
    """

    def __init__(
        self,
        target: Callable[..., Any],
        template: Callable[..., Any],
        constants: Mapping[str, object],
        shift: int,
    ) -> None:
        if not isinstance(target, types.FunctionType) or target.__code__.co_freevars:
            msg = f"{target!r} is not a plain Python function"
            raise TypeError(msg)
        self._target = target
        self.original = target.__code__
        code = template.__code__
        self.code: types.CodeType = code.replace(
            co_consts=tuple(
                constants.get(const, const) if isinstance(const, str) else const
                for const in code.co_consts
            ),
            co_filename=self.original.co_filename,
            co_name=self.original.co_name,
            co_firstlineno=code.co_firstlineno + shift,
            **(
                {"co_qualname": self.original.co_qualname}
                if hasattr(self.original, "co_qualname")
                else {}
            ),
        )

    @property
    def on(self) -> bool:
        """Whether the function runs our code now."""
        return self._target.__code__ is self.code

    def install(self) -> None:
        """Swap ours in."""
        self._target.__code__ = self.code

    def remove(self) -> None:
        """Give the function its own code back, unless someone else changed it since."""
        if self.on:
            self._target.__code__ = self.original


def skip_by_dynamo(*functions: Callable[..., Any]) -> None:
    """Keep dynamo from compiling our functions, and all they call, inside a compiled region.

    Source: torch/_dynamo/eval_frame.py, `skip_code` (torch 2.8 to 2.15), by the C function below
    it, since importing dynamo takes seconds. Where it is missing, a compiled model has extra
    frames while tracking.
    """
    try:
        from torch._C._dynamo import eval_frame  # noqa: PLC0415 - private, may be missing

        skip = eval_frame._FrameAction.SKIP  # noqa: SLF001
        strategy = eval_frame._FrameExecStrategy(skip, skip)  # noqa: SLF001
        for function in functions:
            eval_frame.set_code_exec_strategy(function.__code__, strategy)
    except (ImportError, AttributeError, TypeError):
        return
