"""Writes docs/METRICS.md: every metric that a server shows, from the table that it shows them by.

    python -m docs.metrics
"""

from pathlib import Path

from ridgeline.account.metrics import described

PAGE = Path(__file__).resolve().parent / "METRICS.md"
HEAD = """# Metrics

`GET /metrics`, with a key where keys are set, in Prometheus' text format. Written by `docs/metrics.py` from
the code, and held to it by a test. Each metric is shown as `ridgeline:NAME` and as `vllm:NAME`, which
existing dashboards read; use one of the two. All have the labels `model_name` and `engine`; a histogram has
`NAME_bucket` (label `le`), `NAME_sum` and `NAME_count`. Blocks are those of the KV cache; a choice is one of
the `n` answers of a request. What an engine does not do, it does not show: without `--speculate` there is no
`spec_decode_…`, without `--ttft` no `requests_late_total`.

[deploy/grafana.json](../deploy/grafana.json) is a dashboard of them for Grafana over Prometheus.
What the parts of a request are is in [SERVER.md](SERVER.md#what-became-of-a-request).

| name | kind | label | |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = [f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {one.text} |"
            for one in described()]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
