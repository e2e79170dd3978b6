"""Tracking of programs that do not know of us. Nothing here needs torch before the program does."""
