"""The queries in docs/backends.md and on the dashboards are queries, of what is emitted.

TraceQL is parsed by the grammar that Grafana publishes; only Tempo, which does not run here,
answers it. PromQL is parsed by promtool, and answered by it from series that are made up.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
import yaml

from otel_modtrack import semconv
from tests.backends.programs import ROOT
from tests.backends.queries import (
    BACKWARD,
    BYTES,
    DECODE,
    RAISED,
    RECOMPUTED,
    SLOWER,
    STRAGGLER,
    blocks,
    panels,
    promtool,
    run,
)

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

CANNOT_BE_HAD = (3, 4)  # exit codes of traceql.sh: node is missing, the download failed

TRACEQL = blocks("traceql") + panels("query")
# Grafana puts a duration in the place of these.
PROMQL = blocks("promql") + [re.sub(r"\$__\w+", "5m", query) for query in panels("expr")]


def faults(queries: list[str]) -> list[list[str]]:
    """What in each query Grafana's grammar does not allow."""
    done = run(ROOT / "scripts" / "backends" / "traceql.sh", given=json.dumps(queries))
    if done.returncode in CANNOT_BE_HAD:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_rules(file: Path, queries: list[str]) -> subprocess.CompletedProcess[str]:
    """What promtool says of recording rules with these queries."""
    rules = [{"record": f"query:{at}", "expr": query} for at, query in enumerate(queries)]
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    return promtool("check", "rules", file)


def test_every_traceql_query_is_one() -> None:
    """Grafana's grammar has nothing against any, in the documentation or on a dashboard."""
    assert len(TRACEQL) > 10
    assert dict(zip(TRACEQL, faults(TRACEQL), strict=True)) == {query: [] for query in TRACEQL}


def test_what_is_no_traceql_is_refused() -> None:
    """Each of these mistakes, made in every query that has room for it, is seen."""
    mistakes = (
        ("{", "("),
        (" = ", " == "),
        ("span:", "spam:"),
        ("span.", "spam."),
        ("_over_time(", "_overtime("),
        (" && ", " and "),
        ("select(", "selects("),
    )
    broken = [query.replace(*each) for query in TRACEQL for each in mistakes if each[0] in query]
    assert len(broken) > len(TRACEQL)
    seen = faults(broken)
    assert [query for query, found in zip(broken, seen, strict=True) if not found] == []


def test_every_promql_query_is_one(tmp_path: Path) -> None:
    """Promtool has nothing against any, and something against one with a mistake."""
    assert len(PROMQL) > 10
    done = check_rules(tmp_path / "rules.yaml", PROMQL)
    assert done.returncode == 0, done.stdout + done.stderr
    mistaken = [*PROMQL, PROMQL[0].replace("(", "((", 1)]
    assert check_rules(tmp_path / "rules.yaml", mistaken).returncode != 0


def test_every_name_is_one_that_is_emitted() -> None:
    """Attributes and events are the registry's; metrics and labels are what the Collector makes."""
    for query in (*TRACEQL, *blocks("sh")):
        named = set(re.findall(r"\b(?:modtrack|error)(?:\.[a-z_]+)+", query))
        assert named <= {*semconv.ATTRIBUTES, semconv.COLLECTIVE_EVENT}
    config = yaml.safe_load((ROOT / "collector" / "config.yaml").read_text())
    dimensions = config["connectors"]["span_metrics"]["dimensions"]
    labels = {dimension["name"].replace(".", "_") for dimension in dimensions}
    labels |= {"service_name", "span_name", "status_code"}
    for query in blocks("promql"):
        for name, matchers in re.findall(r"(\w+)\{(.*?)\}", query):
            assert name.startswith(("traces_span_metrics_", "modtrack_collective_"))
            assert set(re.findall(r"(\w+)[=!]", matchers)) <= labels


def series(name: str, before: float, since: float, **labels: str) -> dict[str, str]:
    """A counter that grows by so much a minute in the first 12 hours, and in the 13 after them."""
    matchers = ",".join(f'{key}="{value}"' for key, value in labels.items())
    values = f"0+{before:g}x719 {before * 720:g}+{since:g}x780"
    return {"series": f"{name}{{{matchers}}}", "values": values}


def spans_of(name: str, before_s: float, since_s: float = 0, **labels: str) -> list[dict[str, str]]:
    """The histogram of a span that is called once a minute and takes so long."""
    since_s = since_s or before_s
    base = "traces_span_metrics_duration_seconds"
    labels = {"service_name": "trainer", "span_name": name, **labels}
    return [
        series(f"{base}_sum", before_s, since_s, **labels),
        series(f"{base}_count", 1, 1, **labels),
        *(
            series(f"{base}_bucket", before_s <= float(le), since_s <= float(le), **labels, le=le)
            for le in ("0.01", "0.1", "1", "+Inf")
        ),
    ]


def test_promql_answers_the_question(tmp_path: Path) -> None:
    """Of a layer made slower, a slow rank, a module that raised, ... each query finds that one."""
    forward, backward = {"modtrack_phase": "forward"}, {"modtrack_phase": "backward"}
    made = [
        *spans_of("forward GPT.layers.*.attn", 0.005, **forward),
        *spans_of("forward GPT.layers.*.mlp", 0.005, 0.05, **forward),
        *spans_of("forward GPT", 0.05, **forward, modtrack_rank="0"),
        *spans_of("forward GPT", 0.5, **forward, modtrack_rank="1"),
        *spans_of("backward", 0.8),
        *spans_of("backward GPT.layers.*.attn", 0.6, **backward),
        *spans_of("backward GPT.layers.*.mlp", 0.1, **backward),
        *spans_of("recompute GPT.layers.*", 0.2, modtrack_phase="recompute"),
        *spans_of("forward decode_step", 0.05, **forward, service_name="text-service"),
    ]
    for rank in (0, 1):
        labels = {"service_name": "trainer", "modtrack_rank": str(rank)}
        size = 1000 * (2 - rank)
        made.append(series("modtrack_collective_size_bytes_total", size, size, **labels))
        for status in ("UNSET", "ERROR"):
            name = f"forward GPT.layers.*.{'attn' if status == 'ERROR' else 'mlp'}"
            labels |= {"status_code": f"STATUS_CODE_{status}", "span_name": name}
            made.append(series("traces_span_metrics_calls_total", 1, 1, **labels))
    answers = {
        SLOWER: {"span_name": "forward GPT.layers.*.mlp"},
        STRAGGLER: {"modtrack_rank": "1"},
        RAISED: {"span_name": "forward GPT.layers.*.attn"},
        BACKWARD: {"span_name": "backward GPT.layers.*.attn"},
        BYTES: {"modtrack_rank": "0"},
        RECOMPUTED: 0.25,
        DECODE: 0.1,
    }
    tests = []
    for section, answer in answers.items():
        for query in blocks("promql", section):
            if isinstance(answer, dict):
                [(label, value)] = answer.items()
                expression, labels = (
                    f"count by ({label}) (topk(1, {query}))",
                    f'{{{label}="{value}"}}',
                )
                sample = {"labels": labels, "value": 1}
            else:
                expression = f"round({query}, 0.01)"
                sample = {"labels": "{}", "value": answer}
            tests.append({"expr": expression, "eval_time": "25h", "exp_samples": [sample]})
    assert len(tests) == len(blocks("promql"))
    (tmp_path / "rules.yaml").write_text("groups: []")
    test = {"interval": "1m", "input_series": made, "promql_expr_test": tests}
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [test]}, width=10**6))
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr
