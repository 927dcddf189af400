"""Chat Completions: OpenAI's older wire, and the one that most other servers speak."""
