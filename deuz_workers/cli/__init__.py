"""The `deuz` command: what operators and newcomers type."""
