"""From finished spans to an OTLP endpoint: settings, transports, and a queue that counts.

Why not the SDK's `BatchSpanProcessor` and the stock exporters: they drop without a count that can
be read, do not split what is refused as too large, have no deadline for the exit, and write the
server's words, which may quote a token, into the log. What they encode is encoded by their
own library here, too.
"""
