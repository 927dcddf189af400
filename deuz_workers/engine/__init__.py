"""Performs what the core decides: steps, tool calls and model calls, through the ports."""
