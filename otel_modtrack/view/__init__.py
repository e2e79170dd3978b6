"""Reads traces and shows them. Needs neither torch nor OpenTelemetry.

``reader`` turns files, or what the SDK holds, into spans, and ``model`` spans into trees. Of these
``choose`` takes the step, trace or rank that is meant, and ``narrow`` the phases and modules.
``tree``, ``top``, ``collectives`` and ``diff`` make texts of them, ``asjson`` documents for
scripts, ``html`` and ``exports`` files for other viewers, which ``writing`` puts in place.
``options`` is what the user chose, ``shows`` what is shown for it; ``command`` prints it.
"""
