"""Tells what a signal handler of the user's raised inside our code from a fault of ours."""

from __future__ import annotations

__all__ = ["from_signal_handler"]


def from_signal_handler(error: Exception) -> bool:
    """Whether a Python signal handler raised `error`, and so it is the user's.

    A handler is called with the frame that it interrupted; no other function is.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        interrupted, trace = trace.tb_frame, trace.tb_next
        for value in trace.tb_frame.f_locals.values():
            held = value if type(value) is tuple else (value,)
            if any(one is interrupted for one in held):
                return True
    return False
