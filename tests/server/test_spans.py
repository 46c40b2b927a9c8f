"""Protects the spans that tracing tools read: one for each choice in its caller's trace, parts that follow
one another and fill it, and nothing of it unless it is asked for."""

import subprocess
import sys

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ridgeline.account.metrics import TTFT_PARTS
from ridgeline.base.clock import VirtualClock
from ridgeline.base.errors import ConfigError
from ridgeline.server.app import build_app
from ridgeline.server.health import Health
from ridgeline.server.spans import Spans, otlp
from tests.server.asgi import call
from tests.server.fake import fake_api, keyring

pytestmark = pytest.mark.anyio
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


async def test_a_request_in_its_callers_trace() -> None:
    exporter, (api, engine) = InMemorySpanExporter(), fake_api()
    spans = Spans(SimpleSpanProcessor(exporter), "m")
    api.listeners.append(spans.ended)
    app = build_app(api, Health(engine, VirtualClock(), 30.0), keys=keyring())
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
    await call(app, "POST", "/v1/completions", b'{"prompt": "a", "max_tokens": 3}', headers)
    *parts, whole = exporter.get_finished_spans()
    assert [part.name for part in parts] == [*TTFT_PARTS, "decode"] and whole.name == "request"
    assert f"{whole.context.trace_id:032x}" == TRACE and f"{whole.parent.span_id:016x}" == PARENT
    assert all(part.parent.span_id == whole.context.span_id for part in parts)
    edges = [whole.start_time, *(part.end_time for part in parts)]
    assert [part.start_time for part in parts] == edges[:-1]
    assert abs(edges[-1] - whole.end_time) < 2000, "the parts fill it, but for nanoseconds of rounding"
    found = dict(whole.attributes)
    assert found["gen_ai.usage.output_tokens"] == 3 and found["gen_ai.response.id"] == "mine"
    assert (found["gen_ai.request.model"], found["ridgeline.floor_s"]) == ("m", 0.5)
    exporter.clear()
    engine.shed = True
    await call(app, "POST", "/v1/completions", b'{"prompt": "a"}', {"traceparent": "junk \xff"})
    (alone,) = exporter.get_finished_spans()
    assert alone.parent is None and not alone.status.is_ok and alone.attributes["ridgeline.finish"] == "shed"
    spans.close()


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://here", "http://", ""])
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="http://localhost:4318"):
        otlp(endpoint)


def test_without_the_packages_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match="ridgeline\\[otel\\]"):
        otlp("http://localhost:4318")


def test_nothing_is_imported_unless_asked_for() -> None:
    code = ("import sys, ridgeline.server.serve, ridgeline.api.openai\n"
            "assert 'opentelemetry.sdk' not in sys.modules")  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
