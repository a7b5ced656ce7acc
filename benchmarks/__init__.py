"""How long the library takes, against a copy and installed peers: `make bench`."""
