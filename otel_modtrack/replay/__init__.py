"""``otel-modtrack replay``: trace files -> an OTLP endpoint.

lines.py reads files and takes requests apart, sending.py sends one request until its fate is known,
command.py goes through the files and says what became of each line.
"""
