"""An environment in which nothing is set but what a test sets."""

from __future__ import annotations

from tests.delivery.conftest import environment

__all__ = ["environment"]
