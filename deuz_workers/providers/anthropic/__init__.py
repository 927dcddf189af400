"""The wire of the Anthropic Messages API."""
