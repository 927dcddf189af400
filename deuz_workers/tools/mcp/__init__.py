"""Tools of MCP servers. The client library (extra `mcp`) is imported by the first connection, not before."""
