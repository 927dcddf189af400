"""Live parts on their way from executors to readers."""
