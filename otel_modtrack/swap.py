"""Give a function other code for a while, and its own back.

The function object stays what it is, so whoever holds it, compares it or guards on it (dynamo,
torch.fx, other libraries that wrapped it) sees no change. Replacing the attribute instead makes
dynamo recompile; hooks make compiled models run eagerly (docs/how-it-works.md has the figures).
"""

from __future__ import annotations

import ast
import dis
import inspect
import textwrap
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "AroundSwap",
    "AttributeSwap",
    "CodeSwap",
    "moved",
    "original_body",
    "skip_by_dynamo",
    "undo_all",
    "wrapped",
]


class CodeSwap:
    """Swaps the code of one function for that of `ours`, with constants put in.

    `ours` mentions what it needs as string constants (``"modtrack:enter"``); they are replaced by
    the objects themselves, so that the code needs no closure and no name in the function's module.

    Raises:
        TypeError: if the target is not a plain function, or has other free variables than ours.
    """

    def __init__(
        self,
        target: Callable[..., Any],
        ours: types.CodeType,
        constants: Mapping[str, object],
    ) -> None:
        free = getattr(getattr(target, "__code__", None), "co_freevars", None)
        if not isinstance(target, types.FunctionType) or free != ours.co_freevars:
            msg = f"{target!r} is not a plain Python function"
            raise TypeError(msg)
        self._target = target
        self.original = target.__code__
        names = {"co_name": self.original.co_name}
        if hasattr(self.original, "co_qualname"):  # Python 3.11
            names["co_qualname"] = self.original.co_qualname
        self.code: types.CodeType = ours.replace(
            co_consts=tuple(
                constants.get(const, const) if isinstance(const, str) else const
                for const in ours.co_consts
            ),
            **names,  # type: ignore[arg-type]
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


class AroundSwap(CodeSwap):
    """Swaps the code of a function for its own with ours around it; see `wrapped`.

    Args:
        target: the function.
        around: what is put around its body. It mentions each of `ours` by its name:
            ``"modtrack:enter"``.
        ours: what `around` calls, which dynamo is to leave alone.

    Raises:
        TypeError: if the target is not a plain function whose source is there.
    """

    def __init__(self, target: Any, around: Callable[..., Any], *ours: Callable[..., Any]) -> None:
        constants = {f"modtrack:{one.__name__}": one for one in ours}
        super().__init__(target, wrapped(target, around), constants)
        skip_by_dynamo(*(getattr(one, "__func__", one) for one in ours))


class AttributeSwap:
    """Puts functions of ours in place of attributes, and the originals back."""

    def __init__(self) -> None:
        self._places: list[tuple[Any, str, Any, Any]] = []

    def put(self, owner: Any, name: str, ours: Any) -> None:
        """Put one in place."""
        self._places.append((owner, name, ours, vars(owner)[name]))
        setattr(owner, name, ours)

    def has(self, function: object) -> bool:
        """Whether a function is one that was put in place."""
        return any(ours is function for _, _, ours, _ in self._places)

    def remove(self) -> None:
        """Give back what was there, where nobody else has put something in its place since."""
        while self._places:
            owner, name, ours, original = self._places[-1]
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)
            self._places.pop()  # last: a signal handler may interrupt this anywhere


def undo_all(undo: list[Callable[[], None]]) -> None:
    """Call each, the last one first. Interrupted by a signal handler, it may be called again."""
    while undo:
        undo[-1]()
        undo.pop()


def moved(ours: Callable[..., Any], target: Callable[..., Any], attribute: str) -> types.CodeType:
    """The code of `ours`, compiled as if it stood where `target` stands.

    It has the file of the target (dynamo skips frames by file) and its first line, and the call of
    `attribute` is on the line that it has in the target: source and tracebacks read as before.

    Raises:
        TypeError: if a source is not to be had, or does not call `attribute`.
    """
    function = _parse(ours)
    code: Any = target.__code__
    there, here = _line_of(code, attribute), _line_of(ours.__code__, attribute)
    ast.increment_lineno(function, there - here)
    function.lineno = code.co_firstlineno
    return _compile(function, target)


def wrapped(target: Callable[..., Any], around: Callable[..., Any]) -> types.CodeType:
    """The code of `around`, with the body of `target` where it calls `original_body`.

    For a function whose body differs between torch's versions. It keeps the target's parameters,
    file and lines.

    Raises:
        TypeError: if a source is not to be had.
    """
    function, frame = _parse(target), _parse(around)
    for node in ast.walk(frame):
        if isinstance(node, (ast.stmt, ast.expr, ast.excepthandler)):
            node.lineno = node.end_lineno = function.lineno
    body, function.body = function.body, frame.body
    for node in ast.walk(function):
        statements = getattr(node, "body", None)
        if isinstance(statements, list):
            places = [at for at, statement in enumerate(statements) if _is_place(statement)]
            for at in places:
                statements[at : at + 1] = body
    return _compile(function, target)


def original_body() -> None:
    """Marks the place in a template where `wrapped` puts the body of torch's function."""


def _is_place(statement: ast.AST) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == original_body.__name__
    )


def _parse(function: Callable[..., Any]) -> ast.FunctionDef:
    """The syntax tree of a function, on its own lines and columns, without its docstring."""
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError) as error:
        msg = f"the source of {function!r} is not to be had: {error}"
        raise TypeError(msg) from error
    source = "".join(lines)
    indent = len(source) - len(source.lstrip())
    tree = ast.parse(textwrap.dedent(source))
    ast.increment_lineno(tree, first - 1)
    found: ast.FunctionDef = tree.body[0]  # type: ignore[assignment]
    for node in ast.walk(found):
        if isinstance(node, (ast.stmt, ast.expr, ast.excepthandler)):
            node.col_offset += indent
            node.end_col_offset = (node.end_col_offset or 0) + indent
    if ast.get_docstring(found) is not None:
        found.body = found.body[1:]
    return found


def _compile(function: ast.FunctionDef, target: Callable[..., Any]) -> types.CodeType:
    function.decorator_list, function.returns = [], None
    for argument in ast.walk(function.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    code = _code_in([function], target.__code__.co_filename)
    free = target.__code__.co_freevars
    if free:  # `super()` refers to the class through one: it is a variable of a function around
        around = ast.parse(f"def around({', '.join(free)}): pass").body[0]
        around.body = [function]  # type: ignore[attr-defined]
        code = _code_in(_code_in([around], target.__code__.co_filename))
    return code


def _code_in(body: Any, file: str = "") -> types.CodeType:
    """The function in statements, or in a code object."""
    if not isinstance(body, types.CodeType):
        body = compile(ast.Module(body, []), file, "exec", dont_inherit=True)
    return next(c for c in body.co_consts if isinstance(c, types.CodeType))


def _line_of(code: types.CodeType, attribute: str) -> int:
    """The last line of `code` that reads `attribute`."""
    offsets = [i.offset for i in dis.get_instructions(code) if i.argval == attribute]
    for start, end, line in code.co_lines():
        if offsets and start <= offsets[-1] < end and line is not None:
            return line
    msg = f"{code.co_name} does not call {attribute}"
    raise TypeError(msg)


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
