"""For tests of this package and of its users: conformance kits for stores and leases, a virtual clock, injected crashes."""
