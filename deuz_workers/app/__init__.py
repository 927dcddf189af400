"""The application object: registry, settings, client and the admin's doors, wired to a store and leases."""
