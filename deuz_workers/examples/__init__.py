"""Small programs that use only the public package, run by the tests."""
