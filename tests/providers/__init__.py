"""Models: what is sent, what is read, what happens when the wire fails."""
