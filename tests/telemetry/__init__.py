"""Traces, metrics and log lines."""
