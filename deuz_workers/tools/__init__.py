"""Tools as functions: schemas from annotations, and the context that a tool is called with."""
