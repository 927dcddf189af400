"""Channels that carry live parts from whoever executes a run to whoever reads along: in this process, and over Redis."""
