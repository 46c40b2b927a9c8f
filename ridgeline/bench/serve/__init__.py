"""`ridgeline bench serve`: a load client for any OpenAI server. Speaks HTTP and imports no engine."""
