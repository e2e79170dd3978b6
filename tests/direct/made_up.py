"""Records with anything in them that a record can have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_modtrack.otlp.records import Place, Template

if TYPE_CHECKING:
    from otel_modtrack.otlp.records import Record

__all__ = ["records"]

_texts = st.text(st.characters(codec="utf-8"), max_size=20)
_names = _texts.filter(bool)
_integers = st.integers(-(2**63), 2**63 - 1)
_scalars = st.one_of(
    _texts, st.booleans(), _integers, st.floats(allow_nan=False), st.binary(max_size=9)
)
_values: Any = st.one_of(
    _scalars,
    st.lists(_texts, max_size=3),
    st.lists(_integers, max_size=3),
    st.lists(st.booleans(), max_size=3),
    st.none(),
    st.dictionaries(_names, _scalars, max_size=2),
    st.integers(2**63, 2**70),  # more than OTLP has room for
)
_times = st.integers(0, 2**64 - 1)
_ids = st.binary(min_size=8, max_size=8).filter(any)


@st.composite
def _attributes(draw: Any) -> BoundedAttributes:
    """As the limits leave them: some are dropped, and texts cut."""
    found = BoundedAttributes(
        attributes=draw(st.dictionaries(_names, _values, max_size=5)),
        max_value_len=draw(st.sampled_from([None, 3])),
    )
    found.dropped = draw(st.sampled_from([0, 0, 1, 300]))
    return found


_events = st.lists(st.builds(Event, _texts, _attributes(), _times), max_size=2).map(tuple)
_statuses = st.one_of(
    st.just(trace.Status(trace.StatusCode.UNSET)),
    st.builds(trace.Status, st.just(trace.StatusCode.ERROR), st.none() | _texts),
)
_resources = st.builds(Resource, _attributes(), st.sampled_from(["", "https://schema/1"]))
_scopes = st.none() | st.builds(
    InstrumentationScope, _names, st.none() | _texts, st.sampled_from([None, "https://schema/2"])
)
_states = st.sampled_from([None, trace.TraceState(), trace.TraceState([("a", "b"), ("c", "d")])])


@st.composite
def records(draw: Any, most: int = 8) -> list[Record]:
    """Records of one to three units, their ids all different."""
    resources = draw(st.lists(_resources, min_size=1, max_size=2))
    scopes = draw(st.lists(_scopes, min_size=1, max_size=2))
    templates = draw(
        st.lists(st.builds(Template, _texts, _attributes(), _statuses), min_size=1, max_size=3)
    )
    places = [
        Place(
            draw(st.integers(1, 2**128 - 1)),
            trace.TraceFlags(1),
            draw(_states),
            draw(st.sampled_from(resources)),
            draw(st.sampled_from(scopes)),
            remote=remote,
        )
        for remote in draw(st.lists(st.booleans(), min_size=1, max_size=3))
    ]
    found: list[Record] = []
    for span_id in draw(st.lists(_ids, min_size=1, max_size=most, unique=True)):
        place = draw(st.sampled_from(places))
        parent = draw(_ids if place.remote else st.just(b"") | _ids)
        trace_part = draw(st.just(b"") | st.binary(min_size=16, max_size=16).filter(any))
        link = draw(st.none() | _ids.map(trace_part.__add__))
        template = draw(st.sampled_from(templates))
        found.append(
            (place, template, span_id, parent, draw(_times), draw(_times), link, draw(_events))
        )
    return found
