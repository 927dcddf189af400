"""What the engine needs of the world, as protocols: store, leases, models, tools, clock and ids."""
