"""Requests as a receiver decodes them, comparable field by field."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["from_json", "from_request"]

Spans = dict[str, dict[str, Any]]


def from_request(*requests: bytes) -> Spans:
    """All spans of requests in protobuf, by id, each with resource, scope and their schemas."""
    return _spans(
        json_format.MessageToDict(
            trace_service_pb2.ExportTraceServiceRequest.FromString(request),
            preserving_proto_field_name=False,
        )
        for request in requests
    )


def from_json(*requests: bytes | str) -> Spans:
    """The same of OTLP JSON; ids are in hexadecimal there, and are left so."""
    return _spans(json.loads(request) for request in requests)


def _spans(documents: Iterable[Mapping[str, Any]]) -> Spans:
    found: Spans = {}
    for document in documents:
        for of_resource in document.get("resourceSpans", ()):
            for of_scope in of_resource["scopeSpans"]:
                for span in of_scope["spans"]:
                    assert span["spanId"] not in found, "a span that came twice"
                    found[span["spanId"]] = {
                        "span": span,
                        "resource": of_resource["resource"],
                        "resource schema": of_resource.get("schemaUrl", ""),
                        "scope": of_scope["scope"],
                        "scope schema": of_scope.get("schemaUrl", ""),
                    }
    return found
