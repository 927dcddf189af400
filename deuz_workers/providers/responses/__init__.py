"""Responses: OpenAI's newer wire, whose items keep what a reasoning model thought between its turns."""
