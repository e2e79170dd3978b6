"""Tests of what processes do: how they end, fork, start others, and begin again."""
