"""Runs OpenZFS's own test suite against Millpond's commands. `../run` is the program."""
