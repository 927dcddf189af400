"""Celery around the engine: step tasks, doorbells, the sweep, the heartbeat and draining."""
