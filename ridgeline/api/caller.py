"""Who asks, as far as the API needs to know."""

import uuid
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks. tenant: a name that goes with the API key and does not show it; "" without keys. priority:
    the key's own, of which no request of it may be sooner; None when it has none. traceparent: the header of
    W3C's trace context."""

    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    tenant: str = ""
    priority: int | None = None
    traceparent: str = ""
