"""Runs over HTTP: a gateway behind real sockets."""
