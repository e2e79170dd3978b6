"""``otel-modtrack demo``: train a small GPT on real text, and show where the time went.

``text`` and ``model`` are ordinary training code, ``train`` is the loop that a user would write,
``export`` says where the spans go, ``command`` puts them together.
"""
