"""OpenTelemetry spans of requests, made at each choice's end from times that are kept anyway.

The packages are those of the extra `otel`, imported only when an endpoint is given.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ridgeline.account.clocks import ChoiceTimes, RequestClock
from ridgeline.base.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanProcessor

FLUSH_MS, EXPORT_S = 2000, 2.0


def otlp(endpoint: str) -> "SpanProcessor":
    """Sends spans in the background to a collector by OTLP over HTTP. ConfigError without the packages."""
    if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc:
        raise ConfigError(f"--otlp-endpoint {endpoint}: give a collector's address, as http://localhost:4318")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError("--otlp-endpoint needs OpenTelemetry: pip install 'ridgeline[otel]'") from None
    address = endpoint.rstrip("/").removesuffix("/v1/traces") + "/v1/traces"
    return BatchSpanProcessor(OTLPSpanExporter(address, timeout=EXPORT_S))


class Spans:
    """A span for each choice, from its arrival to its end, with one inside for each part of TTFT and one for
    the rest. It belongs to the trace that the request's traceparent header names, or begins one."""

    def __init__(self, processor: "SpanProcessor", model: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        resource = Resource.create({"service.name": "ridgeline", "service.version": version("ridgeline")})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("ridgeline", version("ridgeline"))
        self._model = model

    def ended(self, request: RequestClock, choice: ChoiceTimes) -> None:
        """A choice has ended; its span leaves when the processor likes."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        def at(offset_s: float) -> int:
            return int((request.created_s + offset_s) * 1e9)

        context = TraceContextTextMapPropagator().extract({"traceparent": request.caller.traceparent})
        span = self._tracer.start_span("request", context, trace.SpanKind.SERVER, start_time=at(0.0))
        for name, value in self._attributes(request, choice).items():
            if value is not None:
                span.set_attribute(name, value)
        if choice.finish not in ("stop", "length"):
            span.set_status(trace.StatusCode.ERROR, choice.finish)
        inside, past_s, e2e_s = trace.set_span_in_context(span), 0.0, choice.e2e_s or 0.0
        rest = {} if choice.ttft_s is None else {"decode": e2e_s - choice.ttft_s}
        for name, spent_s in {**choice.parts_s, **rest}.items():
            part = self._tracer.start_span(name, inside, start_time=at(past_s))
            past_s += spent_s
            part.end(at(past_s))
        span.end(at(e2e_s))

    def close(self) -> None:
        """Send what is left, for at most FLUSH_MS."""
        self._provider.force_flush(FLUSH_MS)
        self._provider.shutdown()

    def _attributes(self, request: RequestClock, choice: ChoiceTimes) -> dict[str, float | int | str | None]:
        """The names of the semantic conventions for generative AI where they have one."""
        ours = {f"ridgeline.{name}": value for name, value in choice.account.items()}
        return {
            "gen_ai.request.model": self._model, "gen_ai.usage.input_tokens": choice.num_prompt,
            "gen_ai.usage.output_tokens": choice.num_output, "gen_ai.response.id": request.caller.request_id,
            "ridgeline.finish": choice.finish, "ridgeline.choice": choice.choice,
            "ridgeline.ttft_s": choice.ttft_s, "ridgeline.tpot_s": choice.tpot_s, **ours,
        }  # fmt: skip
