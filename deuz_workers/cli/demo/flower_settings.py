"""Settings of the demo's Flower, as `config/flower.py` of the source tree has them; port and password come from the demo."""

from typing import Any

address = "127.0.0.1"
read_only = True
enable_events = False
max_tasks = 1_000
persistent = False


def format_task(task: Any) -> Any:
    """Show no arguments and no results."""
    task.args = "(hidden)"
    task.kwargs = "(hidden)"
    task.result = None
    return task
