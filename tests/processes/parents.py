"""Runs `scenarios.py`; children that are spawned import this file, which needs no torch."""

from __future__ import annotations

if __name__ == "__main__":
    import scenarios

    scenarios.main()
