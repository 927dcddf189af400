"""Durable LLM agent runs and swarms on Celery, Redis and Postgres."""

__all__: list[str] = []
