"""How long the library takes, beside a copy of the same memory and beside every installed peer: `make bench`."""
