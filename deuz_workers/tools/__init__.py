"""Tools: Python functions that a model may call. `decorator` makes them, `function` runs them."""
